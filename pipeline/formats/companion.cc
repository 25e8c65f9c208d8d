#include "pipeline/formats/companion.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "engine/base/units.h"
#include "engine/host/log.h"
#include "engine/memory/read_blocks.h"
#include "io/standard_sources.h"
#include "io/unpack/unpack.h"
#include "pipeline/samples/fields.h"

namespace millrace {
namespace {

// Memory that a held sample takes beyond its fields and names.
constexpr std::size_t bytes_of_held = 256;
// Samples read out of order before a notice says so: sorting is not worth it for a few.
constexpr std::size_t many_returns = 8;
constexpr std::size_t least_members = 1792_KiB;  // a decoder's pieces, and members

bool is_stop(const error& why) {
  return why.kind() == errc::stopped;
}

}  // namespace

std::shared_ptr<companion_memory> companion_memory::claimed(lane_context& lane,
                                                            const join_options& how,
                                                            const std::string& url) {
  run_context& run = lane.run;
  const std::array urls = {url};
  const std::size_t windows = memory_for_windows(urls);
  const std::size_t lanes = std::max<std::size_t>(lane.lanes_here, 1);
  const std::size_t budget = run.memory.budget();
  const auto part_of = [&](std::size_t least, std::size_t divisor) {
    return std::max(least, budget / divisor / lanes);
  };
  const auto claim = [&](const std::string& name, const source_options& options, bool is_needed) {
    const source_memory need = memory_for(options, urls);
    reading out;
    out.reads = run.memory.share(name + "reads", is_needed ? need.least : 0, need.most,
                                 read_block_allocator::instance());
    out.least_reads = need.least;
    // A sample is read while the one after it has begun: twice a sixteenth.
    out.members = run.memory.share(name + "members", is_needed ? least_members : 0,
                                   part_of(8_MiB, 8) + windows);
    lane.memory.needed.emplace_back(out.reads, need.least);
    lane.memory.needed.emplace_back(out.members, least_members);
    return out;
  };
  const std::string name = fmt::format("lane {} {}companion ", lane.lane, lane.within);
  auto out = std::make_shared<companion_memory>();
  out->in_turn = claim(name, run.source, lane.has_shards);  // as for main shards
  out->again = claim(name + "again ", run.source_again, true);
  out->held =
      run.memory.share(name + "held", 256_KiB, std::max(how.held_bytes, part_of(256_KiB, 16)));
  out->index = run.memory.share(name + "index", 256_KiB, part_of(256_KiB, 32));
  return out;
}

companion::companion(lane_context& lane, companion_memory& memory, const join_options& how,
                     std::string url, bool is_again, bool afresh)
    : lane_(lane),
      memory_(memory),
      how_(how),
      url_(std::make_shared<const std::string>(std::move(url))),
      untar_(std::make_shared<const untar_options>(how.untar)),
      index_(memory.indexes.of(*url_, afresh)) {
  const companion_memory::reading& with = is_again ? memory.again : memory.in_turn;
  own_lane_ = std::make_unique<lane_context>(lane_context{
      .run = lane.run, .lane = lane.lane, .lanes = lane.lanes, .lanes_here = lane.lanes_here});
  own_lane_->shards = std::make_shared<const std::vector<std::string>>(1, *url_);
  own_lane_->memory.reads = with.reads;
  own_lane_->memory.least_reads = with.least_reads;
  own_lane_->memory.members = with.members;
  if (is_again) own_lane_->memory.again = with.reads;
}

void companion::open_at(std::int64_t offset, const seen_before& before) {
  reader_.reset();  // first, to free its read buffers
  reader_ = std::make_unique<tar_reader>(*own_lane_, untar_, shard_ref{},
                                         lane_cursor{.offset = offset, .before = before});
}

error companion::named(error why, const std::string& key) const {
  if (is_stop(why)) return why;
  if (why.where().empty()) why.at(*url_);
  return why.key(key);
}

// The error of a damaged sample, which may be the one looked for.
error companion::perhaps(error damaged, const std::string& key) const {
  const std::string& its_own = damaged.sample_key();
  if (!its_own.empty() && its_own != key) {
    damaged.reworded(
        fmt::format("the companion has no whole sample of this key, and {} cannot be read: {}",
                    its_own, damaged.what()));
  }
  return named(std::move(damaged), key);
}

// Notes that the shard gives nothing after what is in the index. An error that ends the run is
// returned instead.
std::optional<error> companion::ended_by(error why) {
  if (!why.is_skippable()) return why;
  reader_.reset();
  index_->is_complete = true;
  index_->broken = std::move(why);
  return std::nullopt;
}

void companion::note_reached() {
  index_->reached = reader_->offset();
  index_->before = reader_->before();
}

awaitable<result<std::optional<sample>>> companion::next_unknown() {
  if (!reader_ || reader_->offset() != index_->reached) open_at(index_->reached, index_->before);
  for (;;) {
    if (lane_.run.is_stopped()) co_return run_stopped();
    auto next = co_await reader_->next();
    if (!next && next.error().is_skippable() && !reader_->is_broken()) {
      if (!index_->damaged) index_->damaged = next.error();
      note_reached();
      continue;
    }
    if (!next) {
      if (auto fatal = ended_by(next.error())) co_return *fatal;
      co_return std::optional<sample>();
    }
    note_reached();
    if (!*next) {
      index_->is_complete = true;
      co_return std::optional<sample>();
    }
    const std::size_t most = memory_.index->limit() / companion_index::bytes_of_one;
    if (!memory_.indexes.make_room(most)) {
      ended_by(error(errc::too_large,
                     fmt::format("a companion shard of more than {} samples, for which the budget "
                                 "leaves no room",
                                 most))
                   .offset(static_cast<std::uint64_t>((*next)->where.offset))
                   .hint("make smaller shards, or raise engine_options.memory_bytes "
                         "(MILLRACE_MEMORY)")
                   .skippable());
      co_return std::optional<sample>();
    }
    if (!index_->add((*next)->key, (*next)->where.offset)) continue;
    co_return wanted(std::move(**next));
  }
}

awaitable<result<std::optional<sample>>> companion::find(std::string key) {
  if (auto here = held(key)) co_return here;
  bool has_dropped = false;
  for (;;) {
    if (const auto offset = index_->find(key)) {
      auto found = co_await read_at(key, *offset);
      if (found) index_->note_asked(key);
      co_return found;
    }
    const bool has_no_shard =
        index_->broken && index_->broken->kind() == errc::not_found && index_->reached == 0;
    if (has_no_shard && how_.missing != missing_companion::error) co_return std::optional<sample>();
    if (index_->is_complete && index_->broken) co_return named(*index_->broken, key);
    if (index_->is_complete && index_->damaged) co_return perhaps(*index_->damaged, key);
    if (index_->is_complete) {
      has_reached_end_ = true;
      co_return std::optional<sample>();
    }
    auto next = co_await next_unknown();
    if (!next) co_return next.error();
    if (!*next) continue;
    if ((*next)->key == key) {
      // What is held is older than what was dropped: of the companion's samples that the main
      // shard lacks.
      if (has_dropped) {
        held_.clear();
        held_bytes_ = 0;
      }
      index_->note_asked(key);
      co_return next;
    }
    has_dropped |= !hold(std::move(**next));
  }
}

awaitable<result<std::optional<sample>>> companion::read_at(std::string key, std::int64_t offset) {
  const bool is_after = reader_ && reader_->offset() <= offset;
  const bool is_near =
      is_after && (offset - reader_->offset() <= wide_gap ||
                   compression_named(*url_) != compression::none);  // which is read through anyway
  if (!is_near) {
    const bool has_returned = std::exchange(has_reached_end_, false);
    if (reader_ && !is_after && !has_returned) report_order();
    open_at(offset);
  }
  for (;;) {
    if (lane_.run.is_stopped()) co_return run_stopped();
    auto next = co_await reader_->next();
    const bool is_on_the_way = reader_->offset() <= offset;
    if (!next && next.error().is_skippable() && !reader_->is_broken() && is_on_the_way) continue;
    if (!next) {
      if (!is_stop(next.error())) reader_.reset();
      co_return named(next.error(), key);
    }
    const bool is_there = *next && (*next)->where.offset == offset && (*next)->key == key;
    if (is_there) co_return wanted(std::move(**next));
    if (!*next || (*next)->where.offset >= offset) {
      co_return named(error(errc::changed, "the companion shard was replaced while it was read")
                          .offset(static_cast<std::uint64_t>(offset))
                          .hint("replace shards between runs, under other names")
                          .skippable(),
                      key);
    }
    const bool is_first = index_->find((*next)->key) == (*next)->where.offset;
    if (is_first) hold(wanted(std::move(**next)));
  }
}

awaitable<result<void>> companion::read_rest() {
  while (!index_->is_complete) {
    auto next = co_await next_unknown();
    if (!next) co_return next.error();
    if (*next && example_.empty()) example_ = (*next)->key;
  }
  co_return result<void>();
}

sample companion::wanted(sample s) const {
  if (!how_.fields.empty()) {
    std::erase_if(s.fields, [&](const field& f) { return !matches_any(how_.fields, f.extension); });
  }
  return s;
}

// Copies it, so that it keeps no read buffer. False if there is no room.
bool companion::hold(sample s) {
  std::size_t names = s.key.size() + bytes_of_held;
  for (const field& f : s.fields) names += f.extension.size();
  const std::size_t payload = s.payload_bytes();
  const std::size_t most = how_.held_bytes > 0 ? std::min(how_.held_bytes, memory_.held->limit())
                                               : memory_.held->limit();
  if (held_bytes_ + names + charge_of(payload) > most) return false;
  if (held_.contains(s.key)) return true;
  // Without waiting: what was given is in this memory as well, and later stages may keep it.
  buffer copy = memory_.held->try_acquire(std::max<std::size_t>(payload, 1));
  if (!copy) return false;
  std::size_t at = 0;
  for (const field& f : s.fields) {
    if (!f.data.empty()) std::memcpy(copy.data() + at, f.data.data(), f.data.size());
    at += f.data.size();
  }
  const bytes whole = std::move(copy).freeze(payload);
  at = 0;
  for (field& f : s.fields) {
    const std::size_t size = f.data.size();
    f.data = whole.slice(at, size);
    at += size;
  }
  held_bytes_ += names + charge_of(payload);
  std::string key = s.key;
  held_.emplace(std::move(key), std::move(s));
  return true;
}

std::optional<sample> companion::held(const std::string& key) {
  const auto found = held_.find(key);
  if (found == held_.end()) return std::nullopt;
  sample out = std::move(found->second);
  held_.erase(found);
  std::size_t names = out.key.size() + bytes_of_held;
  for (const field& f : out.fields) names += f.extension.size();
  held_bytes_ -= names + charge_of(out.payload_bytes());
  index_->note_asked(key);
  return out;
}

void companion::report_order() {
  if (++returns_ != many_returns || std::exchange(lane_.run.reported_other_order, true)) return;
  log_notice(fmt::format(
      "{} is in another order than its main shard: its samples are read one by one; sort both "
      "alike, or raise join_options.held_bytes",
      redacted(*url_)));
}

}  // namespace millrace
