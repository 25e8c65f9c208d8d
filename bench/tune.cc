#include "bench/tune.h"

#include <fcntl.h>
#include <fmt/format.h>

#include "io/disk.h"

namespace millrace {
namespace {

struct candidate {
  const char* variable;
  std::string value;
  const char* meaning;
  std::function<void(source_options&)> apply;
};

// Settings of one variable, of which at most one is kept.
using family = std::vector<candidate>;

family direct_reads_family() {
  return {{"MILLRACE_DIRECT", "on", "past the page cache",
           [](source_options& o) { o.direct = direct_reads::always; }},
          {"MILLRACE_DIRECT", "off", "through the page cache",
           [](source_options& o) { o.direct = direct_reads::never; }}};
}

family depths() {
  family f;
  for (const int depth : {1, 2, 4, 8, 16, 32}) {
    f.push_back({"MILLRACE_READ_DEPTH", std::to_string(depth), "reads under way at once",
                 [depth](source_options& o) { o.read_depth = depth; }});
  }
  return f;
}

family chunks() {
  family f;
  for (const std::size_t size : {256_KiB, 4_MiB}) {
    f.push_back({"MILLRACE_READ_CHUNK", size == 4_MiB ? "4M" : "256K", "bytes of one read",
                 [size](source_options& o) { o.chunk_bytes = size; }});
  }
  return f;
}

family gates(bool gated) {
  if (gated) {
    return {{"MILLRACE_SERIALIZE", "off", "without taking turns",
             [](source_options& o) { o.serialize = 0; }}};
  }
  return {{"MILLRACE_SERIALIZE", "1", "one large extent at a time",
           [](source_options& o) { o.serialize = 1; }}};
}

family extents() {
  family f;
  for (const std::size_t mib : {8U, 32U, 128U}) {
    f.push_back({"MILLRACE_READ_EXTENT", fmt::format("{}M", mib), "bytes of one turn",
                 [mib](source_options& o) { o.extent_bytes = mib * 1_MiB; }});
  }
  return f;
}

void drop_pages(const std::vector<std::string>& files) {
  for (const auto& path : files) {
    const auto file = open_file::open(path);
    if (file) posix_fadvise((*file)->fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

}  // namespace

tuning tune_disk(const engine_options& how, const std::vector<std::string>& paths, int streams,
                 double seconds, const std::function<void(const trial&)>& progress,
                 const std::atomic<bool>& interrupted) {
  const auto files = files_below(paths);
  bool gated = false;
  for (const auto& path : files) {
    const auto on = storage_of(path);
    gated |= on && gate_permits(with_overrides(*on, how.source), how.source) > 0;
  }
  std::vector<family> families{direct_reads_family()};
  if (!gated) families.push_back(depths());
  families.push_back(gates(gated));
  if (gated) families.push_back(extents());
  families.push_back(chunks());
  std::size_t count = 1;
  for (const family& f : families) count += f.size();

  tuning found;
  engine_options best = how;
  const auto measure = [&](const engine_options& with, trial what) {
    drop_pages(files);
    const auto report = run_disk_bench(
        with, {.paths = files, .streams = streams, .seconds = seconds / static_cast<double>(count)},
        interrupted);
    what.mb_per_s = report.mb_per_s();
    what.p99_s = report.reads.percentile(0.99);
    what.cpu_s_per_gb =
        report.cpu_seconds / std::max(1e-9, static_cast<double>(report.bytes) / 1e9);
    return what;
  };
  found.trials.push_back(measure(best, {.meaning = "as set now"}));
  progress(found.trials.back());
  double best_rate = found.trials.back().mb_per_s;
  for (const family& f : families) {
    std::optional<std::size_t> winner;
    const double before = best_rate;
    engine_options base = best;
    for (const candidate& c : f) {
      if (interrupted) return found;
      engine_options with = base;
      c.apply(with.source);
      found.trials.push_back(
          measure(with, {.variable = c.variable, .value = c.value, .meaning = c.meaning}));
      progress(found.trials.back());
      const bool better = found.trials.back().mb_per_s > std::max(best_rate, before * least_gain);
      if (!better) continue;
      winner = found.trials.size() - 1;
      best_rate = found.trials.back().mb_per_s;
      best = with;
    }
    if (!winner) continue;
    trial& w = found.trials[*winner];
    w.kept = true;
    found.gains.push_back(
        {w.variable, w.value,
         fmt::format("{}: {:.0f} MB/s instead of {:.0f}", w.meaning, w.mb_per_s, before)});
  }
  return found;
}

}  // namespace millrace
