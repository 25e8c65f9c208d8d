// From the bytes of archives to samples.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "engine/base/units.h"
#include "io/files/memory_source.h"
#include "pipeline/formats/group.h"
#include "pipeline/formats/tar_parser.h"
#include "pipeline/formats/untar.h"
#include "pipeline/run/engine.h"
#include "pipeline/stages/shuffle.h"
#include "tests/support/tar_builder.h"

namespace millrace {
namespace {

constexpr int samples = 2'000;

// Samples of a label and `bytes` of an image.
std::string archive_of(std::size_t bytes) {
  testing::tar_builder tar;
  const std::string image(bytes, 'x');
  for (int i = 0; i < samples; ++i) {
    tar.file(fmt::format("{:06}.cls", i), "17").file(fmt::format("{:06}.jpg", i), image);
  }
  return tar.end().str();
}

void tar_headers(benchmark::State& bench) {
  const std::string archive = archive_of(static_cast<std::size_t>(bench.range(0)));
  for (auto _ : bench) {
    tar_parser parser;
    auto input = std::as_bytes(std::span(archive));
    while (*parser.step(input) != tar_parser::event::archive_end) {
    }
  }
  bench.SetItemsProcessed(bench.iterations() * samples * 2);
}
BENCHMARK(tar_headers)->Arg(100)->Arg(10'000);

// One lane, on the I/O thread; `shuffled`: of so many samples.
void samples_of_a_shard(benchmark::State& bench, std::size_t bytes, std::size_t shuffled) {
  const auto store = std::make_shared<memory_store>(1_MiB);
  store->put("shard", archive_of(bytes));
  engine_options options{.cpu_threads = 1, .memory_bytes = 512_MiB};
  options.add_sources = [&](source_registry& sources) {
    sources.add("memory", memory_source_factory(store));
  };
  engine eng(options);
  for (auto _ : bench) {
    auto grouped = shards({"memory:shard"}, {.lanes = 1, .epochs = 1}) | untar() | group_by_key();
    if (shuffled > 0) grouped = std::move(grouped) | shuffle({.samples = shuffled});
    auto data = eng.run(interleaved(std::move(grouped)));
    int given = 0;
    while (data.next()) ++given;
    if (given != samples) bench.SkipWithError("samples are missing");
  }
  bench.SetItemsProcessed(bench.iterations() * samples);
}
void grouping(benchmark::State& bench) {
  samples_of_a_shard(bench, static_cast<std::size_t>(bench.range(0)), 0);
}
BENCHMARK(grouping)->Arg(100)->Arg(10'000)->UseRealTime();
void shuffling(benchmark::State& bench) {
  samples_of_a_shard(bench, 100, static_cast<std::size_t>(bench.range(0)));
}
BENCHMARK(shuffling)->Arg(10)->Arg(1'000)->UseRealTime();

// A state of a lane whose shuffle holds so many samples.
state state_of(std::int64_t held) {
  state out;
  std::vector<origin> places;
  places.reserve(static_cast<std::size_t>(held));
  for (std::int64_t i = 0; i < held; ++i) {
    places.push_back({.shard = i / 1'000, .offset = i % 1'000 * 10'240, .position = i});
  }
  out.put("lane0/cursor", {0, 1, 512, 0});
  out.hold("lane0/shuffle", places);
  return out;
}

void state_to_json(benchmark::State& bench) {
  const state saved = state_of(bench.range(0));
  for (auto _ : bench) benchmark::DoNotOptimize(saved.to_json());
  bench.SetItemsProcessed(bench.iterations() * bench.range(0));
}
BENCHMARK(state_to_json)->Arg(1'000)->Arg(100'000);

void state_from_json(benchmark::State& bench) {
  const std::string text = state_of(bench.range(0)).to_json();
  for (auto _ : bench) benchmark::DoNotOptimize(state::from_json(text));
  bench.SetItemsProcessed(bench.iterations() * bench.range(0));
}
BENCHMARK(state_from_json)->Arg(1'000)->Arg(100'000);

}  // namespace
}  // namespace millrace
