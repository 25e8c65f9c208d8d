#include "pipeline/on_error.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "engine/line_file.h"
#include "engine/log.h"
#include "engine/words.h"
#include "pipeline/lanes.h"
#include "pipeline/records.h"

namespace millrace::detail {
namespace {

constexpr std::uint64_t enough_for_a_rate = 1000;

// A text alone, and no tree, which would need memory to be given up.
std::string json_text_of(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// That the rest of a shard, or a part of it, is lost.
bool is_of_damaged_shard(const error& why) {
  return why.kind() == errc::truncated || why.kind() == errc::bad_archive ||
         why.kind() == errc::changed || why.kind() == errc::cut;
}

}  // namespace

error_counter::error_counter(run_context& run, error_policy policy)
    : run_(run), policy_(std::move(policy)), record_(run.record_of(skipped_record)) {
  if (policy_.report.empty()) return;
  report_ = std::make_shared<const line_file>(policy_.report, "the report of skipped samples");
}

// What the lanes found to be lost since it was last counted: of several policies, by the first.
std::uint64_t error_counter::newly_lost() const {
  return is_first() ? run_.counts.lost - run_.lost_counted : 0;
}

// At the end of an epoch, what was lost in it. Whether an index told.
bool error_counter::count_lost() {
  const std::uint64_t known = newly_lost();
  const std::uint64_t lost_whole = std::exchange(gave_no_sample_, {}).size();
  const std::uint64_t counted = std::exchange(errors_of_no_sample_, 0);
  const std::uint64_t read = std::exchange(read_, {}).size();
  if (known == 0 && lost_whole > 0 && read > 0) {
    const std::uint64_t guessed = lost_whole * epoch_.passed / read;
    // Each error of them has been counted, as it was skipped.
    if (guessed > counted) {
      run_.counts.lost += guessed - counted;
      run_.lost_counted += guessed - counted;
      failed_ += guessed - counted;
    }
  }
  failed_ += known;
  run_.lost_counted += known;
  return known > 0;
}

// Why no further sample may be skipped.
std::optional<std::string> error_counter::over_budget() const {
  if (failed_ >= policy_.most_skipped) {
    return "more than " + counted(policy_.most_skipped, "sample") + " failed";
  }
  if (in_a_row_ >= policy_.most_in_a_row) {
    return counted(policy_.most_in_a_row, "sample") + " failed in a row";
  }
  const std::uint64_t all = passed_ + failed_ + 1;
  return all >= enough_for_a_rate ? over_rate(failed_ + 1, all) : std::nullopt;
}

std::optional<std::string> error_counter::over_rate(std::uint64_t failed, std::uint64_t all) const {
  if (static_cast<double>(failed) <= policy_.most_rate * static_cast<double>(all)) return {};
  return fmt::format("{} of {} failed, more than {:g} %", failed, counted(all, "sample"),
                     100 * policy_.most_rate);
}

error error_counter::too_many(const std::string& why) const {
  return error(errc::too_many_skipped, why)
      .hint(policy_.report.empty() ? "error_policy::report names a file that lists the skipped ones"
                                   : "the report lists the skipped ones");
}

// Of shards that lack samples nobody knows the number of; empty where there are none in this epoch.
std::string error_counter::tell_of_damaged(bool is_known) {
  const std::size_t count = std::exchange(damaged_, {}).size();
  if (is_known || count == 0) return {};
  std::string damaged = counted(count, "shard") + " could not be read whole";
  log_notice(fmt::format("{} in this epoch; what {} is counted only where there is an index",
                         damaged, count == 1 ? "it lacks" : "they lack"));
  return damaged;
}

// The ledger has an epoch once: later policies add to what the first has told.
void error_counter::tell_epoch() {
  ledger::epoch told = std::exchange(epoch_, {});
  auto& all = run_.counts.epochs;
  if (is_first() || epochs_told_ == all.size()) {
    all.push_back(std::move(told));
  } else {
    all[epochs_told_].passed = told.passed;
    for (const auto& [kind, count] : told.skipped) all[epochs_told_].skipped[kind] += count;
  }
  ++epochs_told_;
}

std::optional<error> error_counter::on_end_of_epoch() {
  const std::uint64_t lost_whole = gave_no_sample_.size();
  const std::uint64_t before = failed_;
  bool is_known = false;
  // An end comes again after a resume and after the last epoch: it is judged then too.
  if (epoch_.passed > 0 || !epoch_.skipped.empty()) {
    is_known = count_lost();
    tell_epoch();
  }
  const std::string gave_none = counted(lost_whole, "shard") + " gave no sample";
  if (lost_whole > 0) log_notice(gave_none + " in this epoch");
  const std::string damaged = tell_of_damaged(is_known);
  if (policy_.most_skipped == 0) return std::nullopt;
  auto over = over_rate(failed_, passed_ + failed_);
  if (!over && failed_ > policy_.most_skipped) {
    over = fmt::format("{} failed, more than {}", counted(failed_, "sample"), policy_.most_skipped);
  }
  if (!over) return std::nullopt;
  failed_at_end_ = true;
  const std::uint64_t lost = failed_ - before;
  if (lost > 0) *over += fmt::format("; of them {} lost with shards", lost);
  if (lost_whole > 0) *over += "; " + gave_none;
  if (!damaged.empty()) *over += "; " + damaged;
  return too_many(*over);
}

// Why the list has not this line; null: it has.
std::optional<error> error_counter::write_report(const error& why) const {
  if (!report_) return std::nullopt;
  const auto offset =
      why.byte_offset() ? fmt::format(R"(,"offset":{})", *why.byte_offset()) : std::string();
  const std::string of = policy_.report_of.empty()
                             ? std::string()
                             : fmt::format(R"(,"of":{})", json_text_of(policy_.report_of));
  const std::string text =
      fmt::format(R"({{"kind":{},"url":{}{},"key":{},"message":{}{}}})"
                  "\n",
                  json_text_of(kind_name(why.kind())), json_text_of(why.where()), offset,
                  json_text_of(why.sample_key()), json_text_of(why.message()), of);
  auto added = report_->add(text);
  if (added) return std::nullopt;
  const error& failed = added.error();
  return error(failed).hint(
      fmt::format("{}, and resume; what was to be listed: {}", failed.what_to_do(), why.message()));
}

// False for a shard that could not be read before in this epoch: where it went away while samples
// of it were held, each of them says so.
bool error_counter::is_first_of_its_kind(const error& why) {
  if (why.is_of_whole_shard()) {
    ++errors_of_no_sample_;
    return gave_no_sample_.insert(why.where_fingerprint()).second;
  }
  if (is_of_damaged_shard(why)) {
    damaged_.insert(why.where_fingerprint());
    return true;
  }
  const bool is_of_shard =
      is_read_failure(why.kind()) && !why.where().empty() && why.sample_key().empty();
  return !is_of_shard || damaged_.insert(why.where_fingerprint()).second;
}

std::optional<error> error_counter::on_failure(const error& why) {
  if (!why.is_skippable() || policy_.most_skipped == 0) return why;
  if (const auto over = over_budget()) {
    return too_many(fmt::format("{}; the last: {}", *over, why.message()));
  }
  if (auto unwritten = write_report(why)) return unwritten;
  ++failed_;
  ++in_a_row_;
  const bool is_listed = is_first_of_its_kind(why);
  ++run_.counts.skipped[why.kind()];
  ++epoch_.skipped[why.kind()];
  list(why.message(), is_listed);
  return std::nullopt;
}

// Those that the ledger lists are told as notices, and that there may be more.
void error_counter::list(const std::string& what, bool is_listed) {
  auto& listed = run_.counts.first_skipped;
  const bool has_room = listed.size() < ledger::max_listed;
  if (is_listed && has_room) listed.push_back(what);
  if (!run_.tell_skipped || !is_listed || !has_room) return log_debug("skipped: " + what);
  log_notice("skipped: " + what);
  if (listed.size() < ledger::max_listed) return;
  log_notice("further samples that are skipped are counted, and told at log_level::debug alone");
}

void error_counter::save(state& to) const {
  to.put(record_ + of_rank(run_.rank, run_.world_size),
         {static_cast<std::int64_t>(failed_ + newly_lost()), static_cast<std::int64_t>(in_a_row_),
          static_cast<std::int64_t>(passed_)});
  if (failed_at_end_) to.append(end_owed_record, state::record{1});
}

void error_counter::restore(const state& from) {
  std::uint64_t ranks = 0;
  state::record all(3);
  const auto add = [&](const state::record& r) {
    if (r.size() != all.size()) throw failure(senseless(record_));
    ++ranks;
    all = {all[0] + r[0], std::max(all[1], r[1]), all[2] + r[2]};
  };
  if (const auto* mine = from.find(record_ + of_rank(run_.rank, run_.world_size))) {
    add(*mine);
  } else {
    const std::string of_any = record_ + of_rank_begin;
    for (auto it = from.records().lower_bound(of_any);
         it != from.records().end() && it->first.starts_with(of_any); ++it) {
      add(it->second);
    }
    // Of a version that had one record for all ranks.
    if (const auto* one = from.find(record_)) add(*one);
    // Each rank takes its part of what all have counted.
    for (const std::size_t i : {0U, 2U}) {
      all[i] = all[i] / run_.world_size + (run_.rank < all[i] % run_.world_size ? 1 : 0);
    }
  }
  if (ranks == 0) {
    throw failure(error(errc::bad_state, "the saved state counts no skipped samples")
                      .hint("it was saved by a plan without on_error"));
  }
  failed_ = static_cast<std::uint64_t>(all[0]);
  in_a_row_ = static_cast<std::uint64_t>(all[1]);
  passed_ = static_cast<std::uint64_t>(all[2]);
}

}  // namespace millrace::detail
