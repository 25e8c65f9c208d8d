#include "pipeline/on_error.h"

#include <fmt/format.h>

#include "engine/log.h"

namespace millrace::detail {
namespace {

constexpr std::uint64_t most_in_a_row = 1000;

}  // namespace

std::optional<error> error_counter::on_failure(const error& why) {
  if (!why.is_skippable()) return why;
  if (policy_.most_skipped == 0) return why;
  if (skipped_ >= policy_.most_skipped || ++in_a_row_ > most_in_a_row) {
    const bool all_bad = skipped_ < policy_.most_skipped;
    return error(errc::too_many_skipped,
                 all_bad ? fmt::format("{} samples failed in a row; the last: {}", most_in_a_row,
                                       why.message())
                         : fmt::format("more than {} samples failed; the last: {}",
                                       policy_.most_skipped, why.message()))
        .hint("the report lists those skipped");
  }
  ++skipped_;
  ++run_.counts.skipped[why.kind()];
  if (run_.counts.first_skipped.size() < ledger::max_listed) {
    run_.counts.first_skipped.push_back(why.message());
  }
  log_debug("skipped: " + why.message());
  return std::nullopt;
}

void error_counter::save(state& to) const {
  to.put(skipped_record,
         {static_cast<std::int64_t>(skipped_), static_cast<std::int64_t>(in_a_row_)});
}

void error_counter::restore(const state& from) {
  const auto* r = from.find(skipped_record);
  if (r == nullptr || r->size() != 2) {
    throw failure(error(errc::bad_state, "the saved state counts no skipped samples")
                      .hint("it was saved by a plan without on_error"));
  }
  skipped_ = static_cast<std::uint64_t>((*r)[0]);
  in_a_row_ = static_cast<std::uint64_t>((*r)[1]);
}

}  // namespace millrace::detail
