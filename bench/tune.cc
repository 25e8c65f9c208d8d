#include "bench/tune.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>

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
  return {{"MILLRACE_DIRECT", "on", "bypassing the page cache",
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

using measurement = std::function<trial(const engine_options& with, double seconds)>;

// Measures in turns, forwards and backwards, so that what drifts meets all alike.
constexpr int turns = 3;

struct tuner {
  const measurement& measure;
  double turn_s;
  const std::atomic<bool>& interrupted;

  // Each of `with` so many times; fewer figures where it was interrupted.
  std::vector<std::vector<trial>> in_turns(const std::vector<engine_options>& with) const {
    std::vector<std::vector<trial>> figures(with.size());
    for (int turn = 0; turn < turns; ++turn) {
      for (std::size_t i = 0; i < with.size(); ++i) {
        const std::size_t at = turn % 2 == 0 ? i : with.size() - 1 - i;
        if (interrupted) return figures;
        const trial one = measure(with[at], turn_s);
        if (!interrupted) figures[at].push_back(one);
      }
    }
    return figures;
  }
};

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

trial described(trial figures, const candidate& c) {
  figures.variable = c.variable;
  figures.value = c.value;
  figures.meaning = c.meaning;
  return figures;
}

// The settings as they are, then family after family, each on top of the winners before it and
// beside them.
tuning try_families(const std::vector<family>& families, const engine_options& how,
                    const measurement& measure, double seconds,
                    const std::function<void(const trial&)>& progress,
                    const std::atomic<bool>& interrupted) {
  std::size_t count = 0;
  for (const family& f : families) count += turns * (f.size() + 1);
  const tuner tune{measure, seconds / static_cast<double>(count), interrupted};
  tuning found;
  engine_options best = how;
  const auto keep = [&](trial t) {
    found.trials.push_back(std::move(t));
    progress(found.trials.back());
  };
  for (const family& f : families) {
    std::vector<engine_options> with{best};
    for (const candidate& c : f) {
      with.push_back(best);
      c.apply(with.back());
    }
    const auto figures = tune.in_turns(with);
    const bool whole = std::ranges::all_of(
        figures, [](const auto& one) { return one.size() == static_cast<std::size_t>(turns); });
    if (figures.front().empty()) break;
    const trial before = combined(figures.front());
    // What these are compared with, and what the advice names.
    keep(described(
        before, {"", "", found.gains.empty() ? "as set now" : "with what gained so far", nullptr}));
    trial winner = before;
    std::optional<std::size_t> won;
    for (std::size_t i = 0; i < f.size(); ++i) {
      if (figures[i + 1].empty()) continue;
      const trial tried = described(combined(figures[i + 1]), f[i]);
      keep(tried);
      if (!whole || !gains(tried, before) || tried.mb_per_s <= winner.mb_per_s) continue;
      winner = tried;
      won = found.trials.size() - 1;
      best = with[i + 1];
    }
    if (!won) continue;
    found.trials[*won].kept = true;
    found.gains.push_back(
        {winner.variable, winner.value,
         fmt::format("{}: {:.0f} MB/s ({:.0f} to {:.0f}) instead of {:.0f} ({:.0f} to {:.0f}){}",
                     winner.meaning, winner.mb_per_s, winner.least_mb_per_s, winner.most_mb_per_s,
                     before.mb_per_s, before.least_mb_per_s, before.most_mb_per_s,
                     winner.from == "page cache" ? ", from the page cache" : "")});
  }
  found.stopped = interrupted;
  return found;
}

template <class Report>
trial figures_of(const Report& report, double p99_s, std::string from) {
  trial out;
  out.mb_per_s = report.mb_per_s();
  out.p99_s = p99_s;
  out.cpu_s_per_gb = report.cpu_seconds / std::max(1e-9, static_cast<double>(report.bytes) / 1e9);
  out.from = std::move(from);
  return out;
}

// As a loader reads: on one I/O thread.
engine_options as_a_loader(engine_options how) {
  how.io_threads = 1;
  return how;
}

// Throws `failure` (no_samples): of fewer bytes a rate says nothing.
void check_enough(std::uint64_t bytes) {
  constexpr std::uint64_t least = 16_MiB;
  if (bytes >= least) return;
  throw failure(
      error(errc::no_samples, "too little data to tune by: " + format_bytes(bytes))
          .hint(fmt::format("name {} or more, ideally what an epoch reads", format_bytes(least))));
}

}  // namespace

bool gains(const trial& with, const trial& before) {
  return with.from == before.from && with.mb_per_s >= before.mb_per_s * least_gain &&
         with.least_mb_per_s > before.most_mb_per_s;
}

trial combined(std::vector<trial> of) {
  const auto median = [&](double trial::* figure) {
    std::vector<double> values;
    values.reserve(of.size());
    for (const trial& t : of) values.push_back(t.*figure);
    return median_of(std::move(values));
  };
  trial out = of.front();
  out.turns = static_cast<int>(of.size());
  out.mb_per_s = median(&trial::mb_per_s);
  out.p99_s = median(&trial::p99_s);
  out.cpu_s_per_gb = median(&trial::cpu_s_per_gb);
  out.least_mb_per_s = std::ranges::min(of, {}, &trial::mb_per_s).mb_per_s;
  out.most_mb_per_s = std::ranges::max(of, {}, &trial::mb_per_s).mb_per_s;
  if (std::ranges::any_of(of, [&](const trial& t) { return t.from != out.from; })) {
    out.from = "mixed";
  }
  return out;
}

tuning tune_disk(const engine_options& how, const std::vector<std::string>& paths, int streams,
                 double seconds, const std::function<void(const trial&)>& progress,
                 const std::atomic<bool>& interrupted) {
  const auto files = files_below(paths);
  bool gated = false;
  std::uint64_t size = 0;
  for (const auto& path : files) {
    const auto on = storage_of(path);
    gated |= on && gate_permits(with_overrides(*on, how.source), how.source) > 0;
    const auto file = open_file::open(path);
    if (!file) throw failure(file.error());
    size += (*file)->size();
  }
  check_enough(size);
  std::vector<family> families{direct_reads_family()};
  if (!gated) families.push_back(depths());
  families.push_back(gates(gated));
  if (gated) families.push_back(extents());
  families.push_back(chunks());
  return try_families(
      families, as_a_loader(how),
      [&](const engine_options& with, double turn_s) {
        drop_pages(files);
        const auto report = run_disk_bench(
            with, {.paths = files, .streams = streams, .seconds = turn_s}, interrupted);
        return figures_of(report, report.reads.percentile(0.99), std::string(report.figure_name()));
      },
      seconds, progress, interrupted);
}

tuning tune_http(const engine_options& how, const std::vector<std::string>& urls, int connections,
                 double seconds, const std::function<void(const trial&)>& progress,
                 const std::atomic<bool>& interrupted) {
  // What all of them are, by those that one look comes to the end of.
  constexpr double look_s = 0.5;
  const auto look = run_http_bench(
      as_a_loader(how), {.urls = urls, .connections = connections, .seconds = look_s}, interrupted);
  if (look.objects >= urls.size()) {
    check_enough(look.bytes / look.objects * urls.size());
  }
  return try_families(
      {splits(), parts(), http_chunks(), receive_buffers()}, as_a_loader(how),
      [&](const engine_options& with, double turn_s) {
        const auto report = run_http_bench(
            with, {.urls = urls, .connections = connections, .seconds = turn_s, .once = false},
            interrupted);
        return figures_of(report, report.counters.first_bytes.percentile(0.99), "network");
      },
      seconds, progress, interrupted);
}

}  // namespace millrace
