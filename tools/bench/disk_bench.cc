#include "tools/bench/disk_bench.h"

#include <algorithm>
#include <future>
#include <map>

#include "engine/base/random.h"
#include "engine/coroutines/scope.h"
#include "engine/coroutines/spawn_on.h"
#include "engine/files/block_io.h"
#include "engine/files/folders.h"
#include "engine/host/host.h"
#include "engine/memory/read_blocks.h"
#include "engine/threads/io_thread.h"
#include "io/files/file_source.h"

namespace millrace {
namespace {

struct target {
  std::string path;
  std::uint64_t size = 0;
};

// Shared by the streams of one I/O thread; used only there, except for the atomics.
struct bench_state {
  runtime& threads;
  io_thread& io;
  std::shared_ptr<disk_table> disks;
  const disk_bench_options& what;
  const std::vector<target>& files;
  const source_options& source;
  source_counters counters;
  std::shared_ptr<memory_share> memory;
  scope tasks;
  scope streams;
  std::atomic<std::uint64_t> given = 0;  // bytes delivered to consumers
  std::atomic<bool> over = false;
  std::optional<error> failed;
  std::unique_ptr<bool[]> served;  // for each stream of all threads
};

source_context context_of(bench_state& b) {
  return {b.threads, b.io, b.tasks, b.memory, b.source, b.counters};
}

// The first error ends the run.
void fail(bench_state& b, error why) {
  if (!b.failed) b.failed = std::move(why);
  b.over = true;
  b.streams.stop();
}

// Reads and discards the range's bytes. False if it could not be read.
awaitable<bool> read_to_end(bench_state* b, std::shared_ptr<readable_file> file,
                            std::uint64_t offset, std::uint64_t end, bool* served) {
  const auto source = read_range(context_of(*b), std::move(file), offset, end);
  while (!b->over) {
    const auto piece = co_await source->read();
    if (!piece) {
      fail(*b, piece.error());
      co_return false;
    }
    if (piece->empty()) break;
    *served = true;
    b->given.fetch_add(piece->size(), std::memory_order_relaxed);
  }
  co_return true;
}

// Reads one file after another, starting at stream `index`'s first, alternating with other streams.
awaitable<void> read_in_order(bench_state* b, std::size_t index, std::size_t streams,
                              bool* served) {
  const std::size_t count = b->files.size();
  // With more streams than files, later streams begin further into a file.
  const std::size_t round = index / count;
  const std::size_t rounds = (streams + count - 1) / count;
  for (std::size_t at = index % count; !b->over;) {
    // held over co_await: files are those of the beginning
    const target& file = b->files[at];
    const std::uint64_t offset = round * (file.size / rounds) / 4096 * 4096;
    auto opened = co_await open_readable(b->disks, context_of(*b), file.path);
    if (!opened) {
      fail(*b, opened.error());
      co_return;
    }
    if (!co_await read_to_end(b, std::move(*opened), offset, file.size, served)) co_return;
    if (streams < count) at = (at + streams) % count;
  }
}

awaitable<void> read_at_random(bench_state* b, std::size_t index, bool* served) {
  random_stream random(7, purpose::shard_draw, index);
  const std::size_t size = b->what.random_bytes;
  std::vector<std::shared_ptr<readable_file>> opened(b->files.size());
  while (!b->over) {
    const std::size_t at = random.below(static_cast<std::uint32_t>(b->files.size()));
    // held over co_await: files are those of the beginning
    const target& file = b->files[at];
    if (!opened[at]) {
      auto now = co_await open_readable(b->disks, context_of(*b), file.path);
      if (!now) {
        fail(*b, now.error());
        co_return;
      }
      opened[at] = std::move(*now);
    }
    const std::uint64_t places = std::max<std::uint64_t>(1, file.size / size);
    const std::uint64_t offset = random.below(static_cast<std::uint32_t>(places)) * size;
    const std::uint64_t end = std::min<std::uint64_t>(offset + size, file.size);
    if (!co_await read_to_end(b, opened[at], offset, end, served)) co_return;
  }
}

// The streams whose index is `first` and every `step`-th after it.
awaitable<void> run_streams(bench_state* b, std::size_t first, std::size_t step,
                            std::size_t streams) {
  b->served = std::make_unique<bool[]>(streams);
  for (std::size_t i = first; i < streams; i += step) {
    b->streams.spawn(b->what.random_bytes > 0 ? read_at_random(b, i, &b->served[i])
                                              : read_in_order(b, i, streams, &b->served[i]));
  }
  co_await b->streams.join();
  b->tasks.stop();
  co_await b->tasks.join();
}

std::vector<target> targets(const std::vector<std::string>& paths) {
  std::vector<target> found;
  const auto files = files_below(paths);
  if (files.empty()) {
    throw failure(error(errc::not_found, "no file in this folder").at(paths.front()));
  }
  for (const auto& path : files) {
    const auto opened = open_file::open(path);
    if (!opened) throw failure(opened.error());
    if ((*opened)->size() > 0) found.push_back({path, (*opened)->size()});
  }
  if (found.empty()) {
    throw failure(error(errc::usage, "all of the files are empty").hint("name files or folders"));
  }
  return found;
}

void look_at_files(const std::vector<target>& files, const source_options& options,
                   disk_bench_report& report) {
  double cached = 0;
  std::map<std::string, storage> devices;
  bool known = true;
  for (const target& f : files) {
    report.file_bytes += f.size;
    const auto opened = open_file::open(f.path);
    if (!opened) throw failure(opened.error());
    const auto share = (*opened)->cached_share();
    known &= share.has_value();
    cached += share.value_or(0) * static_cast<double>(f.size);
    if (auto on = storage_of(f.path)) devices.emplace(on->identity, with_overrides(*on, options));
  }
  report.files = files.size();
  if (known) report.cached_before = cached / static_cast<double>(report.file_bytes);
  for (auto& [name, on] : devices) report.devices.push_back(std::move(on));
}

void add_up(const std::vector<std::unique_ptr<bench_state>>& parts, disk_bench_report& report) {
  for (const auto& part : parts) {
    if (part->failed) throw failure(*part->failed);
    report.bytes += part->given;
    report.streams_served +=
        static_cast<int>(std::count(&part->served[0], &part->served[0] + report.streams, true));
    report.counters.add(part->counters);
    report.depth += part->counters.most_depth;
  }
}

}  // namespace

std::vector<std::string> files_below(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const auto& path : paths) {
    if (!is_folder(path)) {
      files.push_back(path);
      continue;
    }
    auto seen = visit_folder(path, [&](visited item) {
      if (S_ISREG(item.info.st_mode)) files.push_back(std::move(item.path));
    });
    if (!seen) throw failure(seen.error());
  }
  std::ranges::sort(files);
  return files;
}

disk_bench_report run_disk_bench(const engine_options& how, const disk_bench_options& what) {
  disk_bench_report report;
  auto files = targets(what.paths);
  look_at_files(files, how.source, report);
  constexpr int usual_streams = 8;
  report.streams = what.streams > 0
                       ? what.streams
                       : static_cast<int>(std::min<std::size_t>(files.size(), usual_streams));
  const std::size_t budget = how.memory_bytes > 0 ? how.memory_bytes : default_memory_bytes();
  auto owned = std::make_unique<runtime>(runtime_options{.io_threads = how.io_threads,
                                                         .cpu_threads = how.cpu_threads,
                                                         .io = how.io,
                                                         .register_buffers = how.register_buffers});
  runtime& threads = *owned;
  const auto memory =
      std::make_shared<memory_share>("reads", budget, read_block_allocator::instance());
  std::vector<std::unique_ptr<bench_state>> parts;
  for (int i = 0; i < threads.io_threads(); ++i) {
    io_thread& io = threads.io(i);
    parts.push_back(std::unique_ptr<bench_state>(
        new bench_state{.threads = threads,
                        .io = io,
                        .disks = std::make_shared<disk_table>(io.executor(), how.source),
                        .what = what,
                        .files = files,
                        .source = how.source,
                        .memory = memory,
                        .tasks = scope(io.executor()),
                        .streams = scope(io.executor())}));
  }
  report.io = threads.io(0).files().name();
  report.interval_s = interval_of(what.seconds);
  const stopwatch_pair watch;
  std::vector<std::future<void>> running;
  running.reserve(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    running.push_back(spawn_on(
        parts[i]->io.executor(),
        run_streams(parts[i].get(), i, parts.size(), static_cast<std::size_t>(report.streams))));
  }
  report.rate_over_time = rates_over_time(counted_in(what.read, given_by(parts)), running,
                                          what.seconds, report.interval_s, what.stop);
  end_all(parts, running, [](auto& part) { part.streams.stop(); });
  report.seconds = watch.seconds();
  report.cpu_seconds = watch.cpu_seconds();
  report.interrupted = what.stop.stop_requested();
  add_up(parts, report);
  if (report.interrupted) {
    // A thread that waits for a hung device cannot be joined, and the process is about to end.
    static auto* const left_behind = new std::pair(std::move(owned), std::move(parts));
    static_cast<void>(left_behind);
  }
  return report;
}

double disk_bench_report::direct_share() const {
  const auto read = static_cast<double>(counters.bytes);
  return static_cast<double>(counters.direct_bytes) / std::max(1.0, read);
}

disk_bench_report::kind disk_bench_report::figure() const {
  const bool in_memory = std::ranges::any_of(devices, [](const storage& s) {
    return s.file_system == "tmpfs" || s.file_system == "ramfs";
  });
  if (in_memory) return kind::memory;
  const double through_cache = 1 - direct_share();
  // Bytes read through the cache more than once came from the cache the second time.
  const double again =
      bytes > file_bytes ? 1 - static_cast<double>(file_bytes) / static_cast<double>(bytes) : 0;
  const double cached = through_cache * std::max(std::max(cached_before, 0.0), again);
  if (cached < 0.02) return kind::disk;
  return cached > 0.9 ? kind::page_cache : kind::mixed;
}

std::string_view disk_bench_report::figure_name() const {
  switch (figure()) {
    case kind::disk:
      return "disk";
    case kind::page_cache:
      return "page cache";
    case kind::mixed:
      return "mixed";
    case kind::memory:
      return "memory";
  }
  return "";
}

std::string disk_bench_report::limit(int cpus) const {
  if (bytes == 0) return "nothing was read";
  if (cpu_seconds > 0.85 * seconds * cpus) return "the CPUs";
  // All streams share one I/O thread, whose time is used up.
  if (cpu_seconds > 0.9 * seconds && counters.gate_wait_s < 0.1 * seconds) {
    return "one I/O thread, which is what a loader uses (MILLRACE_IO_THREADS is for several "
           "loaders)";
  }
  const double all = seconds * streams;
  if (counters.memory_wait_s > 0.5 * all) return "the memory budget (MILLRACE_MEMORY)";
  if (figure() == kind::page_cache || figure() == kind::memory) return "memory, not a disk";
  if (counters.gate_wait_s > 0.2 * all) {
    return "the device: its readers take turns at the gate, one large extent each";
  }
  return "the device";
}

}  // namespace millrace
