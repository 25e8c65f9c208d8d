#include "pipeline/fetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "pipeline/compacted.h"
#include "pipeline/sample_source.h"

namespace millrace {
namespace {

// A gap that costs more to read through than to open the shard again.
constexpr std::int64_t wide_gap = 4 << 20;

result<sample> through_stages(const lane_context& lane, sample s, std::size_t stages) {
  for (std::size_t i = 0; i < stages; ++i) {
    auto out = lane.sample_stages[i](std::move(s));
    if (!out) return out.error();
    if (!*out) {
      return error(errc::bad_state, "a sample stage leaves out now what it let pass before")
          .hint("sample stages must be pure functions");
    }
    s = std::move(**out);
  }
  return s;
}

// Those of a mix, source by source.
awaitable<result<std::vector<sample>>> fetch_of_parts(lane_context& lane,
                                                      std::shared_ptr<memory_share> memory,
                                                      std::vector<origin> where,
                                                      std::size_t stages) {
  std::vector<sample> out(where.size());
  for (auto p = lane.parts.begin(); p != lane.parts.end(); ++p) {
    const bool is_last = p + 1 == lane.parts.end();
    std::vector<std::size_t> which;
    std::vector<origin> there;
    for (std::size_t i = 0; i < where.size(); ++i) {
      const std::int64_t shard = where[i].shard;
      if (shard < p->first_shard || (!is_last && shard >= (p + 1)->first_shard)) continue;
      which.push_back(i);
      there.push_back(where[i]);
      there.back().shard -= p->first_shard;
    }
    if (which.empty()) continue;
    auto fetched =
        co_await fetch_samples(*p->lane, memory, std::move(there), p->lane->sample_stages.size());
    if (!fetched) co_return fetched.error();
    for (std::size_t i = 0; i < which.size(); ++i) {
      auto staged = through_stages(lane, std::move((*fetched)[i]), stages);
      if (!staged) co_return staged.error();
      out[which[i]] = std::move(*staged);
      out[which[i]].where = where[which[i]];
    }
  }
  co_return out;
}

}  // namespace

awaitable<result<std::vector<sample>>> fetch_samples(lane_context& lane,
                                                     std::shared_ptr<memory_share> memory,
                                                     std::vector<origin> where,
                                                     std::size_t stages) {
  if (!lane.parts.empty()) {
    co_return co_await fetch_of_parts(lane, std::move(memory), std::move(where), stages);
  }
  if (!memory) memory = lane.members;
  std::vector<std::size_t> by_place(where.size());
  std::iota(by_place.begin(), by_place.end(), std::size_t{0});
  std::ranges::sort(by_place, {},
                    [&](std::size_t i) { return std::pair(where[i].shard, where[i].offset); });
  std::vector<sample> out(where.size());
  std::size_t taken = 0;
  lane_context again = lane.reading_again();
  std::unique_ptr<sample_reader> samples;
  std::int64_t shard = -1;
  std::int64_t reached = 0;           // the offset of the last sample read
  std::optional<std::size_t> before;  // which of `out` was the last one read
  for (const std::size_t i : by_place) {
    const origin& wanted = where[i];
    if (wanted.shard < 0 || wanted.offset < 0 ||
        static_cast<std::size_t>(wanted.shard) >= lane.shards->size()) {
      co_return error(errc::bad_state, "the saved state names a shard that is not in the list");
    }
    if (before && shard == wanted.shard && where[*before].offset == wanted.offset) {
      out[i] = out[*before];  // held twice
      out[i].where = wanted;
      continue;
    }
    if (!samples || shard != wanted.shard || wanted.offset > reached + wide_gap) {
      samples = lane.format->open(again, {.shard = wanted.shard}, {.offset = wanted.offset});
      shard = wanted.shard;
    }
    // What is not wanted keeps no read buffer while the next one is read.
    std::optional<sample> found;
    while (!found) {
      auto next = co_await samples->next();
      if (!next && next.error().is_skippable() && !samples->is_broken()) continue;
      if (!next) co_return next.error();
      if (!*next) break;
      reached = (*next)->where.offset;
      if (reached >= wanted.offset) found = std::move(**next);
    }
    if (!found || found->where.offset != wanted.offset) {
      co_return error(errc::bad_state, "the shard has no sample where the saved state says")
          .at((*lane.shards)[static_cast<std::size_t>(wanted.shard)])
          .offset(static_cast<std::uint64_t>(wanted.offset))
          .hint("the shard was replaced since the state was saved");
    }
    auto staged = through_stages(lane, std::move(*found), stages);
    if (!staged) co_return staged.error();
    taken += staged->payload_bytes();
    if (taken > memory->limit()) {
      co_return error(errc::no_memory,
                      fmt::format("what was held when the state was saved does not fit into {}",
                                  format_bytes(memory->limit())))
          .hint("raise MILLRACE_MEMORY, or resume with more ranks");
    }
    auto own = co_await compacted(memory, std::move(*staged));
    if (!own) co_return own.error();
    out[i] = std::move(*own);
    out[i].where = wanted;
    before = i;
  }
  co_return out;
}

}  // namespace millrace
