#include "bench/disk_bench.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "engine/random.h"
#include "io/file_source.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

struct target {
  std::string path;
  std::uint64_t size = 0;
};

// What the coroutines of one run share; I/O thread only.
struct bench_state {
  runtime& threads;
  io_thread& io;
  std::shared_ptr<disk_table> disks;
  const disk_bench_options& what;
  const std::atomic<bool>& interrupted;
  std::vector<target> files;
  const source_options& source;
  source_counters counters;
  std::shared_ptr<memory_share> memory;
  scope tasks;
  scope streams;
  std::uint64_t given = 0;  // bytes that came to a consumer
  bool over = false;
  std::optional<error> failed;
  std::vector<double> rates;
};

source_context context_of(bench_state& b) {
  return {b.threads, b.io, b.tasks, b.memory, b.source, b.counters};
}

// Throws away the range's bytes. False when it could not be read.
awaitable<bool> read_all(bench_state* b, std::shared_ptr<readable_file> file, std::uint64_t offset,
                         std::uint64_t end) {
  const auto source = read_range(context_of(*b), std::move(file), offset, end);
  while (!b->over) {
    const auto piece = co_await source->read();
    if (!piece) {
      if (!b->failed) b->failed = piece.error();
      co_return false;
    }
    if (piece->empty()) break;
    b->given += piece->size();
  }
  co_return true;
}

// One file after the other, from stream `index`'s first on, in turn with the other streams.
awaitable<void> read_in_order(bench_state* b, std::size_t index, std::size_t streams) {
  const std::size_t count = b->files.size();
  // More streams than files: the later ones begin further inside.
  const std::size_t round = index / count;
  const std::size_t rounds = (streams + count - 1) / count;
  for (std::size_t at = index % count; !b->over;) {
    const target& file = b->files[at];
    const std::uint64_t offset = round * (file.size / rounds) / 4096 * 4096;
    auto opened = co_await open_readable(b->disks, context_of(*b), file.path);
    if (!opened) {
      if (!b->failed) b->failed = opened.error();
      co_return;
    }
    if (!co_await read_all(b, std::move(*opened), offset, file.size)) co_return;
    if (streams < count) at = (at + streams) % count;
  }
}

awaitable<void> read_at_random(bench_state* b, std::size_t index) {
  random_stream random(7, purpose::shard_draw, index);
  const std::size_t size = b->what.random_bytes;
  std::vector<std::shared_ptr<readable_file>> opened(b->files.size());
  while (!b->over) {
    const std::size_t at = random.below(static_cast<std::uint32_t>(b->files.size()));
    const target& file = b->files[at];
    if (!opened[at]) {
      auto now = co_await open_readable(b->disks, context_of(*b), file.path);
      if (!now) {
        if (!b->failed) b->failed = now.error();
        co_return;
      }
      opened[at] = std::move(*now);
    }
    const std::uint64_t places = std::max<std::uint64_t>(1, file.size / size);
    const std::uint64_t offset = random.below(static_cast<std::uint32_t>(places)) * size;
    const std::uint64_t end = std::min<std::uint64_t>(offset + size, file.size);
    if (!co_await read_all(b, opened[at], offset, end)) co_return;
  }
}

awaitable<void> keep_time(bench_state* b, double interval_s) {
  const auto begin = steady_clock::now();
  const auto step =
      std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(interval_s));
  const auto end = begin + std::chrono::duration_cast<steady_clock::duration>(
                               std::chrono::duration<double>(b->what.seconds));
  asio::steady_timer timer(b->io.executor());
  std::uint64_t before = 0;
  for (auto next = begin + step; !b->over; next += step) {
    timer.expires_at(std::min(next, end));
    co_await timer.async_wait(no_throw);
    const double rate = static_cast<double>(b->given - before) / 1e6 / interval_s;
    if (next <= end) b->rates.push_back(rate);
    before = b->given;
    const bool done = steady_clock::now() >= end || b->failed || b->interrupted;
    if (done) b->over = true;
  }
  b->streams.stop();
}

std::vector<target> targets(const std::vector<std::string>& paths) {
  std::vector<target> found;
  for (const auto& path : files_below(paths)) {
    const auto opened = open_file::open(path);
    if (!opened) throw failure(opened.error());
    if ((*opened)->size() > 0) found.push_back({path, (*opened)->size()});
  }
  if (found.empty()) {
    throw failure(error(errc::usage, "no file with any bytes in it").hint("name files or folders"));
  }
  return found;
}

void look_at_files(const std::vector<target>& files, disk_bench_report& report) {
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
    if (auto on = storage_of(f.path)) devices.emplace(on->identity, std::move(*on));
  }
  report.files = files.size();
  if (known) report.cached_before = cached / static_cast<double>(report.file_bytes);
  for (auto& [name, on] : devices) report.devices.push_back(std::move(on));
}

}  // namespace

std::vector<std::string> files_below(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const auto& path : paths) {
    std::error_code failed;
    if (!fs::is_directory(path, failed)) {
      files.push_back(path);
      continue;
    }
    for (const auto& item : fs::recursive_directory_iterator(path)) {
      if (item.is_regular_file()) files.push_back(item.path());
    }
  }
  std::ranges::sort(files);
  return files;
}

disk_bench_report run_disk_bench(const engine_options& how, const disk_bench_options& what,
                                 const std::atomic<bool>& interrupted) {
  disk_bench_report report;
  auto files = targets(what.paths);
  look_at_files(files, report);
  constexpr int usual_streams = 8;
  report.streams = what.streams > 0
                       ? what.streams
                       : static_cast<int>(std::min<std::size_t>(files.size(), usual_streams));
  const std::size_t budget = how.memory_bytes > 0 ? how.memory_bytes : default_memory_bytes();
  runtime threads({.cpu_threads = how.cpu_threads, .io = how.io});
  io_thread& io = threads.io(0);
  bench_state b{.threads = threads,
                .io = io,
                .disks = std::make_shared<disk_table>(io.executor(), how.source),
                .what = what,
                .interrupted = interrupted,
                .files = std::move(files),
                .source = how.source,
                .memory = std::make_shared<memory_share>("reads", budget, default_host_allocator()),
                .tasks = scope(io.executor()),
                .streams = scope(io.executor())};
  report.io = io.files().name();
  const double cpu_before = cpu_seconds();
  const auto begin = steady_clock::now();
  std::promise<void> ended;
  asio::co_spawn(
      io.context(),
      [](bench_state* s, int streams, double interval_s) -> awaitable<void> {
        for (int i = 0; i < streams; ++i) {
          const auto index = static_cast<std::size_t>(i);
          s->streams.spawn(s->what.random_bytes > 0
                               ? read_at_random(s, index)
                               : read_in_order(s, index, static_cast<std::size_t>(streams)));
        }
        co_await keep_time(s, interval_s);
        co_await s->streams.join();
        s->tasks.stop();
        co_await s->tasks.join();
      }(&b, report.streams, report.interval_s),
      [&](const std::exception_ptr& /*thrown*/) { ended.set_value(); });
  ended.get_future().get();
  report.seconds = std::chrono::duration<double>(steady_clock::now() - begin).count();
  report.cpu_seconds = cpu_seconds() - cpu_before;
  if (b.failed) throw failure(*b.failed);
  report.interrupted = interrupted;
  report.bytes = b.given;
  report.rate_over_time = std::move(b.rates);
  report.reads = b.counters.reads;
  report.seeks_avoided = b.counters.seeks_avoided;
  report.depth = b.counters.most_depth;
  report.gate_wait_s = b.counters.gate_wait_s;
  report.memory_wait_s = b.counters.memory_wait_s;
  report.direct_share = static_cast<double>(b.counters.direct_bytes) /
                        std::max(1.0, static_cast<double>(b.counters.bytes));
  return report;
}

disk_bench_report::kind disk_bench_report::figure() const {
  const bool in_memory = std::ranges::any_of(devices, [](const storage& s) {
    return s.file_system == "tmpfs" || s.file_system == "ramfs";
  });
  if (in_memory) return kind::memory;
  const double through_cache = 1 - direct_share;
  // What was read through the cache more than once came from there the second time.
  const double again =
      bytes > file_bytes ? 1 - static_cast<double>(file_bytes) / static_cast<double>(bytes) : 0;
  const double cached = through_cache * std::max(std::max(cached_before, 0.0), again);
  if (cached < 0.02) return kind::disk;
  return cached > 0.9 ? kind::page_cache : kind::mixed;
}

std::string disk_bench_report::limit(int cpus) const {
  if (bytes == 0) return "nothing was read";
  if (cpu_seconds > 0.85 * seconds * cpus) return "the CPUs";
  // Sixteen streams that share one I/O thread: its time is what there is.
  if (cpu_seconds > 0.9 * seconds && gate_wait_s < 0.1 * seconds) {
    return "one I/O thread (MILLRACE_IO_THREADS gives more)";
  }
  const double all = seconds * streams;
  if (memory_wait_s > 0.5 * all) return "the memory budget (MILLRACE_MEMORY)";
  if (figure() == kind::page_cache || figure() == kind::memory) return "memory, not a disk";
  if (gate_wait_s > 0.2 * all) {
    return "the device: its readers take turns at the gate, one large extent each";
  }
  return "the device";
}

}  // namespace millrace
