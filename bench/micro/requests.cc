// Names of shards, and what it takes to ask a server for them.
#include <benchmark/benchmark.h>

#include "io/names/brace_expand.h"
#include "io/names/url.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

void parse_url_of_a_shard(benchmark::State& bench) {
  for (auto _ : bench) {
    benchmark::DoNotOptimize(parse_url(
        "https://user@host.example:8443/data/train%20set/shard-000123.tar?versionId=abc"));
  }
  bench.SetItemsProcessed(bench.iterations());
}
BENCHMARK(parse_url_of_a_shard);

void expand_braces(benchmark::State& bench) {
  for (auto _ : bench) {
    benchmark::DoNotOptimize(brace_expand("s3://bucket/{train,val}/shard-{000000..000999}.tar"));
  }
  bench.SetItemsProcessed(bench.iterations() * 2'000);
}
BENCHMARK(expand_braces);

// An object, from its request to its last byte, over a network in memory: what the client computes.
void http_transfer(benchmark::State& bench) {
  testing::simulated_client client;
  client.options.split = static_cast<int>(bench.range(1));
  const std::string content(static_cast<std::size_t>(bench.range(0)), 'x');
  client.net->serve("10.0.0.1",
                    [&](const std::string& request) { return testing::answer(request, content); });
  for (auto _ : bench) {
    const auto got = client.read("http://h/shard.tar");
    if (got.content.size() != content.size()) bench.SkipWithError("bytes are missing");
  }
  bench.SetItemsProcessed(bench.iterations());
  bench.SetBytesProcessed(bench.iterations() * bench.range(0));
}
BENCHMARK(http_transfer)
    ->ArgNames({"bytes", "split"})
    ->Args({1'000, 1})
    ->Args({16 << 20, 1})
    ->Args({16 << 20, 4})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace millrace
