#include "pipeline/stages/on_error.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "engine/base/json_tree.h"
#include "engine/base/words.h"
#include "engine/files/line_file.h"
#include "engine/host/log.h"
#include "pipeline/state/records.h"
#include "pipeline/state/skip_records.h"

namespace millrace::detail {
namespace {

constexpr std::uint64_t enough_for_a_rate = 1000;

// Whether the rest of a shard, or a part of it, is lost.
bool is_of_damaged_shard(const error& why) {
  return why.kind() == errc::truncated || why.kind() == errc::bad_archive ||
         why.kind() == errc::changed || why.kind() == errc::cut;
}

// Calls f(record) for the record `name` of each rank.
void each_of_ranks(const state& from, const std::string& name, auto f) {
  const std::string of_any = name + of_rank_begin;
  for (auto it = from.records().lower_bound(of_any);
       it != from.records().end() && it->first.starts_with(of_any); ++it) {
    f(it->second);
  }
}

class skip_counter final : public error_counter {
 public:
  skip_counter(run_context& run, error_policy policy);
  std::optional<error> on_failure(const error& why) override;
  void on_passed_over(const error& why) override;
  void on_item(const origin* where) override;
  std::optional<error> on_end_of_epoch() override;
  void save(state& to) const override;
  void restore(const state& from) override;

 private:
  // Small, because these are saved in a state.
  static constexpr std::size_t most_read = 256;

  run_context& run_;
  error_policy policy_;
  std::string record_;
  int number_;  // of the policy in the plan, from 1
  std::string lost_record_;
  std::uint64_t newly_lost() const;
  bool is_first() const { return record_ == skipped_record; }  // policy of the plan
  bool count_lost();
  void tell_epoch();
  bool count(const error& why);
  bool is_first_of_its_kind(const error& why);
  void list(const std::string& what, bool is_listed);
  std::string told(const error& why) const;
  std::string report_damaged(bool is_known);
  std::optional<std::string> over_budget() const;
  std::optional<std::string> over_rate(std::uint64_t failed, std::uint64_t all) const;
  error too_many(const std::string& why) const;
  std::optional<error> write_report(const error& why) const;
  void save_lost(state& to) const;
  lost_shards lost_in(const state::record& saved) const;
  void add_lost(const lost_shards& saved, bool is_own);
  void await_again(const state& from, std::int64_t in_front);
  void restore_lost(const state& from);

  std::uint64_t failed_ = 0;  // samples skipped, and those lost with shards
  std::uint64_t in_a_row_ = 0;
  std::uint64_t passed_ = 0;
  bool failed_at_end_ = false;  // the run failed instead of yielding an end that it had taken
  std::size_t epochs_told_ = 0;
  ledger::epoch epoch_;  // since the epoch, or the run, began
  // Samples that later stages held when the state was saved; they come again.
  using place = lost_shards::place;
  static place place_of(const origin& o) { return {o.epoch, o.lane, o.shard, o.offset}; }
  std::set<place> again_;
  // Of this epoch: the first shards that yielded a sample, and the number of samples from those.
  std::unordered_set<std::int64_t> read_;
  std::uint64_t passed_of_read_ = 0;
  // Of this epoch: shards that yielded no samples, by fingerprints of their URLs; the errors of
  // those shards; shards that could not be read whole.
  std::unordered_set<std::uint64_t> gave_no_sample_;
  std::uint64_t errors_of_no_sample_ = 0;
  std::unordered_set<std::uint64_t> damaged_;
  std::size_t told_damaged_ = 0;  // of the last epoch
  std::shared_ptr<const line_file> report_;
};

skip_counter::skip_counter(run_context& run, error_policy policy)
    : run_(run),
      policy_(std::move(policy)),
      record_(run.record_of(skipped_record)),
      number_(run.stages_of_a_kind.at(skipped_record)),
      lost_record_(run.record_of(lost_record)) {
  if (policy_.report.empty()) return;
  report_ = std::make_shared<const line_file>(policy_.report, "the report of skipped samples");
}

void skip_counter::on_item(const origin* where) {
  in_a_row_ = 0;
  if (where != nullptr) {
    if (!again_.empty() && again_.erase(place_of(*where)) > 0) return;
    if (read_.size() < most_read) read_.insert(where->shard);
    if (read_.contains(where->shard)) ++passed_of_read_;
  }
  ++passed_;
  ++epoch_.passed;
}

// Losses that lanes reported since they were last counted. Of several policies, the first counts
// them.
std::uint64_t skip_counter::newly_lost() const {
  return is_first() ? run_.counts.lost - run_.lost_counted : 0;
}

// Counts what was lost in the epoch, at its end. Returns whether an index had the numbers.
bool skip_counter::count_lost() {
  const std::uint64_t known = newly_lost();
  const std::uint64_t lost_whole = std::exchange(gave_no_sample_, {}).size();
  const std::uint64_t counted = std::exchange(errors_of_no_sample_, 0);
  const std::uint64_t read = std::exchange(read_, {}).size();
  const std::uint64_t passed = std::exchange(passed_of_read_, 0);
  if (known == 0 && !run_.knows_losses && lost_whole > 0 && read > 0) {
    const std::uint64_t guessed = lost_whole * passed / read;
    // Each error of these shards was already counted when it was skipped.
    if (guessed > counted) {
      run_.counts.lost += guessed - counted;
      run_.lost_counted += guessed - counted;
      failed_ += guessed - counted;
    }
  }
  failed_ += known;
  run_.lost_counted += known;
  return known > 0 || run_.knows_losses;
}

// The reason why no further sample may be skipped.
std::optional<std::string> skip_counter::over_budget() const {
  if (failed_ >= policy_.most_skipped) {
    return "more than " + counted(policy_.most_skipped, "sample") + " failed";
  }
  if (in_a_row_ >= policy_.most_in_a_row) {
    return counted(policy_.most_in_a_row + 1, "sample") + " failed in a row";
  }
  const std::uint64_t all = passed_ + failed_ + 1;
  return all >= enough_for_a_rate ? over_rate(failed_ + 1, all) : std::nullopt;
}

std::optional<std::string> skip_counter::over_rate(std::uint64_t failed, std::uint64_t all) const {
  if (static_cast<double>(failed) <= policy_.most_rate * static_cast<double>(all)) return {};
  return fmt::format("{} of {} failed, more than {:g} %", failed, counted(all, "sample"),
                     100 * policy_.most_rate);
}

error skip_counter::too_many(const std::string& why) const {
  return error(errc::too_many_skipped, why)
      .hint(policy_.report.empty()
                ? "error_policy::report names a file for a list of the skipped samples"
                : "the report lists the skipped samples");
}

// Without an index, the number of samples that damaged shards lack is unknown. Empty if there are
// none in this epoch. The notice is not repeated for epochs with as many.
std::string skip_counter::report_damaged(bool is_known) {
  const std::size_t count = std::exchange(damaged_, {}).size();
  const bool is_new = std::exchange(told_damaged_, count) != count;
  if (is_known || count == 0) return {};
  run_.counts.incomplete_shards += count;
  std::string damaged = counted(count, "shard") + " could not be read whole";
  if (is_new) {
    log_notice(fmt::format("{} in this epoch; what {} is counted only with an index", damaged,
                           count == 1 ? "it lacks" : "they lack"));
  }
  return damaged;
}

// The ledger has one entry for each epoch: later policies add to what the first one reported.
void skip_counter::tell_epoch() {
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

std::optional<error> skip_counter::on_end_of_epoch() {
  const std::uint64_t lost_whole = gave_no_sample_.size();
  const std::uint64_t before = failed_;
  bool is_known = false;
  // The end of an epoch comes again after a resume and after the last epoch, and is then judged
  // again.
  const bool is_of_this_run = epoch_.passed > 0 || !epoch_.skipped.empty();
  if (is_of_this_run || lost_whole > 0) is_known = count_lost();
  if (is_of_this_run) tell_epoch();
  const std::string gave_none = counted(lost_whole, "shard") + " gave no sample";
  if (lost_whole > 0) log_notice(gave_none + " in this epoch");
  const std::string damaged = report_damaged(is_known);
  if (policy_.most_skipped == 0) return std::nullopt;
  auto over = over_rate(failed_, passed_ + failed_);
  if (!over && failed_ > policy_.most_skipped) {
    over = fmt::format("{} failed, more than {}", counted(failed_, "sample"), policy_.most_skipped);
  }
  if (!over) return std::nullopt;
  failed_at_end_ = true;
  const std::uint64_t lost = failed_ - before;
  if (lost > 0) {
    *over += fmt::format("; of them {}{} lost with shards", is_known ? "" : "about ", lost);
    if (!is_known) *over += ", as many as other shards have";
  }
  if (lost_whole > 0) *over += "; " + gave_none;
  if (!damaged.empty()) *over += "; " + damaged;
  return too_many(*over);
}

// The reason why the report lacks this line; none if it was written. The line is serialised
// directly: freeing a tree would need memory.
std::optional<error> skip_counter::write_report(const error& why) const {
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
                  json_text_of(why.sample_key()), json_text_of(told(why)), of);
  auto added = report_->add(text);
  if (added) return std::nullopt;
  const error& failed = added.error();
  return error(failed).hint(
      fmt::format("{}, and resume; what was to be listed: {}", failed.what_to_do(), told(why)));
}

// False if the shard already failed in this epoch: when a shard disappears while samples of it are
// held, each of these reports it.
bool skip_counter::is_first_of_its_kind(const error& why) {
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

std::optional<error> skip_counter::on_failure(const error& why) {
  if (!why.is_skippable() || policy_.most_skipped == 0) return why;
  if (const auto over = over_budget()) {
    return too_many(fmt::format("{}; the last: {}", *over, told(why)));
  }
  if (auto unwritten = write_report(why)) return unwritten;
  ++in_a_row_;
  const bool is_listed = count(why);
  list(told(why), is_listed);
  return std::nullopt;
}

// The program was told by the exception; or a later policy, if there is one, which has counted it.
void skip_counter::on_passed_over(const error& why) {
  if (number_ != run_.stages_of_a_kind.at(skipped_record)) return;
  auto& listed = run_.counts.first_skipped;
  if (count(why) && listed.size() < ledger::max_listed) listed.push_back(told(why));
}

// Counts a failed sample or shard. Whether it is to be listed.
bool skip_counter::count(const error& why) {
  ++failed_;
  ++run_.counts.skipped[why.kind()];
  ++epoch_.skipped[why.kind()];
  return is_first_of_its_kind(why);
}

// The message, in the program's words.
std::string skip_counter::told(const error& why) const {
  return run_.in_words ? run_.in_words(why.message()) : why.message();
}

// Logs skipped samples as notices as long as the ledger lists them, and then that there may be
// more.
void skip_counter::list(const std::string& what, bool is_listed) {
  auto& listed = run_.counts.first_skipped;
  const bool has_room = listed.size() < ledger::max_listed;
  if (is_listed && has_room) listed.push_back(what);
  if (!run_.tell_skipped || !is_listed || !has_room) return log_debug("skipped: " + what);
  log_notice("skipped: " + what);
  if (listed.size() < ledger::max_listed) return;
  log_notice("further skipped samples are counted, and logged at log_level::debug only");
}

void skip_counter::save(state& to) const {
  to.put(record_ + of_rank(run_.place.rank, run_.place.world_size),
         skip_counts{.failed = static_cast<std::int64_t>(failed_ + newly_lost()),
                     .in_a_row = static_cast<std::int64_t>(in_a_row_),
                     .passed = static_cast<std::int64_t>(passed_)}
             .of());
  if (failed_at_end_) to.append(end_owed_record, state::record{1});
  save_lost(to);
}

void skip_counter::save_lost(state& to) const {
  lost_shards saved{.passed_of_read = static_cast<std::int64_t>(passed_of_read_),
                    .errors = static_cast<std::int64_t>(errors_of_no_sample_),
                    .pending_in_front = std::ssize(to.held(pending_record)),
                    .read = {read_.begin(), read_.end()},
                    .again = {again_.begin(), again_.end()},
                    .lost = {gave_no_sample_.begin(), gave_no_sample_.end()}};
  // Sorted, because states are compared.
  std::ranges::sort(saved.read);
  std::ranges::sort(saved.lost);
  to.put(lost_record_ + of_rank(run_.place.rank, run_.place.world_size), saved.of());
}

lost_shards skip_counter::lost_in(const state::record& saved) const {
  auto lost = lost_shards::in(saved);
  if (!lost) throw failure(senseless(lost_record_));
  return std::move(*lost);
}

// Of another rank's state, takes the lost shards assigned to this rank.
void skip_counter::add_lost(const lost_shards& saved, bool is_own) {
  passed_of_read_ += static_cast<std::uint64_t>(saved.passed_of_read);
  read_.insert(saved.read.begin(), saved.read.end());
  if (is_own) again_.insert(saved.again.begin(), saved.again.end());
  const auto ranks = static_cast<std::uint64_t>(run_.place.world_size);
  for (const std::int64_t shard : saved.lost) {
    const auto which = static_cast<std::uint64_t>(shard);
    if (is_own || which % ranks == static_cast<std::uint64_t>(run_.place.rank)) {
      gave_no_sample_.insert(which);
    }
  }
  errors_of_no_sample_ = is_own ? static_cast<std::uint64_t>(saved.errors) : gave_no_sample_.size();
}

// Stages add the samples they hold in order, from the first stage to the last.
void skip_counter::await_again(const state& from, std::int64_t in_front) {
  std::int64_t before = 0;
  const auto passed_over = stretch_record::in(from);  // they do not come again
  for (const origin& o : from.held(pending_record)) {
    const bool is_own = o.lane % run_.place.world_size == run_.place.rank;
    const bool comes = is_own && before++ >= in_front;
    if (comes && !(passed_over && passed_over->has(o.place()))) again_.insert(place_of(o));
  }
}

void skip_counter::restore_lost(const state& from) {
  if (const auto* mine =
          from.find(lost_record_ + of_rank(run_.place.rank, run_.place.world_size))) {
    const lost_shards saved = lost_in(*mine);
    add_lost(saved, true);
    if (from.find(list_lanes_record) == nullptr) await_again(from, saved.pending_in_front);
    return;
  }
  each_of_ranks(from, lost_record_,
                [this](const state::record& r) { add_lost(lost_in(r), false); });
}

void skip_counter::restore(const state& from) {
  std::uint64_t ranks = 0;
  skip_counts all;
  const auto add = [&](const state::record& r) {
    const auto saved = skip_counts::in(r);
    if (!saved) throw failure(senseless(record_));
    ++ranks;
    all.failed += saved->failed;
    all.in_a_row = std::max(all.in_a_row, saved->in_a_row);
    all.passed += saved->passed;
  };
  if (const auto* mine = from.find(record_ + of_rank(run_.place.rank, run_.place.world_size))) {
    add(*mine);
  } else {
    each_of_ranks(from, record_, add);
    // Saved by an older version, which had one record for all ranks.
    if (const auto* one = from.find(record_)) add(*one);
    // Each rank takes its part of the total count.
    for (std::int64_t* const count : {&all.failed, &all.passed}) {
      *count = *count / run_.place.world_size +
               (run_.place.rank < *count % run_.place.world_size ? 1 : 0);
    }
  }
  if (ranks == 0) {
    throw failure(error(errc::bad_state, "the saved state counts no skipped samples")
                      .hint("it was saved by a plan without on_error"));
  }
  failed_ = static_cast<std::uint64_t>(all.failed);
  in_a_row_ = static_cast<std::uint64_t>(all.in_a_row);
  passed_ = static_cast<std::uint64_t>(all.passed);
  restore_lost(from);
}

}  // namespace

std::unique_ptr<error_counter> count_errors(run_context& run, error_policy policy) {
  return std::make_unique<skip_counter>(run, std::move(policy));
}

}  // namespace millrace::detail
