#include "pipeline/on_error.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "engine/log.h"

namespace millrace::detail {
namespace {

constexpr std::uint64_t enough_for_a_rate = 1000;

}  // namespace

error_counter::error_counter(run_context& run, error_policy policy)
    : run_(run), policy_(std::move(policy)) {
  if (policy_.report.empty()) return;
  const int file = open(policy_.report.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) {
    throw failure(error(errc::not_allowed, "cannot write the report of skipped samples")
                      .at(policy_.report)
                      .cause(errno));
  }
  report_ = {new int(file), [](const int* fd) {
               close(*fd);
               delete fd;
             }};
}

// Why no further sample may be skipped.
std::optional<std::string> error_counter::over_budget() const {
  if (skipped_ >= policy_.most_skipped) {
    return fmt::format("more than {} samples failed", policy_.most_skipped);
  }
  if (in_a_row_ >= policy_.most_in_a_row) {
    return fmt::format("{} samples failed in a row", policy_.most_in_a_row);
  }
  const std::uint64_t all = passed_ + skipped_ + 1;
  const double rate = static_cast<double>(skipped_ + 1) / static_cast<double>(all);
  if (all >= enough_for_a_rate && rate > policy_.most_rate) {
    return fmt::format("{} of {} samples failed, more than {:g} %", skipped_ + 1, all,
                       100 * policy_.most_rate);
  }
  return std::nullopt;
}

void error_counter::write_report(const error& why) const {
  if (!report_) return;
  nlohmann::ordered_json line{{"kind", kind_name(why.kind())}, {"url", why.where()}};
  if (why.byte_offset()) line["offset"] = *why.byte_offset();
  line["key"] = why.sample_key();
  line["message"] = why.message();
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  // One call: lines of several processes do not mix.
  if (write(*report_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    log_notice("cannot write the report of skipped samples: " + text);
  }
}

std::optional<error> error_counter::on_failure(const error& why) {
  if (!why.is_skippable() || policy_.most_skipped == 0) return why;
  if (const auto over = over_budget()) {
    return error(errc::too_many_skipped, fmt::format("{}; the last: {}", *over, why.message()))
        .hint("the report lists those skipped");
  }
  ++skipped_;
  ++in_a_row_;
  ++run_.counts.skipped[why.kind()];
  ++epoch_.skipped[why.kind()];
  if (run_.counts.first_skipped.size() < ledger::max_listed) {
    run_.counts.first_skipped.push_back(why.message());
  }
  write_report(why);
  log_debug("skipped: " + why.message());
  return std::nullopt;
}

void error_counter::save(state& to) const {
  to.put(skipped_record, {static_cast<std::int64_t>(skipped_), static_cast<std::int64_t>(in_a_row_),
                          static_cast<std::int64_t>(passed_)});
}

void error_counter::restore(const state& from) {
  const auto* r = from.find(skipped_record);
  if (r == nullptr || r->size() != 3) {
    throw failure(error(errc::bad_state, "the saved state counts no skipped samples")
                      .hint("it was saved by a plan without on_error"));
  }
  skipped_ = static_cast<std::uint64_t>((*r)[0]);
  in_a_row_ = static_cast<std::uint64_t>((*r)[1]);
  passed_ = static_cast<std::uint64_t>((*r)[2]);
}

}  // namespace millrace::detail
