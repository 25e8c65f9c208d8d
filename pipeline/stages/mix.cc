#include "pipeline/stages/mix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>

#include "engine/base/random.h"
#include "pipeline/state/records.h"

namespace millrace {
namespace {

// The record of a mix in a lane.
struct mix_numbers {
  std::int64_t identity = 0;  // a fingerprint
  std::int64_t epoch = 0;
  std::int64_t position = 0;             // in the random numbers
  std::int64_t turn = 0;                 // the source that gives the next sample
  std::vector<std::int64_t> ended = {};  // of each source: 1 if it has ended in this epoch, or 0
  // Of each source: the number of runs of epochs at whose ends it had not ended, and these runs.
  // Empty: saved by an older version.
  std::vector<std::int64_t> runs = {};

  // Nullopt if the record, of a mix with this many sources, does not exist or is too short.
  static std::optional<mix_numbers> in(const state::record* r, std::size_t sources) {
    constexpr std::size_t head = 4;
    if (r == nullptr || r->size() < head + sources) return std::nullopt;
    const auto of_ended = std::span(*r).subspan(head, sources);
    const auto of_runs = std::span(*r).subspan(head + sources);
    return mix_numbers{.identity = (*r)[0],
                       .epoch = (*r)[1],
                       .position = (*r)[2],
                       .turn = (*r)[3],
                       .ended = {of_ended.begin(), of_ended.end()},
                       .runs = {of_runs.begin(), of_runs.end()}};
  }
  state::record of() const {
    state::record r{identity, epoch, position, turn};
    r.insert(r.end(), ended.begin(), ended.end());
    r.insert(r.end(), runs.begin(), runs.end());
    return r;
  }
};

// Identifies a mix in a state.
struct mix_identity {
  std::int64_t now = 0;
  // As computed by older versions, which ignored the lengths of shards whose samples are assigned
  // to lanes.
  std::int64_t before = 0;
};

class mix_stream final : public stream<sample> {
 public:
  struct part {
    std::unique_ptr<lane_context> lane;
    std::unique_ptr<stream<sample>> samples;
    std::int64_t first_shard = 0;  // the number of shards in the sources before it
    double weight = 1;
    bool ended = false;  // has no more samples in this epoch
  };

  mix_stream(lane_context& lane, const mix_options& options, mix_identity identity,
             const shard_list_options& job, std::vector<part> parts)
      : lane_(static_cast<std::uint64_t>(lane.lane)),
        id_(lane.id(mix_record)),
        options_(options),
        identity_(identity),
        parts_(std::move(parts)) {
    if (job.mode != epoch_mode::resample) end_ = job.first_epoch + job.epochs;
    if (!end_) {
      for (const part& p : parts_) lane.drawn->of_parts.push_back(p.lane->drawn);
    }
    begin_epoch(job.first_epoch);
  }

  awaitable<outcome> next() override {
    if (end_ && epoch_ >= *end_) co_return std::optional<sample>();
    for (;;) {
      if (is_over()) {
        end_epoch();
        co_return std::optional<sample>();
      }
      if (!before_draw_) {
        before_draw_ = at();
        drawn_ = draw();
      }
      // held over co_await: parts_ is never resized
      part& drawn = parts_[drawn_];
      auto item = co_await drawn.samples->next();
      // The same part will be asked again. Its state is after the failed item as soon as this
      // stream's state is after the draw.
      if (!item) ++drawn.lane->drawn->items;
      if (!item) co_return item;
      before_draw_.reset();
      if (!*item) {
        drawn.ended = true;
        continue;
      }
      (*item)->where.shard += drawn.first_shard;
      (*item)->where.epoch = epoch_;
      co_return item;
    }
  }

  void leave_failed() override {
    if (before_draw_) parts_[drawn_].samples->leave_failed();
  }

  void save(state& to) const override {
    const auto [position, turn] = before_draw_.value_or(at());
    mix_numbers saved{.identity = identity_.now,
                      .epoch = epoch_,
                      .position = static_cast<std::int64_t>(position),
                      .turn = static_cast<std::int64_t>(turn)};
    for (const part& p : parts_) {
      const std::size_t before = to.held(pending_record).size();
      p.samples->save(to);
      for (origin& o : to.held_from(pending_record, before)) o.shard += p.first_shard;
      saved.ended.push_back(p.ended ? 1 : 0);
    }
    for (const part& p : parts_) {
      const auto& runs = p.lane->epochs.unfinished;
      saved.runs.push_back(std::ssize(runs));
      for (const auto& [from, to_epoch] : runs) {
        saved.runs.insert(saved.runs.end(), {from, to_epoch});
      }
    }
    to.put(id_, saved.of());
  }

  void restore(const state& from) override {
    const auto saved = mix_numbers::in(from.find(id_), parts_.size());
    if (!saved || (saved->identity != identity_.now && saved->identity != identity_.before)) {
      throw failure(error(errc::bad_state, "the saved state is not one of this mix")
                        .hint("resume with the same sources, weights, seeds, and indexes"));
    }
    begin_epoch(saved->epoch);
    random_.seek(static_cast<std::uint64_t>(saved->position));
    turn_ = static_cast<std::size_t>(saved->turn) % parts_.size();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      parts_[i].ended = saved->ended[i] != 0;
      parts_[i].samples->restore(from);
    }
    restore_epochs(saved->runs);
  }

 private:
  using position = std::pair<std::uint64_t, std::size_t>;  // in the random numbers; whose turn

  position at() const { return {random_.position(), turn_}; }

  bool is_over() const {
    const auto ended = [](const part& p) { return p.ended; };
    return options_.ends == mix_options::until::all_end ? std::ranges::all_of(parts_, ended)
                                                        : std::ranges::any_of(parts_, ended);
  }

  void restore_epochs(std::span<const std::int64_t> runs) {
    for (const part& p : parts_) {
      auto& unfinished = p.lane->epochs.unfinished;
      unfinished.clear();
      if (runs.empty()) continue;  // saved by an older version
      const auto count = static_cast<std::size_t>(runs.front());
      runs = runs.subspan(1);
      if (count > runs.size() / 2) throw failure(senseless(mix_record));
      for (std::size_t i = 0; i < count; ++i) {
        unfinished.emplace_back(runs[2 * i], runs[2 * i + 1]);
        const auto& [from, to] = unfinished.back();
        if (from < 0 || from > to) throw failure(senseless(mix_record));
      }
      runs = runs.subspan(2 * count);
    }
  }

  void end_epoch() {
    for (const part& p : parts_) {
      if (!p.ended) p.lane->epochs.goes_on_after(epoch_);
    }
    begin_epoch(epoch_ + 1);
  }

  void begin_epoch(std::int64_t epoch) {
    epoch_ = epoch;
    random_ = random_stream(options_.seed, purpose::mix, static_cast<std::uint64_t>(epoch), lane_);
    turn_ = 0;
    for (part& p : parts_) p.ended = false;
  }

  // Draws one of the parts that have not ended.
  std::size_t draw() {
    if (options_.by == mix_options::order::round_robin) {
      while (parts_[turn_].ended) turn_ = (turn_ + 1) % parts_.size();
      return std::exchange(turn_, (turn_ + 1) % parts_.size());
    }
    double all = 0;
    for (const part& p : parts_) all += p.ended ? 0 : p.weight;
    double left = random_.uniform() * all;
    std::size_t last = 0;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].ended) continue;
      last = i;
      if (left < parts_[i].weight) break;
      left -= parts_[i].weight;
    }
    return last;  // reached by rounding errors
  }

  std::uint64_t lane_;
  std::string id_;
  mix_options options_;
  mix_identity identity_;
  std::vector<part> parts_;
  std::int64_t epoch_ = 0;
  std::optional<std::int64_t> end_;  // one past the last epoch
  random_stream random_{0, purpose::mix};
  std::size_t turn_ = 0;
  std::size_t drawn_ = 0;                // the part being asked, while before_draw_ is set
  std::optional<position> before_draw_;  // saved until the drawn part has yielded something
};

error impossible_mix(std::string what, std::string_view what_to_do) {
  return error(errc::usage, "a mix " + std::move(what)).hint(what_to_do);
}

bool is_endless(const mix_source& s) {
  return s.samples.options->mode == epoch_mode::resample;
}

void check_same_job(const shard_list_options& one, const shard_list_options& other) {
  if (one.rank != other.rank || one.world_size != other.world_size ||
      one.lane_count() != other.lane_count()) {
    throw failure(impossible_mix(
        fmt::format("of sources with different ranks or lanes: rank {} of {} with {} lanes, "
                    "and rank {} of {} with {}",
                    one.rank, one.world_size, one.lane_count(), other.rank, other.world_size,
                    other.lane_count()),
        "give all sources the same rank, world size and lanes"));
  }
}

void check_epochs(const std::vector<mix_source>& sources, const mix_options& options) {
  const bool all_end = options.ends == mix_options::until::all_end;
  const bool any_endless = std::ranges::any_of(sources, is_endless);
  if (all_end && any_endless && !std::ranges::all_of(sources, is_endless)) {
    throw failure(
        impossible_mix("that ends when all of its sources have ended, one of which never ends",
                       "let it end with the first source that ends, or resample all"));
  }
  const shard_list_options* finite = nullptr;
  for (const mix_source& s : sources) {
    const shard_list_options& o = *s.samples.options;
    if (is_endless(s)) continue;
    if (finite != nullptr && (finite->epochs != o.epochs || finite->first_epoch != o.first_epoch)) {
      throw failure(
          impossible_mix("of sources with different epochs", "give all sources the same epochs"));
    }
    finite = &o;
    const std::size_t shards = s.samples.shards->size();
    const auto lanes = static_cast<std::size_t>(o.lane_count());
    if (!all_end && shards < lanes && !deals_samples(shards, o)) {
      throw failure(impossible_mix(
          fmt::format("that ends with the first source that ends: one of {} shards has nothing "
                      "for some of {} lanes",
                      shards, lanes),
          "resample that source, use fewer lanes, or give its index with offsets"));
    }
  }
}

// Fingerprints everything that the order of a mix depends on, except the lists of its sources and
// the nested mixes, which verify themselves.
mix_identity identity_of(const std::vector<mix_source>& sources, const mix_options& options) {
  const auto signed_of = [](std::uint64_t n) { return static_cast<std::int64_t>(n); };
  std::uint64_t out = fingerprint(fmt::format(
      "{} {} {}", options.seed, static_cast<int>(options.by), static_cast<int>(options.ends)));
  for (const mix_source& s : sources) {
    const shard_list_options& o = *s.samples.options;
    out = fingerprint(fmt::format(" {} {} {} {} {}", s.weight, s.samples.shards->size(), o.seed,
                                  static_cast<int>(o.mode), o.shuffle),
                      out);
  }
  const std::uint64_t before = out;
  for (const mix_source& s : sources) {
    const bool deals = deals_samples(s.samples.shards->size(), *s.samples.options);
    out = fingerprint(deals ? " dealt" : " whole", out);
    if (deals) out = with_lengths(*s.samples.options->index, out);
  }
  return {.now = signed_of(out), .before = signed_of(before)};
}

std::unique_ptr<stream<sample>> make_mix(lane_context& lane, const mix_options& options,
                                         const std::vector<mix_source>& sources,
                                         mix_identity identity, const shard_list_options& job) {
  std::vector<mix_stream::part> parts;
  std::int64_t first_shard = 0;
  for (const mix_source& s : sources) {
    mix_stream::part made;
    made.lane = s.samples.traits.lane_of(lane.run, lane.lane, lane.lanes, lane.lanes_here);
    made.lane->within = fmt::format("{}{}{}/", lane.within, mix_record, parts.size());
    made.lane->epochs = {.first = s.samples.options->first_epoch, .first_of_mix = job.first_epoch};
    made.samples = s.samples.make(*made.lane);
    made.first_shard = first_shard;
    made.weight = s.weight;
    lane.parts.push_back({first_shard, made.lane.get()});
    first_shard += std::ssize(*s.samples.shards);
    parts.push_back(std::move(made));
  }
  return std::make_unique<mix_stream>(lane, options, identity, job, std::move(parts));
}

}  // namespace

lane_plan<sample> mix(std::vector<mix_source> sources, const mix_options& options) {
  if (sources.empty()) throw failure(impossible_mix("of no sources", "give at least one"));
  std::vector<std::string> list;
  double weights = 0;
  for (const mix_source& s : sources) {
    weights += s.weight;
    if (!std::isfinite(s.weight) || s.weight <= 0) {
      throw failure(impossible_mix(fmt::format("with a weight of {}", s.weight),
                                   "weights are finite, and more than 0"));
    }
    check_same_job(*sources.front().samples.options, *s.samples.options);
    list.insert(list.end(), s.samples.shards->begin(), s.samples.shards->end());
  }
  if (!std::isfinite(weights)) {
    throw failure(impossible_mix("with weights whose sum is too large for a number",
                                 "divide all weights by one number"));
  }
  check_epochs(sources, options);
  // The options of the first source that ends, if any does, stand for all.
  const auto finite = std::ranges::find_if_not(sources, is_endless);
  shard_list_options whole = *(finite == sources.end() ? sources.front() : *finite).samples.options;
  if (finite != sources.end()) whole.mode = epoch_mode::exact;
  whole.index.reset();
  const mix_identity identity = identity_of(sources, options);
  const auto job = std::make_shared<const shard_list_options>(std::move(whole));
  const bool reads_ahead = std::ranges::any_of(
      sources, [](const mix_source& s) { return s.samples.traits.reads_ahead; });
  auto make = [options, identity, job,
               sources = std::make_shared<const std::vector<mix_source>>(std::move(sources))](
                  lane_context& lane) {
    return detail::measured(lane.run, "mix", make_mix(lane, options, *sources, identity, *job));
  };
  return {std::move(make),
          std::make_shared<const std::vector<std::string>>(std::move(list)),
          job,
          {.records = {{mix_record, nullptr}}, .reads_ahead = reads_ahead}};
}

}  // namespace millrace
