#include "tools/inspect/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "engine/base/divided.h"
#include "engine/base/error.h"
#include "engine/base/random.h"
#include "engine/host/asked_to_end.h"
#include "pipeline/state/records.h"
#include "pipeline/wids/python_random.h"

namespace millrace {
namespace {

using places = std::vector<std::int64_t>;

// A worker's batches in one pass of its loader: `passes` over its samples, each ending with a
// smaller batch, if that is kept.
struct worker_batches {
  std::int64_t size = 1;   // of a batch
  std::int64_t whole = 0;  // batches of this size in a pass
  std::int64_t rest = 0;   // the size of the last batch; 0: there is none
  int passes = 1;

  std::int64_t in_pass() const { return whole + (rest > 0 ? 1 : 0); }
  bool has(std::int64_t i) const { return in_pass() > 0 && i / in_pass() < passes; }
  std::int64_t size_of(std::int64_t i) const { return i % in_pass() < whole ? size : rest; }
};

// `items` through a buffer of so many: a random one leaves, the next one enters.
places through_buffer(const places& items, std::size_t held,
                      const std::function<std::size_t(std::size_t)>& below) {
  places out;
  places buffer;
  const auto give = [&] {
    std::swap(buffer[below(buffer.size())], buffer.back());
    out.push_back(buffer.back());
    buffer.pop_back();
  };
  for (const std::int64_t i : items) {
    buffer.push_back(i);
    if (buffer.size() >= held) give();
  }
  while (!buffer.empty()) give();
  return out;
}

places shard_samples(const std::vector<std::int64_t>& shards, std::int64_t each) {
  places out;
  for (const std::int64_t s : shards) {
    for (std::int64_t i = 0; i < each; ++i) out.push_back(s * each + i);
  }
  return out;
}

// Streams taken in turns; those that have ended are passed over.
places in_turns(const std::vector<places>& streams) {
  places out;
  for (std::size_t i = 0;; ++i) {
    const std::size_t before = out.size();
    for (const places& s : streams) {
      if (i < s.size()) out.push_back(s[i]);
    }
    if (out.size() == before) return out;
  }
}

using lane_shuffle = std::function<places(const std::vector<std::int64_t>& shards, int lane)>;

// The lanes of an epoch, each shuffled in that way.
places millrace_order(const quality_options& o, const lane_shuffle& shuffled) {
  std::vector<places> lanes;
  const shard_list_options how{.seed = o.seed, .lanes = o.lanes};
  const epoch_order order(std::vector<std::string>(static_cast<std::size_t>(o.shards)), how, 0);
  for (int l = 0; l < o.lanes; ++l) {
    std::vector<std::int64_t> shards;
    for (const shard_ref& s : order.lane(l)) shards.push_back(s.shard);
    lanes.push_back(shuffled(shards, l));
  }
  return in_turns(lanes);
}

lane_shuffle by_buffer(const quality_options& o, std::size_t buffer) {
  return [=](const std::vector<std::int64_t>& shards, int lane) {
    random_stream random(o.seed, purpose::shuffle, 0, static_cast<std::uint64_t>(lane));
    return through_buffer(
        shard_samples(shards, o.samples_per_shard),
        std::max<std::size_t>(1, buffer / static_cast<std::size_t>(o.lanes)),
        [&](std::size_t n) { return random.below(static_cast<std::uint32_t>(n)); });
  };
}

// As window_shuffle: so many shards that they fill the lane's part of a window, permuted.
lane_shuffle by_window(const quality_options& o, std::size_t window) {
  return [=](const std::vector<std::int64_t>& shards, int lane) {
    const auto lanes = static_cast<std::size_t>(o.lanes);
    const std::size_t least = divided_up(window, lanes);
    const auto each = static_cast<std::size_t>(o.samples_per_shard);
    const std::size_t together = divided_up(least, each);
    random_stream random(o.seed, purpose::window, 0, static_cast<std::uint64_t>(lane));
    places out;
    for (std::size_t from = 0; from < shards.size(); from += together) {
      const std::span part =
          std::span(shards).subspan(from, std::min(together, shards.size() - from));
      places samples = shard_samples({part.begin(), part.end()}, o.samples_per_shard);
      for (std::size_t i = samples.size(); i > 1; --i) {
        std::swap(samples[i - 1], samples[random.below(static_cast<std::uint32_t>(i))]);
      }
      std::ranges::copy(samples, std::back_inserter(out));
    }
    return out;
  };
}

// Each worker keeps its own shards forever, shuffles them, and has a buffer of its own.
places webdataset_order(const quality_options& o) {
  std::vector<places> workers;
  for (int w = 0; w < o.workers; ++w) {
    std::vector<std::int64_t> shards;
    for (std::int64_t s = w; s < o.shards; s += o.workers) shards.push_back(s);
    python_random random(static_cast<std::int64_t>(o.seed) + w);
    random.shuffle(std::span(shards));
    workers.push_back(
        through_buffer(shard_samples(shards, o.samples_per_shard),
                       std::max<std::size_t>(1, o.buffer / static_cast<std::size_t>(o.workers)),
                       [&](std::size_t n) { return static_cast<std::size_t>(random.below(n)); }));
  }
  return in_turns(workers);
}

places full_permutation(const quality_options& o) {
  places all(static_cast<std::size_t>(o.shards * o.samples_per_shard));
  std::iota(all.begin(), all.end(), 0);
  python_random random(static_cast<std::int64_t>(o.seed));
  random.shuffle(std::span(all));
  return all;
}

double classes_in_batches(const places& order, std::int64_t classes) {
  constexpr std::size_t batch = 256;
  const auto n = static_cast<std::int64_t>(order.size());
  std::size_t distinct = 0;
  std::size_t batches = 0;
  for (std::size_t from = 0; from + batch <= order.size(); from += batch) {
    std::set<std::int64_t> seen;
    for (std::size_t i = from; i < from + batch; ++i) seen.insert(order[i] * classes / n);
    distinct += seen.size();
    ++batches;
  }
  return batches == 0 ? 0 : static_cast<double>(distinct) / static_cast<double>(batches);
}

shuffle_quality quality_of(std::string name, const places& order, std::int64_t classes) {
  constexpr std::int64_t near = 100;
  const auto n = static_cast<double>(order.size());
  double moved = 0;
  std::size_t neighbours = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    moved += std::abs(static_cast<double>(order[i]) - static_cast<double>(i)) / n;
    if (i > 0 && std::abs(order[i] - order[i - 1]) <= near) ++neighbours;
  }
  return {.name = std::move(name),
          .moved = moved / n,
          .neighbours = static_cast<double>(neighbours) / (n - 1),
          .classes = classes_in_batches(order, classes)};
}

std::int64_t batches_for(std::int64_t samples, std::int64_t size, bool drop_last) {
  return drop_last ? samples / size : divided_up(samples, size);
}

epoch_figures figures(std::string mode, const std::vector<std::int64_t>& samples,
                      std::int64_t batch_size, bool drop_last) {
  epoch_figures f{.mode = std::move(mode)};
  for (const std::int64_t n : samples) {
    f.batches.push_back(batches_for(n, batch_size, drop_last));
    const std::int64_t given = drop_last ? n / batch_size * batch_size : n;
    f.delivered += given;
    f.dropped += n - given;
  }
  const auto longest = std::ranges::max(f.batches);
  for (const std::int64_t b : f.batches) f.idle += static_cast<double>(longest - b);
  if (longest > 0) f.idle /= static_cast<double>(longest) * static_cast<double>(f.batches.size());
  return f;
}

// Where lengths are not known: all ranks stop when the first of them has no further batch.
epoch_figures until_the_first_ends(const std::vector<std::int64_t>& samples,
                                   const std::vector<std::int64_t>& batches,
                                   std::int64_t batch_size) {
  const std::int64_t least = std::ranges::min(batches);
  epoch_figures f{.mode = "equal, unknown", .batches = std::vector(samples.size(), least)};
  for (const std::int64_t n : samples) {
    const std::int64_t given = std::min(n, least * batch_size);
    f.delivered += given;
    f.dropped += n - given;
  }
  return f;
}

// An index of shards of these lengths whose samples have a block each.
std::shared_ptr<const shard_index> one_block_each(const std::vector<std::int64_t>& samples) {
  auto out = std::make_shared<shard_index>();
  for (const std::int64_t n : samples) {
    shard_index::shard s{.samples = n, .bytes = n * shard_index::block_bytes};
    for (std::int64_t i = 0; i <= n; ++i) s.blocks.push_back(static_cast<std::uint32_t>(i));
    out->shards.push_back(std::move(s));
  }
  return out;
}

// The number of samples that each rank gets in the first epoch.
std::vector<std::int64_t> samples_of_ranks(const std::vector<std::int64_t>& samples,
                                           const shard_list_options& how) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(how.world_size));
  const epoch_order order(std::vector<std::string>(samples.size()), how, 0);
  for (int l = 0; l < how.lane_count(); ++l) {
    for (const shard_ref& s : order.lane(l)) {
      const std::int64_t end =
          s.end > 0 ? s.end / shard_index::block_bytes : samples[static_cast<std::size_t>(s.shard)];
      const std::int64_t left = end - s.begin / shard_index::block_bytes - s.skip;
      out[static_cast<std::size_t>(l % how.world_size)] +=
          s.samples >= 0 ? std::min(s.samples, left) : left;
    }
  }
  return out;
}

}  // namespace

std::string python_text(const batch_histogram& batches) {
  std::string out;
  for (const auto& [size, count] : batches) {
    out += fmt::format("{}({}, {})", out.empty() ? "" : ", ", size, count);
  }
  return "[" + out + "]";
}

std::vector<std::size_t> loader_simulation::shards_of(int r, int worker) const {
  if (asked_to_end) throw failure(error(errc::stopped, "the simulation is not complete"));
  std::vector<std::size_t> out;
  const int each = std::max(workers, 1);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto number = static_cast<int>(i);
    if (number % world_size == r && number / world_size % each == worker) out.push_back(i);
  }
  return out;
}

batch_histogram loader_simulation::rank(int r) const {
  std::vector<worker_batches> each;
  for (int w = 0; w < std::max(workers, 1); ++w) {
    std::int64_t sum = 0;
    for (const std::size_t s : shards_of(r, w)) sum += samples[s];
    each.push_back({.size = batch_size,
                    .whole = sum / batch_size,
                    .rest = partial ? sum % batch_size : 0,
                    .passes = dataset_repeat});
  }
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> counts;  // size -> count, first
  std::int64_t given = 0;
  // In turns; workers whose batches have ended are passed over.
  const auto take_turn = [&](std::int64_t i) {
    const std::int64_t before = given;
    for (const worker_batches& w : each) {
      if (given == batches || !w.has(i)) continue;
      auto [it, is_new] = counts.try_emplace(w.size_of(i), 0, given);
      ++it->second.first;
      ++given;
    }
    return given > before;
  };
  for (int pass = 0; pass < repeat && given < batches; ++pass) {
    for (std::int64_t i = 0; take_turn(i); ++i) {
      if (asked_to_end) throw failure(error(errc::stopped, "the simulation is not complete"));
    }
  }
  batch_histogram out;
  for (const auto& [size, count] : counts) out.emplace_back(size, count.first);
  std::ranges::sort(out, [&](const auto& a, const auto& b) {
    return std::pair(-a.second, counts.at(a.first).second) <
           std::pair(-b.second, counts.at(b.first).second);
  });
  return out;
}

std::vector<epoch_figures> simulate_modes(const std::vector<std::int64_t>& samples,
                                          bool has_offsets, int world_size, std::int64_t batch_size,
                                          bool drop_last, int lanes, std::uint64_t seed) {
  shard_list_options how{.seed = seed, .world_size = world_size, .lanes = lanes};
  const auto by_shards = samples_of_ranks(samples, how);
  if (has_offsets) how.index = one_block_each(samples);
  std::vector<epoch_figures> out{
      figures("exact", samples_of_ranks(samples, how), batch_size, false)};
  const std::int64_t all = std::accumulate(samples.begin(), samples.end(), std::int64_t{0});
  const auto whole = figures("", by_shards, batch_size, drop_last);
  out.push_back(until_the_first_ends(by_shards, whole.batches, batch_size));
  const auto equal = [&](std::string mode, std::int64_t each) {
    auto f = figures(std::move(mode), std::vector(by_shards.size(), each), batch_size, drop_last);
    f.repeated = std::max<std::int64_t>(0, each * world_size - all);
    f.dropped += std::max<std::int64_t>(0, all - each * world_size);
    out.push_back(std::move(f));
  };
  // Every lane has as many, and every rank as many lanes.
  const std::int64_t of_all = how.lane_count();
  const std::int64_t of_one = of_all / world_size;
  equal("equal, dropping", all / of_all * of_one);
  equal("equal, repeating", divided_up(all, of_all) * of_one);
  return out;
}

std::vector<shuffle_quality> simulate_quality(const quality_options& o) {
  std::vector<shuffle_quality> out;
  out.push_back(quality_of("full permutation", full_permutation(o), o.classes));
  const auto add = [&](std::string name, const lane_shuffle& how) {
    out.push_back(quality_of(std::move(name), millrace_order(o, how), o.classes));
  };
  const auto all = static_cast<std::size_t>(o.shards * o.samples_per_shard);
  add("millrace", by_buffer(o, o.buffer));
  add("millrace, windows", by_window(o, o.buffer));
  add("millrace, one window", by_window(o, all));
  out.push_back(quality_of("webdataset", webdataset_order(o), o.classes));
  add("shards alone", by_buffer(o, 1));
  const double best = out.front().classes;
  for (shuffle_quality& q : out) q.classes = best > 0 ? q.classes / best : 0;
  return out;
}

}  // namespace millrace
