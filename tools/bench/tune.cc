#include "tools/bench/tune.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/units.h"
#include "io/disks/disk.h"
#include "tools/bench/http_bench.h"

namespace millrace {
namespace {

family direct_reads_family() {
  return {{"MILLRACE_DIRECT", "on", "bypassing the page cache",
           [](engine_options& o) { o.source.direct = direct_reads::always; }},
          {"MILLRACE_DIRECT", "off", "through the page cache",
           [](engine_options& o) { o.source.direct = direct_reads::never; }}};
}

family depths() {
  family f;
  for (const int depth : {1, 2, 4, 8, 16, 32}) {
    f.push_back({"MILLRACE_READ_DEPTH", std::to_string(depth), "reads in flight at once",
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

trial figures_of(const read_report& report, double p99_s, std::string from) {
  trial out;
  out.mb_per_s = steady_rate(report.rate_over_time);
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

tuning tune_disk(const engine_options& how, const std::vector<std::string>& paths, int streams,
                 const tuning_options& options) {
  const auto files = files_below(paths);
  bool gated = false;
  std::uint64_t size = 0;
  for (const auto& path : files) {
    const auto on = storage_of(path);
    gated |= on.has_value() && gate_permits(with_overrides(*on, how.source), how.source) > 0;
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
            with, {.paths = files, .streams = streams, .seconds = turn_s, .stop = options.stop});
        return figures_of(report, report.counters.reads.percentile(0.99),
                          std::string(report.figure_name()));
      },
      options);
}

tuning tune_http(const engine_options& how, const std::vector<std::string>& urls, int connections,
                 const tuning_options& options) {
  // What all of them are, by those that one look comes to the end of.
  constexpr double look_s = 0.5;
  const auto look = run_http_bench(
      as_a_loader(how),
      {.urls = urls, .connections = connections, .seconds = look_s, .stop = options.stop});
  if (look.objects >= urls.size()) {
    check_enough(look.bytes / look.objects * urls.size());
  }
  return try_families(
      {splits(), parts(), http_chunks(), receive_buffers()}, as_a_loader(how),
      [&](const engine_options& with, double turn_s) {
        const auto report = run_http_bench(
            with,
            {.urls = urls, .connections = connections, .seconds = turn_s, .stop = options.stop});
        return figures_of(report, report.counters.first_bytes.percentile(0.99), "network");
      },
      options);
}

}  // namespace millrace
