#include "pipeline/formats/joined_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/base/fingerprint.h"
#include "engine/base/words.h"
#include "engine/host/log.h"
#include "io/names/shard_name.h"
#include "pipeline/formats/companion.h"
#include "pipeline/samples/sample_name.h"

namespace millrace {
namespace {

class joined_reader final : public sample_reader {
 public:
  joined_reader(std::unique_ptr<sample_reader> main, const joining& with, lane_context& lane,
                const shard_ref& which, const lane_cursor& at)
      : with_(with),
        lane_(lane),
        is_again_(lane.memory.reads == lane.memory.again),
        is_whole_(!is_again_ && at.offset <= 0 && which.begin == 0 && which.end == 0 &&
                  which.skip == 0 && which.samples < 0),
        main_(std::move(main)),
        companion_(
            lane, *lane.memory.companions[with.number], with.options,
            companion_url(with.pattern, (*lane.shards)[static_cast<std::size_t>(which.shard)]),
            is_again_, is_whole_) {}

  awaitable<result<std::optional<sample>>> next() override {
    for (;;) {
      if (lane_.run.is_stopped()) co_return run_stopped();
      before_hand_ = {
          .offset = main_->offset(), .given = main_->given(), .before = main_->before()};
      is_in_hand_ = false;
      auto found = co_await main_->next();
      if (!found) co_return found;
      if (!*found) {
        if (is_whole_) {
          auto read = co_await count_alone();
          if (!read) co_return read.error();
        }
        co_return std::optional<sample>();
      }
      is_in_hand_ = true;  // until it is given: a state that is saved meanwhile is before it
      auto joined = co_await join(std::move(**found));
      if (!joined) co_return joined;
      is_in_hand_ = false;
      if (*joined) co_return joined;
    }
  }
  std::int64_t offset() const override { return main_->offset(); }
  std::int64_t given() const override { return main_->given(); }
  seen_before before() const override { return main_->before(); }
  std::optional<lane_cursor> in_front() const override {
    return is_in_hand_ ? before_hand_ : main_->in_front();
  }
  shard_head head() const override { return main_->head(); }
  void leave_failed() override {
    if (!std::exchange(is_in_hand_, false)) main_->leave_failed();
  }
  bool is_broken() const override { return !is_in_hand_ && main_->is_broken(); }

 private:
  awaitable<result<std::optional<sample>>> join(sample s) {
    auto found = co_await companion_.find(s.key);
    if (!found) co_return found.error();
    if (!*found) co_return without(std::move(s));
    sample& other = **found;
    if (auto added = add_fields(s, std::move(other.fields)); !added) {
      error why = added.error();
      why.reworded(fmt::format("{}: this companion, and its sample at byte {} of {}", why.what(),
                               s.where.offset, redacted(*s.url)))
          .hint(
              "choose other fields by join_options.fields, or rename them in the companion "
              "(join_options.untar.rename)");
      co_return at_companion(s, other, std::move(why));
    }
    co_return std::optional(std::move(s));
  }

  error at_companion(const sample& s, const sample& other, error why) const {
    return why.at(companion_.url())
        .offset(static_cast<std::uint64_t>(other.where.offset))
        .key(s.key)
        .skippable();
  }

  // What becomes of a sample without a companion.
  result<std::optional<sample>> without(sample s) {
    const missing_companion how = with_.options.missing;
    if (how == missing_companion::error) {
      return error(errc::missing_field,
                   fmt::format("the companion has no sample of this key, which is at byte {} of {}",
                               s.where.offset, redacted(*s.url)))
          .at(companion_.url())
          .offset(static_cast<std::uint64_t>(companion_.index().reached))
          .key(s.key)
          .hint(
              "keys are the names up to the first dot, with folders; join_options.missing leaves "
              "such samples out, or gives them without the companion's fields")
          .skippable();
    }
    if (!is_again_) count_without_companion(lane_.run.counts, how);
    if (!is_again_ && !std::exchange(has_told_, true)) {
      const bool has_shard = !companion_.index().broken;
      const std::string_view what = became(how);
      report_companions(
          lane_.run, has_shard ? fmt::format("{} has no companion in {}: such samples are {}",
                                             s.key, redacted(companion_.url()), what)
                               : fmt::format("there is no companion shard {}: samples of {} are {}",
                                             redacted(companion_.url()), redacted(*s.url), what));
    }
    if (how == missing_companion::skip) return std::optional<sample>();
    return std::optional(std::move(s));
  }

  // Counts the companion's samples that the main shard lacks. The rest of the companion is read for
  // it, and an error there takes no sample away.
  awaitable<result<void>> count_alone() {
    auto read = co_await companion_.read_rest();
    if (!read) co_return read;
    const companion_index& index = companion_.index();
    if (index.broken && index.size() > 0) {
      report_companions(lane_.run,
                        fmt::format("after the last sample that was asked for: {}",
                                    error(*index.broken).at(companion_.url()).message()));
    }
    const std::size_t alone = index.not_asked();
    lane_.run.counts.companions_alone += alone;
    if (alone == 0) co_return read;
    std::string which;
    if (!companion_.example().empty()) which = fmt::format(", such as {}", companion_.example());
    if (index.repeated() > 0) which += fmt::format(", {} of them repeated keys", index.repeated());
    report_companions(lane_.run, fmt::format("{}: {} without a sample in the main shard{}",
                                             redacted(companion_.url()),
                                             counted(alone, "companion sample"), which));
    co_return read;
  }

  const joining& with_;
  lane_context& lane_;
  bool is_again_;  // reads samples again
  bool is_whole_;  // reads all of the shard, from its beginning
  std::unique_ptr<sample_reader> main_;
  companion companion_;
  lane_cursor before_hand_;
  bool is_in_hand_ = false;  // a sample of the main shard that waits for its companion, or failed
  bool has_told_ = false;
};

class joined_source final : public sample_source {
 public:
  joined_source(std::shared_ptr<const sample_source> main, joining with)
      : main_(std::move(main)), with_(std::move(with)) {}

  std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                      const lane_cursor& at) const override {
    return std::make_unique<joined_reader>(open_within(*main_, lane, which, at), with_, lane, which,
                                           at);
  }
  bool keeps_bounds() const override { return true; }
  // Not of the rule for missing ones: that may change between runs, as that for errors.
  std::uint64_t identity() const override {
    return fingerprint(
        fmt::format("{:016x}\n{}\n{}", main_->identity(), with_.pattern, with_.options.fields));
  }

 private:
  std::shared_ptr<const sample_source> main_;
  joining with_;
};

}  // namespace

result<void> add_fields(sample& to, std::vector<field> more) {
  std::size_t names = to.key.size();
  for (const field& f : to.fields) names += f.extension.size();
  for (const field& f : more) {
    names += f.extension.size();
    if (to.find(f.extension) == nullptr) continue;
    return error(errc::duplicate_field, fmt::format("both have the field '{}'", f.extension));
  }
  std::string exceeded = exceeded_limit(to.fields.size() + more.size(), names);
  if (!exceeded.empty()) return error(errc::too_large, std::move(exceeded));
  std::ranges::move(more, std::back_inserter(to.fields));
  return {};
}

void count_without_companion(ledger& counts, missing_companion how) {
  ++(how == missing_companion::skip ? counts.left_out : counts.without_companion);
}

std::string_view became(missing_companion how) {
  return how == missing_companion::skip ? "left out" : "given without its fields";
}

void report_companions(run_context& run, std::string_view line) {
  constexpr int most_told = 10;
  if (run.reported_companions++ < most_told) log_notice(line);
}

std::string companion_url(std::string_view pattern, std::string_view shard) {
  std::string out;
  for (auto at = pattern.find("{}"); at != pattern.npos; at = pattern.find("{}")) {
    out += pattern.substr(0, at);
    out += shard_stem(shard);
    pattern.remove_prefix(at + 2);
  }
  return out + std::string(pattern);
}

std::shared_ptr<const sample_source> joined_samples(std::shared_ptr<const sample_source> main,
                                                    joining with) {
  return std::make_shared<joined_source>(std::move(main), std::move(with));
}

}  // namespace millrace
