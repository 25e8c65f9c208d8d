#include "train/ranks/step_agreement.h"

#include <cstdint>
#include <vector>

namespace millrace {
namespace {

// The minimum over all ranks is -1 if it is true of any of them.
std::int64_t any(bool mine) {
  return mine ? -1 : 0;
}

// The values that are summed over all ranks.
std::vector<std::int64_t> addends_of(const rank_word& mine) {
  std::vector<std::int64_t> out;
  if (mine.samples >= 0) out.push_back(mine.samples);
  if (mine.mark) out.push_back(*mine.mark);
  return out;
}

}  // namespace

step_agreement::step_agreement(process_group& group, const rank_word& mine)
    : begun_(group.smallest(
          {mine.has_batch ? 1 : 0, any(mine.has_batch), any(mine.has_failed),
           any(mine.has_diverged), any(mine.asks_to_save), any(mine.has_saved), -mine.ending},
          addends_of(mine))),
      asks_for_samples_(mine.samples >= 0),
      asks_for_mark_(mine.mark.has_value()) {}

common_word step_agreement::wait() {
  const auto all = begun_.wait();
  return {.all_have_batches = all[0] != 0,
          .one_has_batch = all[1] != 0,
          .samples = asks_for_samples_ ? all[7] : 0,
          .are_alike = !asks_for_mark_ || all.back() == 0,
          .one_failed = all[2] != 0,
          .one_diverged = all[3] != 0,
          .save_asked = all[4] != 0,
          .one_has_saved = all[5] != 0,
          .ending = static_cast<int>(-all[6])};
}

}  // namespace millrace
