// What a crossing between threads and coroutines costs.
#include <benchmark/benchmark.h>

#include <thread>

#include "engine/coroutines/channel.h"
#include "engine/coroutines/scope.h"
#include "engine/coroutines/spawn_on.h"
#include "engine/host/start_thread.h"
#include "engine/threads/bounded_queue.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/offload.h"
#include "engine/threads/runtime.h"

namespace millrace {
namespace {

constexpr std::int64_t items = 10'000;  // of one round: starting it costs next to nothing

void queue_on_one_thread(benchmark::State& bench) {
  bounded_queue<int> queue(64);
  int item = 0;
  for (auto _ : bench) {
    queue.try_push(1);
    queue.try_pop(item);
    benchmark::DoNotOptimize(item);
  }
  bench.SetItemsProcessed(bench.iterations());
}
BENCHMARK(queue_on_one_thread);

void queue_between_threads(benchmark::State& bench) {
  for (auto _ : bench) {
    bounded_queue<int> queue(64);
    const auto producer = start_joined_thread("producer", [&](const std::stop_token& /*asked*/) {
      for (int i = 0; i < items; ++i) {
        while (!queue.try_push(i)) std::this_thread::yield();
      }
    });
    int item = 0;
    for (int i = 0; i < items; ++i) {
      while (!queue.try_pop(item)) std::this_thread::yield();
    }
  }
  bench.SetItemsProcessed(bench.iterations() * items);
}
BENCHMARK(queue_between_threads)->UseRealTime();

awaitable<void> push_all(channel<int>& to) {
  for (int i = 0; i < items; ++i) static_cast<void>(co_await to.push(i));
  to.close();
}
awaitable<std::int64_t> sum_of(channel<int>& from) {
  std::int64_t sum = 0;
  for (;;) {
    auto one = co_await from.pop();
    if (!one || !*one) co_return sum;
    sum += **one;
  }
}
awaitable<std::int64_t> pass_through_channel(asio::any_io_executor executor, std::size_t capacity) {
  channel<int> between(executor, capacity);
  scope tasks(executor);
  tasks.spawn(push_all(between));
  const std::int64_t sum = co_await sum_of(between);
  co_await tasks.join();
  co_return sum;
}

void channel_between_coroutines(benchmark::State& bench) {
  runtime threads({.cpu_threads = 1});
  io_thread& io = threads.io(0);
  const auto capacity = static_cast<std::size_t>(bench.range(0));
  for (auto _ : bench) {
    benchmark::DoNotOptimize(
        spawn_on(io.executor(), pass_through_channel(io.executor(), capacity)).get());
  }
  bench.SetItemsProcessed(bench.iterations() * items);
}
BENCHMARK(channel_between_coroutines)->Arg(1)->Arg(64)->UseRealTime();

awaitable<void> offload_all(io_thread& io, worker_pool& pool, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) co_await offload(io, pool, [] { return 1; });
}
awaitable<void> offload_side_by_side(io_thread& io, worker_pool& pool, std::int64_t jobs) {
  scope tasks(io.executor());
  for (std::int64_t i = 0; i < jobs; ++i) tasks.spawn(offload_all(io, pool, items / jobs));
  co_await tasks.join();
}

void offload_of_nothing(benchmark::State& bench) {
  runtime threads({.cpu_threads = 1});
  for (auto _ : bench) {
    spawn_on(threads.io(0).executor(),
             offload_side_by_side(threads.io(0), threads.cpu(), bench.range(0)))
        .get();
  }
  bench.SetItemsProcessed(bench.iterations() * items);
}
BENCHMARK(offload_of_nothing)->Arg(1)->Arg(16)->UseRealTime();

}  // namespace
}  // namespace millrace
