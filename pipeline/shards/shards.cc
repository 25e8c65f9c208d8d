#include "pipeline/shards/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "engine/base/check_option.h"
#include "engine/base/divided.h"
#include "engine/base/random.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/host/log.h"
#include "engine/memory/read_blocks.h"
#include "io/standard_sources.h"
#include "io/unpack/unpack.h"
#include "pipeline/state/records.h"

namespace millrace {
namespace {

// With fewer shards per lane than this, the lengths of lanes differ too much.
constexpr std::size_t enough_shards = 16;

bool is_equal(epoch_mode mode) {
  return mode == epoch_mode::equal || mode == epoch_mode::equal_repeating;
}

// The rest of a piece after `at`.
shard_ref rest_of(shard_ref piece, const lane_cursor& at) {
  if (at.offset == 0) return piece;
  piece.begin = at.offset;
  piece.before = at.before;
  piece.skip = 0;
  if (piece.samples >= 0) piece.samples -= at.given;
  return piece;
}

}  // namespace

int shard_list_options::lane_count() const {
  constexpr int usual = 8;
  return lanes > 0 ? lanes : divided_up(usual, world_size) * world_size;
}

int shard_list_options::rank_of(std::int64_t lane) const {
  return hooks.rank ? hooks.rank(lane) : static_cast<int>(lane % world_size);
}

bool deals_samples(std::size_t shards, const shard_list_options& o, std::size_t lanes) {
  if (is_equal(o.mode)) return true;
  const bool few = shards < enough_shards * lanes;
  return o.mode == epoch_mode::exact && few && o.index && o.index->has_offsets();
}

bool deals_samples(std::size_t shards, const shard_list_options& o) {
  return deals_samples(shards, o, static_cast<std::size_t>(o.lane_count()));
}

std::uint64_t with_lengths(const shard_index& index, std::uint64_t before) {
  for (const auto& s : index.shards) before = fingerprint(fmt::format("{} ", s.samples), before);
  return before;
}

std::int64_t left_out(const shard_list_options& o) {
  if (!is_equal(o.mode)) return 0;
  const std::int64_t all = o.index->samples();
  const std::int64_t over = all % o.lane_count();
  return o.mode == epoch_mode::equal || over == 0 ? over : over - o.lane_count();
}

epoch_order::epoch_order(const std::vector<std::string>& urls, const shard_list_options& options,
                         std::int64_t epoch, const epoch_tail& tail)
    : options_(options),
      epoch_(epoch),
      shards_in_all_(urls.size()),
      cuts_(deals_samples(urls.size(), options)),
      shards_(permuted(urls)) {
  if (tail.epoch != epoch) return;
  for (const auto& level : tail.levels) apply(level);
}

std::vector<std::int64_t> epoch_order::permuted(const std::vector<std::string>& urls) const {
  std::vector<std::int64_t> all = selected_by(options_.hooks, epoch_, urls);
  if (options_.hooks.arrange) {
    arrange_by(options_.hooks, epoch_, urls.size(), all);
  } else if (options_.shuffle) {
    // Fisher-Yates over the whole list: every lane sees the same permutation.
    random_stream random(seed_by(options_.hooks, epoch_, options_.seed), purpose::shard_order,
                         static_cast<std::uint64_t>(epoch_));
    for (std::size_t i = all.size(); i > 1; --i) {
      std::swap(all[i - 1], all[random.below(static_cast<std::uint32_t>(i))]);
    }
  }
  return all;
}

std::vector<shard_ref> epoch_order::lane(std::int64_t l) const {
  const std::int64_t lanes = options_.lane_count();
  std::vector<shard_ref> out;
  if (has_tail_) {
    for (auto i = static_cast<std::size_t>(l); i < rest_.size();
         i += static_cast<std::size_t>(lanes)) {
      out.push_back(rest_[i]);
    }
  } else {
    out = cuts_ ? cut(l, lanes) : dealt(l, lanes);
  }
  for (std::size_t i = 0; i < out.size(); ++i) out[i].draw = static_cast<std::int64_t>(i);
  return out;
}

std::vector<shard_ref> epoch_order::dealt(std::int64_t l, std::int64_t lanes) const {
  std::vector<shard_ref> out;
  for (auto i = static_cast<std::size_t>(l); i < shards_.size();
       i += static_cast<std::size_t>(lanes)) {
    out.push_back({.shard = shards_[i], .epoch = epoch_});
  }
  return out;
}

bool loses_shard(const error& why, const shard_ref& part, const shard_index* index) {
  if (exit_code(why.kind()) == exit_code(errc::not_found)) return true;
  if (part.begin > 0 || part.skip > 0) return false;
  if (part.samples < 0) return part.end == 0;
  return index != nullptr &&
         part.samples == index->shards[static_cast<std::size_t>(part.shard)].samples;
}

std::vector<std::uint32_t> epoch_order::whole_shards(std::int64_t l) const {
  std::vector<std::uint32_t> out;
  const auto lanes = static_cast<std::size_t>(options_.lane_count());
  out.reserve(shards_.size() / lanes + 1);
  for (auto i = static_cast<std::size_t>(l); i < shards_.size(); i += lanes) {
    out.push_back(static_cast<std::uint32_t>(shards_[i]));
  }
  return out;
}

// All samples in the order of the shards, cut into runs of equal length, one for each lane.
std::vector<shard_ref> epoch_order::cut(std::int64_t l, std::int64_t lanes) const {
  const auto& shards = options_.index->shards;
  std::int64_t all = 0;
  for (const std::int64_t s : shards_) all += shards[static_cast<std::size_t>(s)].samples;
  const std::int64_t each =
      options_.mode == epoch_mode::equal ? all / lanes : divided_up(all, lanes);
  const bool exact = options_.mode == epoch_mode::exact;
  std::int64_t from = exact ? all * l / lanes : l * each;
  std::int64_t left = exact ? all * (l + 1) / lanes - from : each;
  std::vector<shard_ref> out;
  if (all == 0) return out;
  from %= all;
  for (std::size_t i = 0; left > 0; i = (i + 1) % shards_.size()) {  // repeating wraps around
    const auto& s = shards[static_cast<std::size_t>(shards_[i])];
    if (from >= s.samples) {
      from -= s.samples;
      continue;
    }
    const std::int64_t n = std::min(s.samples - from, left);
    shard_ref piece{.shard = shards_[i], .epoch = epoch_, .skip = from, .samples = n};
    if (!s.blocks.empty()) {
      piece.begin = s.blocks[static_cast<std::size_t>(from)] * shard_index::block_bytes;
      piece.end = s.blocks[static_cast<std::size_t>(from + n)] * shard_index::block_bytes;
      piece.skip = 0;
    }
    if (from == 0 && n == s.samples) {  // read as a whole, but no more than is assigned
      piece = {.shard = shards_[i], .epoch = epoch_, .samples = exact ? -1 : n};
    }
    out.push_back(piece);
    left -= n;
    from = 0;
  }
  return out;
}

// Makes the rest from what the lanes of one level have left: first the shards that they are in the
// middle of, then the others in turn, in the order in which they would have been read.
void epoch_order::apply(const std::vector<lane_cursor>& level) {
  const auto lanes = static_cast<std::int64_t>(level.size());
  const bool cuts = deals_samples(shards_in_all_, options_, level.size());
  std::vector<std::vector<shard_ref>> of_lane;
  for (std::int64_t l = 0; l < lanes; ++l) {
    std::vector<shard_ref> mine;
    if (has_tail_) {
      for (auto i = static_cast<std::size_t>(l); i < rest_.size(); i += level.size()) {
        mine.push_back(rest_[i]);
      }
    } else {
      mine = cuts ? cut(l, lanes) : dealt(l, lanes);
    }
    of_lane.push_back(std::move(mine));
  }
  std::vector<shard_ref> left;
  for (std::size_t j = 0;; ++j) {
    bool any = false;
    for (std::size_t l = 0; l < level.size(); ++l) {
      const std::size_t at = static_cast<std::size_t>(level[l].draw) + j;
      if (at >= of_lane[l].size()) continue;
      any = true;
      left.push_back(j == 0 ? rest_of(of_lane[l][at], level[l]) : of_lane[l][at]);
    }
    if (!any) break;
  }
  rest_ = std::move(left);
  has_tail_ = true;
}

shard_order::shard_order(std::shared_ptr<const std::vector<std::string>> urls,
                         const shard_list_options& options, std::int64_t lane)
    : urls_(std::move(urls)), options_(options), lane_(lane), epoch_(options.first_epoch) {}

// Draw n of a lane is a function of n alone, so the position is the whole state.
shard_ref shard_order::drawn() {
  if (options_.hooks.select && planned_epoch_ != epoch_) {
    const auto all = selected_by(options_.hooks, epoch_, *urls_);
    if (all.empty()) {
      throw failure(error(errc::no_samples, "order_hooks.select leaves no shard to draw from")
                        .hint("select at least one shard"));
    }
    whole_.assign(all.begin(), all.end());
    planned_epoch_ = epoch_;
  }
  random_stream random(seed_by(options_.hooks, epoch_, options_.seed), purpose::shard_draw,
                       static_cast<std::uint64_t>(lane_), static_cast<std::uint64_t>(draw_));
  const bool selects = options_.hooks.select != nullptr;
  const auto n = random.below(static_cast<std::uint32_t>(selects ? whole_.size() : urls_->size()));
  return {.shard = selects ? whole_[n] : n, .draw = draw_++, .epoch = epoch_};
}

std::optional<shard_ref> shard_order::next() {
  if (options_.mode == epoch_mode::resample) return drawn();
  if (epoch_ >= options_.first_epoch + options_.epochs) return std::nullopt;
  if (planned_epoch_ != epoch_) {
    const epoch_order order(*urls_, options_, epoch_, tail_);
    const bool whole = order.is_of_whole_shards();
    whole_ = whole ? order.whole_shards(lane_) : std::vector<std::uint32_t>();
    parts_ = whole ? std::vector<shard_ref>() : order.lane(lane_);
    planned_epoch_ = epoch_;
  }
  const auto at = static_cast<std::size_t>(draw_);
  if (at >= whole_.size() + parts_.size()) {
    ++epoch_;
    draw_ = 0;
    return std::nullopt;
  }
  ++draw_;
  if (!parts_.empty()) return parts_[at];
  return shard_ref{.shard = whole_[at], .draw = draw_ - 1, .epoch = epoch_};
}

void shard_order::seek(std::int64_t epoch, std::int64_t draw, epoch_tail tail) {
  epoch_ = epoch;
  draw_ = draw;
  tail_ = std::move(tail);
  planned_epoch_ = -1;
}

namespace {

constexpr std::size_t least_member_memory = 3584_KiB;  // 8 MiB with `again` and `reads`
// An eighth of a large budget for all lanes, so that samples of any size fit into some budget.
std::size_t most_member_memory(std::size_t budget, std::size_t lanes) {
  return std::max(16_MiB, budget / 8 / std::max<std::size_t>(lanes, 1));
}

// Gives a lane's shards. Saves the beginning of the next shard; later stages overwrite that record
// if they are in the middle of one.
class shard_stream final : public stream<shard_ref> {
 public:
  shard_stream(const lane_context& lane, const shard_list_options& options)
      : id_(lane.id(cursor_record::name)),
        shards_(lane.shards),
        order_(lane.shards, options, lane.lane),
        drawn_(lane.drawn) {
    if (options.mode == epoch_mode::resample) drawn_->shards_of_a_pass = 64 + 16 * shards_->size();
  }

  awaitable<outcome> next() override {
    const auto ref = order_.next();
    if (ref && is_in_vain()) {
      co_return error(errc::no_samples, fmt::format("{} in a row gave no sample; this is the last",
                                                    counted(std::exchange(in_vain_, 0), "shard")))
          .at((*shards_)[static_cast<std::size_t>(ref->shard)])
          .hint("check that members are named KEY.EXTENSION");
    }
    co_return ref;
  }
  void save(state& to) const override {
    to.put(id_, cursor_record::of(order_.epoch(), {.draw = order_.draw()}));
  }
  void restore(const state& from) override {
    const auto [epoch, at] = cursor_record::in(from, id_);
    order_.seek(epoch, at.draw, tail_in(from));
  }

 private:
  bool is_in_vain() {
    ++drawn_->shards;
    if (std::exchange(items_before_, drawn_->items) != drawn_->items) in_vain_ = 0;
    return drawn_->is_endless() && in_vain_++ >= drawn_->shards_of_a_pass;
  }

  std::string id_;
  std::shared_ptr<const std::vector<std::string>> shards_;
  shard_order order_;
  std::shared_ptr<drawn_shards> drawn_;
  std::uint64_t items_before_ = 0;
  std::uint64_t in_vain_ = 0;  // shards since the last item
};

// The memory that reading needs, which the system is asked for once for all lanes of a run.
// Thread-safe: runs of one plan share it.
class reading_needs {
 public:
  struct needs {
    source_memory reads;
    source_memory again;
  };
  needs of(const lane_context& lane, std::span<const std::string> urls) {
    const run_context& run = lane.run;
    const std::scoped_lock lock(mutex_);
    // A later run may have the address of an earlier one.
    if (run_ != &run || lane.lane == run.place.lanes.front()) {
      needs_ = {memory_for(run.source, urls), memory_for(run.source_again, urls)};
      run_ = &run;
    }
    return needs_;
  }

 private:
  std::mutex mutex_;
  const run_context* run_ = nullptr;
  needs needs_;
};

// Sets a lane's list, and the memory to read it with. A lane without shards requires none, and
// takes what is left: it reads nothing unless it resumes an epoch that was begun with other lanes.
void equip(lane_context& lane, std::shared_ptr<const std::vector<std::string>> urls,
           const shard_list_options& o, std::size_t windows, reading_needs& of_run) {
  run_context& run = lane.run;
  const bool whole_shards = o.mode == epoch_mode::exact && !deals_samples(urls->size(), o);
  const std::size_t used = whole_shards ? std::min(lane.lanes, urls->size()) : lane.lanes;
  const bool has_shards = lane.has_shards = static_cast<std::size_t>(lane.lane) < used;
  const std::string name = fmt::format("lane {} {}", lane.lane, lane.within);
  const auto [need, need_again] = of_run.of(lane, *urls);
  lane_memory& memory = lane.memory;
  memory.reads = run.memory.share(name + "reads", has_shards ? need.least : 0, need.most,
                                  read_block_allocator::instance());
  memory.least_reads = need.least;
  // Memory for two decoders: samples are read again while a shard is open.
  memory.members =
      run.memory.share(name + "members", has_shards ? least_member_memory : 0,
                       most_member_memory(run.memory.budget(), lane.lanes_here) + 2 * windows);
  memory.needed = {{memory.reads, need.least}, {memory.members, least_member_memory}};
  memory.again = run.memory.share(name + "read again", need_again.least, need_again.most,
                                  read_block_allocator::instance());
  lane.shards = std::move(urls);
  lane.index = o.index;
  if (!has_shards) return;
  run.memory.when_divided([&run, first = lane.shards->front(), reads = memory.reads,
                           open = std::min(lane.lanes_here, used)] {
    if (run.reported_lost_rate) return;
    const auto lost = rate_lost(run.source, first, reads->limit(), open, run.memory.budget());
    run.reported_lost_rate = lost.has_value();
    if (lost) log_notice(*lost);
  });
}

error impossible_epoch(std::string what, std::string_view what_to_do) {
  return error(errc::usage, std::move(what)).hint(what_to_do);
}

void check_hooks(const shard_list_options& o) {
  if (o.mode == epoch_mode::resample && o.hooks.arrange) {
    throw failure(impossible_epoch("order_hooks.arrange cannot be combined with resampling",
                                   "drawn shards have no order: use order_hooks.seed or select"));
  }
  if (o.hooks.rank) check_ranks(o.hooks, o.lane_count(), o.world_size, is_equal(o.mode));
}

void check_counts(const std::vector<std::string>& urls, const shard_list_options& o) {
  if (o.index && o.index->shards.size() != urls.size()) {
    throw failure(impossible_epoch(
        fmt::format("the index has {} shards, the list {}", o.index->shards.size(), urls.size()),
        "use the list of the index"));
  }
  if (is_equal(o.mode) && !o.index) {
    throw failure(impossible_epoch("an equal epoch needs the number of samples of every shard",
                                   "`millrace index create` counts them; pass its index"));
  }
  if (is_equal(o.mode) && o.lane_count() % o.world_size != 0) {
    throw failure(impossible_epoch(
        fmt::format("{} lanes cannot be divided evenly among {} ranks, which an equal epoch needs",
                    o.lane_count(), o.world_size),
        fmt::format("use a multiple of {}", o.world_size)));
  }
  const auto ranks = static_cast<std::int64_t>(o.world_size);
  const bool samples = deals_samples(urls.size(), o);
  const std::int64_t units = samples ? o.index->samples() : std::ssize(urls);
  if (o.mode != epoch_mode::resample && units < ranks) {
    throw failure(impossible_epoch(
        fmt::format("{} cannot feed {}",
                    counted(static_cast<std::uint64_t>(units), samples ? "sample" : "shard"),
                    counted(static_cast<std::uint64_t>(ranks), "rank")),
        samples ? "use fewer ranks"
                : "an index with offsets (`millrace index create --offsets`) splits shards"));
  }
}

void check(const std::vector<std::string>& urls, const shard_list_options& o) {
  if (urls.empty()) throw failure(error(errc::usage, "a plan without shards"));
  if (urls.size() > ~std::uint32_t{0}) throw failure(error(errc::usage, "more than 2^32 shards"));
  constexpr int most_lanes = 1 << 16;
  constexpr std::int64_t most_epochs = std::numeric_limits<std::int64_t>::max();
  check_option("shard_list_options.world_size", o.world_size, 1, most_lanes);
  check_option("shard_list_options.rank", o.rank, 0, o.world_size - 1);
  check_option("shard_list_options.epochs", o.epochs, 1, most_epochs);
  check_option("shard_list_options.first_epoch", o.first_epoch, 0,
               std::min(most_counted, most_epochs - o.epochs));
  check_option("shard_list_options.lanes", o.lanes, 0, most_lanes);
  if (o.lane_count() < o.world_size) {
    throw failure(impossible_epoch(
        fmt::format("{} lanes for {} ranks", o.lane_count(), o.world_size),
        fmt::format("use {0} lanes or more, ideally a multiple of {0}", o.world_size)));
  }
  check_hooks(o);
  check_counts(urls, o);
}

}  // namespace

void check_can_read(const lane_context& lane) {
  for (const auto& part : lane.parts) check_can_read(*part.lane);
  if (!lane.parts.empty()) return;
  const auto is_enough = [](const auto& each) { return each.first->limit() >= each.second; };
  if (std::ranges::all_of(lane.memory.needed, is_enough)) return;
  throw failure(
      error(errc::no_memory,
            fmt::format(
                "lane {} of {} has none of the {} shards, and the budget leaves it no memory to "
                "read its part of the saved epoch",
                lane.lane, lane.lanes, lane.shards->size()))
          .hint(fmt::format("raise engine_options.memory_bytes (MILLRACE_MEMORY), or resume with "
                            "at most {} lanes",
                            lane.shards->size())));
}

void check_can_read(const lane_context& lane, std::int64_t shard) {
  const auto* const part = lane.part_of(shard);
  if (part == nullptr) return check_can_read(lane);
  check_can_read(*part->lane, shard - part->first_shard);
}

// Reports shards that are empty only by the index: a wrong index would omit their samples silently.
void report_empty_shards(const shard_index& index) {
  constexpr std::int64_t empty_archive = 10'240;  // as tar pads one
  const auto is_odd = [](const shard_index::shard& s) {
    return s.samples == 0 && s.bytes > empty_archive;
  };
  const auto odd = std::ranges::count_if(index.shards, is_odd);
  if (odd == 0) return;
  const auto& first = *std::ranges::find_if(index.shards, is_odd);
  log_notice(
      fmt::format("the index says that {} no samples, so nothing is read there (first: {} of {}); "
                  "`millrace verify --index` compares the index with the shards",
                  odd == 1 ? "1 shard has" : fmt::format("{} shards have", odd),
                  redacted(first.url), format_bytes(static_cast<std::size_t>(first.bytes))));
}

lane_plan<shard_ref> shards(std::vector<std::string> urls, const shard_list_options& options) {
  check(urls, options);
  if (options.index && options.rank == 0) report_empty_shards(*options.index);
  if (const std::int64_t over = left_out(options); over != 0 && options.rank == 0) {
    log_notice(fmt::format("{} {} of {} in each epoch, so that all {} lanes have as many",
                           over > 0 ? "leaving out" : "repeating", std::abs(over),
                           counted(static_cast<std::uint64_t>(options.index->samples()), "sample"),
                           options.lane_count()));
  }
  const auto shared = std::make_shared<const shard_list_options>(options);
  const auto list = std::make_shared<const std::vector<std::string>>(std::move(urls));
  const std::size_t windows = memory_for_windows(*list);
  const auto needs = std::make_shared<reading_needs>();
  return {[shared, list, windows, needs](lane_context& lane) -> std::unique_ptr<stream<shard_ref>> {
            equip(lane, list, *shared, windows, *needs);
            return std::make_unique<shard_stream>(lane, *shared);
          },
          list, shared};
}

lane_plan<shard_ref> indexed_shards(shard_index index, shard_list_options options) {
  std::vector<std::string> urls;
  urls.reserve(index.shards.size());
  for (const auto& s : index.shards) urls.push_back(s.url);
  options.index = std::make_shared<const shard_index>(std::move(index));
  return shards(std::move(urls), options);
}

}  // namespace millrace
