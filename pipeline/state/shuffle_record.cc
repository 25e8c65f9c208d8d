#include "pipeline/state/shuffle_record.h"

namespace millrace {

shuffle_record shuffle_record::in(const state& from, const std::string& id) {
  const auto* r = from.find(id);
  if (r == nullptr || r->size() != 6) {
    throw failure(error(errc::bad_state, "the saved state has no record " + id)
                      .hint("it was saved by a plan without this shuffle"));
  }
  return {.position = (*r)[0],
          .epoch = (*r)[1],
          .is_draining = (*r)[2] != 0,
          .has_begun = (*r)[3] != 0,
          .has_aside = (*r)[4] != 0,
          .held_bytes = (*r)[5]};
}

void shuffle_record::put(state& to, const std::string& id) const {
  to.put(id,
         {position, epoch, is_draining ? 1 : 0, has_begun ? 1 : 0, has_aside ? 1 : 0, held_bytes});
}

void shuffle_record::deal(const dealing& what, state& to) {
  if (what.from.find(lane_record_name(0, name)) == nullptr) return;
  const auto held = dealt_held(what, name);
  for (std::int64_t l = 0; l < what.lanes; ++l) {
    const auto& of_lane = held[static_cast<std::size_t>(l)];
    const std::string id = lane_record_name(l, name);
    shuffle_record{.epoch = what.epoch, .has_begun = !of_lane.empty()}.put(to, id);
    to.hold(id, of_lane);
  }
}

}  // namespace millrace
