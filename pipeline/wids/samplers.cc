#include "pipeline/wids/samplers.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "engine/base/check_option.h"
#include "engine/base/divided.h"
#include "engine/base/error.h"
#include "engine/base/random.h"

namespace millrace {
namespace {

constexpr std::int64_t epoch_stride = 1289738273;

}  // namespace

range_shuffle::range_shuffle(std::vector<index_range> ranges, std::int64_t seed, std::int64_t epoch,
                             bool shuffle_ranges, bool shuffle_indices)
    : ranges_(std::move(ranges)),
      shuffle_indices_(shuffle_indices),
      random_(seed + epoch_stride * epoch) {
  if (shuffle_ranges) random_.shuffle(std::span(ranges_));
}

std::optional<std::int64_t> range_shuffle::next() {
  while (at_ == indices_.size()) {
    if (next_range_ == ranges_.size()) return std::nullopt;
    const index_range r = ranges_[next_range_++];
    indices_.resize(static_cast<std::size_t>(r.end - r.begin));
    std::iota(indices_.begin(), indices_.end(), r.begin);
    if (shuffle_indices_) random_.shuffle(std::span(indices_));
    at_ = 0;
  }
  return indices_[at_++];
}

range_shuffle shard_list_sampler::epoch(std::int64_t number) const {
  std::vector<index_range> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t n : lengths) {
    ranges.push_back({begin, begin + n});
    begin += n;
  }
  return {std::move(ranges), seed, number, shuffle_first || number > 0, true};
}

range_shuffle chunked_sampler::epoch(std::int64_t number) const {
  check_option("chunked_sampler.chunk", chunk, 1, std::numeric_limits<std::int64_t>::max());
  std::vector<index_range> ranges;
  for (std::int64_t i = samples.begin; i < samples.end;) {
    const std::int64_t end = i + std::min(chunk, samples.end - i);
    ranges.push_back({i, end});
    i = end;
  }
  const bool shuffle_ranges = shuffle && (shuffle_first || number > 0);
  return {std::move(ranges), seed, number, shuffle_ranges, shuffle};
}

range_shuffle distributed_chunked_sampler::epoch(std::int64_t number) const {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  check_option("distributed_chunked_sampler.replicas", replicas, 1, most);
  check_option("distributed_chunked_sampler.rank", rank, 0, replicas - 1);
  const std::int64_t part = claimed_length();
  const std::int64_t begin = std::min(rank * part, samples);
  return chunked_sampler{.samples = {begin, std::min(begin + part, samples)},
                         .chunk = chunk,
                         .seed = seed,
                         .shuffle = shuffle,
                         .shuffle_first = shuffle_first}
      .epoch(number);
}

even_sampler::even_sampler(const options& o, std::int64_t epoch) : options_(o), epoch_(epoch) {
  if (o.samples < 1 || o.chunk < 1 || o.world_size < 1 || o.rank < 0 || o.rank >= o.world_size) {
    throw failure(error(errc::usage, fmt::format("rank {} of {} over {} samples in chunks of {}",
                                                 o.rank, o.world_size, o.samples, o.chunk)));
  }
  const std::int64_t chunks = divided_up(o.samples, o.chunk);
  order_.resize(static_cast<std::size_t>(chunks));
  std::iota(order_.begin(), order_.end(), 0U);
  random_stream random(o.seed, purpose::sampler, static_cast<std::uint64_t>(epoch));
  for (std::size_t i = order_.size(); i > 1; --i) {
    std::swap(order_[i - 1], order_[random.below(static_cast<std::uint32_t>(i))]);
  }
  std::int64_t first = 0;
  for (const std::uint32_t c : order_) {
    firsts_.push_back(first);
    first += std::min(o.chunk, o.samples - static_cast<std::int64_t>(c) * o.chunk);
  }
}

std::int64_t even_sampler::length() const {
  const std::int64_t whole = options_.samples / options_.world_size;
  const bool uneven = options_.samples % options_.world_size != 0;
  return options_.repeat && uneven ? whole + 1 : whole;
}

// Loads the chunk that holds `place`, its indices shuffled by (seed, epoch, chunk).
void even_sampler::load_chunk(std::int64_t place) {
  const auto after = std::ranges::upper_bound(firsts_, place);
  const auto which = static_cast<std::size_t>(after - firsts_.begin()) - 1;
  if (!chunk_.empty() && which == which_) return;
  which_ = which;
  const std::int64_t begin = static_cast<std::int64_t>(order_[which]) * options_.chunk;
  chunk_.resize(static_cast<std::size_t>(std::min(options_.chunk, options_.samples - begin)));
  std::iota(chunk_.begin(), chunk_.end(), begin);
  random_stream random(options_.seed, purpose::sampler, static_cast<std::uint64_t>(epoch_),
                       order_[which] + std::uint64_t{1});
  for (std::size_t i = chunk_.size(); i > 1; --i) {
    std::swap(chunk_[i - 1], chunk_[random.below(static_cast<std::uint32_t>(i))]);
  }
}

std::optional<std::int64_t> even_sampler::next() {
  if (given_ == length()) return std::nullopt;
  const std::int64_t place = (options_.rank * length() + given_++) % options_.samples;
  load_chunk(place);
  return chunk_[static_cast<std::size_t>(place - firsts_[which_])];
}

}  // namespace millrace
