#include "bench/tune.h"

#include <fcntl.h>
#include <fmt/format.h>

#include "bench/http_bench.h"
#include "io/disk.h"

namespace millrace {
namespace {

struct candidate {
  const char* variable;
  std::string value;
  const char* meaning;
  std::function<void(engine_options&)> apply;
};

// Settings of one variable, of which at most one is kept.
using family = std::vector<candidate>;

family direct_reads_family() {
  return {{"MILLRACE_DIRECT", "on", "past the page cache",
           [](engine_options& o) { o.source.direct = direct_reads::always; }},
          {"MILLRACE_DIRECT", "off", "through the page cache",
           [](engine_options& o) { o.source.direct = direct_reads::never; }}};
}

family depths() {
  family f;
  for (const int depth : {1, 2, 4, 8, 16, 32}) {
    f.push_back({"MILLRACE_READ_DEPTH", std::to_string(depth), "reads under way at once",
                 [depth](engine_options& o) { o.source.read_depth = depth; }});
  }
  return f;
}

family chunks() {
  family f;
  for (const std::size_t size : {256_KiB, 4_MiB}) {
    f.push_back({"MILLRACE_READ_CHUNK", size == 4_MiB ? "4M" : "256K", "bytes of one read",
                 [size](engine_options& o) { o.source.chunk_bytes = size; }});
  }
  return f;
}

family gates(bool gated) {
  if (gated) {
    return {{"MILLRACE_SERIALIZE", "off", "without taking turns",
             [](engine_options& o) { o.source.serialize = 0; }}};
  }
  return {{"MILLRACE_SERIALIZE", "1", "one large extent at a time",
           [](engine_options& o) { o.source.serialize = 1; }}};
}

family extents() {
  family f;
  for (const std::size_t mib : {8U, 32U, 128U}) {
    f.push_back({"MILLRACE_READ_EXTENT", fmt::format("{}M", mib), "bytes of one turn",
                 [mib](engine_options& o) { o.source.extent_bytes = mib * 1_MiB; }});
  }
  return f;
}

void drop_pages(const std::vector<std::string>& files) {
  for (const auto& path : files) {
    const auto file = open_file::open(path);
    if (file) posix_fadvise((*file)->fd(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

family splits() {
  family f;
  for (const int parts : {1, 2, 4, 8, 16}) {
    f.push_back({"MILLRACE_HTTP_SPLIT", parts == 1 ? "off" : std::to_string(parts),
                 "parts of one object at once",
                 [parts](engine_options& o) { o.source.http.split = parts; }});
  }
  return f;
}

family parts() {
  family f;
  for (const std::size_t mib : {1U, 4U, 16U}) {
    f.push_back({"MILLRACE_HTTP_PART", fmt::format("{}M", mib), "bytes of one part",
                 [mib](engine_options& o) { o.source.http.part_bytes = mib * 1_MiB; }});
  }
  return f;
}

family http_chunks() {
  return {{"MILLRACE_READ_CHUNK", "512K", "bytes of one buffer",
           [](engine_options& o) { o.source.chunk_bytes = 512_KiB; }},
          {"MILLRACE_READ_CHUNK", "1M", "bytes of one buffer",
           [](engine_options& o) { o.source.chunk_bytes = 1_MiB; }}};
}

family receive_buffers() {
  return {{"MILLRACE_HTTP_RECEIVE_BUFFER", "4M", "bytes that the kernel holds for a connection",
           [](engine_options& o) { o.source.http.receive_buffer_bytes = 4_MiB; }}};
}

family threads() {
  return {{"MILLRACE_IO_THREADS", "2", "threads that receive",
           [](engine_options& o) { o.io_threads = 2; }}};
}

using measurement = std::function<trial(const engine_options& with, double seconds, trial what)>;

// Each candidate once, family after family, on top of the winners before.
tuning try_families(const std::vector<family>& families, const engine_options& how, double seconds,
                    const measurement& measure, const std::function<void(const trial&)>& progress,
                    const std::atomic<bool>& interrupted) {
  std::size_t count = 1;
  for (const family& f : families) count += f.size();
  const double share_s = seconds / static_cast<double>(count);
  tuning found;
  engine_options best = how;
  found.trials.push_back(measure(best, share_s, {.meaning = "as set now"}));
  progress(found.trials.back());
  double best_rate = found.trials.back().mb_per_s;
  for (const family& f : families) {
    std::optional<std::size_t> winner;
    const double before = best_rate;
    engine_options base = best;
    for (const candidate& c : f) {
      if (interrupted) return found;
      engine_options with = base;
      c.apply(with);
      found.trials.push_back(
          measure(with, share_s, {.variable = c.variable, .value = c.value, .meaning = c.meaning}));
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
  return try_families(
      families, how, seconds,
      [&](const engine_options& with, double share_s, trial what) {
        drop_pages(files);
        const auto report = run_disk_bench(
            with, {.paths = files, .streams = streams, .seconds = share_s}, interrupted);
        what.mb_per_s = report.mb_per_s();
        what.p99_s = report.reads.percentile(0.99);
        what.cpu_s_per_gb =
            report.cpu_seconds / std::max(1e-9, static_cast<double>(report.bytes) / 1e9);
        return what;
      },
      progress, interrupted);
}

tuning tune_http(const engine_options& how, const std::vector<std::string>& urls, int connections,
                 double seconds, const std::function<void(const trial&)>& progress,
                 const std::atomic<bool>& interrupted) {
  return try_families(
      {splits(), parts(), http_chunks(), receive_buffers(), threads()}, how, seconds,
      [&](const engine_options& with, double share_s, trial what) {
        const auto report = run_http_bench(
            with, {.urls = urls, .connections = connections, .seconds = share_s, .once = false},
            interrupted);
        what.mb_per_s = report.mb_per_s();
        what.p99_s = report.counters.first_bytes.percentile(0.99);
        what.cpu_s_per_gb =
            report.cpu_seconds / std::max(1e-9, static_cast<double>(report.bytes) / 1e9);
        return what;
      },
      progress, interrupted);
}

}  // namespace millrace
