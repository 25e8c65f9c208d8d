#include "tools/bench/http_bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/words.h"
#include "engine/coroutines/scope.h"
#include "engine/coroutines/spawn_on.h"
#include "engine/host/host.h"
#include "engine/memory/read_blocks.h"
#include "engine/threads/io_thread.h"
#include "io/registry.h"
#include "io/standard_sources.h"

namespace millrace {
namespace {

// Shared by the readers of one I/O thread; used only there, except for the atomics.
struct http_state {
  runtime& threads;
  io_thread& io;
  source_registry sources;
  const http_bench_options& what;
  const source_options& source;
  std::size_t budget_of_each;
  source_counters counters;
  scope tasks;
  scope readers;
  std::atomic<std::size_t>& next_url;  // of all threads
  std::atomic<std::uint64_t> given = 0;
  std::atomic<std::uint64_t> objects = 0;
  std::atomic<bool> over = false;
  std::optional<error> failed;
  std::vector<std::uint64_t> bytes_of_reader;
};

// The first error ends the run.
void fail(http_state& b, error why) {
  if (!b.failed) b.failed = std::move(why);
  b.over = true;
  b.readers.stop();
}

// Reads one object, or one range of it, to its end. Returns its bytes; nullopt on failure.
awaitable<std::optional<std::uint64_t>> read_one(http_state* b,
                                                 std::shared_ptr<memory_share> memory,
                                                 std::string url, byte_range range,
                                                 std::uint64_t* count) {
  source_context context{b->threads, b->io, b->tasks, std::move(memory), b->source, b->counters};
  auto opened = co_await b->sources.open(std::move(context), std::move(url), range);
  if (!opened) {
    fail(*b, opened.error());
    co_return std::nullopt;
  }
  std::uint64_t got = 0;
  while (!b->over) {
    const auto piece = co_await (*opened)->read();
    if (!piece) {
      fail(*b, piece.error());
      co_return std::nullopt;
    }
    if (piece->empty()) {
      b->objects.fetch_add(1, std::memory_order_relaxed);
      break;
    }
    got += piece->size();
    *count += piece->size();
    b->given.fetch_add(piece->size(), std::memory_order_relaxed);
  }
  co_return got;
}

// Reads objects until none are left or time is up; each whole, or range by range.
awaitable<void> read_objects(http_state* b, std::uint64_t* count) {
  const auto memory =
      std::make_shared<memory_share>("reads", b->budget_of_each, read_block_allocator::instance());
  while (!b->over) {
    const std::size_t at = b->next_url.fetch_add(1, std::memory_order_relaxed);
    if (b->what.once && at >= b->what.urls.size()) co_return;
    const std::string url = b->what.urls[at % b->what.urls.size()];
    byte_range range;
    for (bool more = true; more && !b->over;) {
      if (b->what.range_bytes > 0) range.end = range.begin + b->what.range_bytes;
      const auto got = co_await read_one(b, memory, url, range, count);
      more = got && b->what.range_bytes > 0 && *got == b->what.range_bytes;
      if (more) range.begin = *range.end;
    }
  }
}

awaitable<void> run_readers(http_state* b, std::size_t readers) {
  b->bytes_of_reader.resize(readers);
  for (std::size_t i = 0; i < readers; ++i) {
    b->readers.spawn(read_objects(b, &b->bytes_of_reader[i]));
  }
  co_await b->readers.join();
  b->tasks.stop();
  co_await b->tasks.join();
}

}  // namespace

http_bench_report run_http_bench(const engine_options& how, const http_bench_options& what) {
  http_bench_report report;
  report.connections = what.connections;
  report.budget_bytes = how.memory_bytes > 0 ? how.memory_bytes : default_memory_bytes();
  runtime threads({.io_threads = std::min(how.io_threads, what.connections),
                   .cpu_threads = how.cpu_threads,
                   .io = how.io,
                   .register_buffers = how.register_buffers});
  std::atomic<std::size_t> next_url = 0;
  std::vector<std::unique_ptr<http_state>> parts;
  const auto readers = static_cast<std::size_t>(what.connections);
  const auto io_threads = static_cast<std::size_t>(threads.io_threads());
  for (int i = 0; i < threads.io_threads(); ++i) {
    io_thread& io = threads.io(i);
    parts.push_back(std::unique_ptr<http_state>(new http_state{
        .threads = threads,
        .io = io,
        .sources = standard_sources(io, how.source),
        .what = what,
        .source = how.source,
        .budget_of_each =
            std::min(report.budget_bytes / readers, memory_for(how.source, what.urls).most),
        .tasks = scope(io.executor()),
        .readers = scope(io.executor()),
        .next_url = next_url}));
  }
  if (!what.once) report.interval_s = interval_of(what.seconds);
  const stopwatch_pair watch;
  std::vector<std::future<void>> running;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t mine = readers / io_threads + (i < readers % io_threads ? 1 : 0);
    running.push_back(spawn_on(parts[i]->io.executor(), run_readers(parts[i].get(), mine)));
  }
  constexpr double for_ever = 1e9;
  report.rate_over_time =
      rates_over_time(counted_in(what.read, given_by(parts)), running,
                      what.once ? for_ever : what.seconds, report.interval_s, what.stop);
  end_all(parts, running, [](auto& part) { part.readers.stop(); });
  report.seconds = watch.seconds();
  report.cpu_seconds = watch.cpu_seconds();
  report.interrupted = what.stop.stop_requested();
  for (const auto& part : parts) {
    if (part->failed) throw failure(*part->failed);
    report.bytes += part->given;
    report.objects += part->objects;
    report.counters.add(part->counters);
    for (const std::uint64_t bytes : part->bytes_of_reader) {
      report.rate_of_connection.push_back(static_cast<double>(bytes) / 1e6 / report.seconds);
    }
  }
  if (report.bytes == 0 && report.objects == 0 && report.counters.retries > 0 &&
      !what.stop.stop_requested()) {
    throw failure(error(errc::timed_out,
                        fmt::format("nothing was read within {:.0f} s, by {}", report.seconds,
                                    counted(report.counters.requests, "request")))
                      .at(what.urls.front())
                      .hint("check the server: the notices above show its answers"));
  }
  const auto& limits = how.source.http.timeouts;
  report.stalled_s =
      static_cast<double>(report.counters.stalls) *
      std::chrono::duration<double>(std::min(limits.first_byte, limits.progress)).count();
  std::ranges::sort(report.rate_of_connection);
  return report;
}

std::string http_bench_report::limit(int cpus) const {
  if (bytes == 0) return "nothing was read";
  if (cpu_seconds > 0.9 * seconds * cpus) return "the CPUs";
  if (cpu_seconds > 0.9 * seconds)
    return "one I/O thread, which is what a loader uses (MILLRACE_IO_THREADS is for several "
           "loaders)";
  const double all = seconds * connections;
  if (counters.memory_wait_s > 0.5 * all) return "the memory budget (MILLRACE_MEMORY)";
  if (counters.stalls > 0 && (objects == 0 || stalled_s > 0.2 * all)) {
    return fmt::format("the server: {}, in which it sent almost nothing for seconds",
                       counted(counters.stalls, "stall"));
  }
  const double waiting = counters.first_byte_wait_s / all;
  if (waiting > 0.3) {
    return fmt::format(
        "the server: {:.0f} % of the time was spent waiting for first bytes; more --connections "
        "hide that wait",
        100 * std::min(1.0, waiting));
  }
  return "the link, or the server's sending rate";
}

}  // namespace millrace
