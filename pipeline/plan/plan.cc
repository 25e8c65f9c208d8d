#include "pipeline/plan/plan.h"

#include <new>

namespace millrace {

std::unique_ptr<lane_context> lane_traits::lane_of(run_context& run, std::int64_t lane,
                                                   std::size_t lanes,
                                                   std::size_t lanes_here) const {
  return std::make_unique<lane_context>(lane_context{.run = run,
                                                     .lane = lane,
                                                     .lanes = lanes,
                                                     .lanes_here = lanes_here,
                                                     .format = format,
                                                     .sample_stages = sample_stages,
                                                     .leaves_samples_out = leaves_samples_out});
}

namespace detail {

error item_name::named(error why) const noexcept {
  if (why.kind() == errc::stopped) return why;
  try {
    if (why.sample_key().empty() && !key.empty()) why.key(key);
    if (why.where().empty() && url) why.at(*url);
  } catch (const std::bad_alloc&) {
    return why;
  }
  return why;
}

error item_name::named_unless_of_another(error why) const noexcept {
  try {
    if (!why.sample_key().empty() && why.sample_key() != key) return why;
    if (!why.where().empty() && (!url || why.where() != redacted(*url))) return why;
  } catch (const std::bad_alloc&) {
    return why;
  }
  return named(std::move(why));
}

void check_not_empty(bool has_plan) {
  if (!has_plan) {
    throw failure(error(errc::usage, "an empty plan").hint("begin it with shards()"));
  }
}

error may_change_samples(const std::string& stage) {
  return error(errc::usage,
               "the stage '" + stage + "' does not say that it leaves samples unchanged")
      .hint(
          "set lane_stage.unchanged, or change samples in a sample_stage: what later stages hold "
          "is read again after a resume, without this stage");
}

error has_other_origin() {
  return error(errc::usage,
               "the function of map() gave an item whose `where` is not that of the item that it "
               "was called with")
      .hint("copy it: a resumed run reads items that are under way again by their `where`");
}

}  // namespace detail

}  // namespace millrace
