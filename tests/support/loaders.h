#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "io/files/memory_source.h"
#include "pipeline/formats/group.h"
#include "pipeline/formats/scan.h"
#include "pipeline/formats/untar.h"
#include "pipeline/pixels/image.h"
#include "pipeline/run/engine.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/stages/shuffle.h"
#include "tests/support/seeds.h"

namespace millrace::testing {

// An engine that also reads "memory:NAME" from `store`.
inline engine_options with_memory_store(std::shared_ptr<memory_store> store, int cpu_threads = 2,
                                        std::size_t memory = 256_MiB) {
  engine_options o;
  o.cpu_threads = cpu_threads;
  o.memory_bytes = memory;
  o.source.chunk_bytes = 64_KiB;
  o.source.http.backoff = std::chrono::milliseconds(1);
  o.add_sources = [store = std::move(store)](source_registry& sources) {
    sources.add("memory", memory_source_factory(store));
  };
  return o;
}

// The names of items in tests, and a function that returns them unchanged.
inline constexpr auto key_of = [](const auto& item) { return item.key; };
inline constexpr auto same = [](sample s) { return s; };

// The keys of one epoch.
inline std::vector<std::string> keys_of_epoch(loader<sample>& data) {
  std::vector<std::string> keys;
  for (const sample& s : data) keys.push_back(s.key);
  return keys;
}
inline std::vector<std::string> keys_of_epoch(loader<host_batch>& data) {
  std::vector<std::string> keys;
  for (const host_batch& b : data) keys.insert(keys.end(), b.keys.begin(), b.keys.end());
  return keys;
}

// The records of the usual plans for redealt().
inline std::vector<lane_dealer> usual_records() {
  return (shards({"memory:any"}) | untar() | group_by_key() | shuffle()).traits.records;
}

// The name of each item, and "end" for each end of an epoch, until there are no more.
template <class T, class F>
std::vector<std::string> names_of(loader<T>& data, F name) {
  std::vector<std::string> out;
  for (bool ended = false;;) {
    const auto item = data.next();
    if (!item && ended) return out;
    ended = !item;
    out.push_back(item ? name(*item) : "end");
  }
}

// A plan that is stopped after every step-th item and resumed there gives what it would have given.
template <class P, class F>
void expect_resumable(engine& eng, const P& plan, F name, std::size_t step = 3) {
  auto whole = eng.run(plan);
  const auto expected = names_of(whole, name);
  ASSERT_GT(expected.size(), 4U);
  for (std::size_t stop = 0; stop < expected.size(); stop += step * every()) {
    auto first = eng.run(plan);
    std::vector<std::string> got;
    for (std::size_t i = 0; i < stop; ++i) {
      const auto item = first.next();
      got.push_back(item ? name(*item) : "end");
    }
    auto second = eng.run(plan);
    second.restore(state::from_json(first.save().to_json()).value());
    for (auto& rest : names_of(second, name)) got.push_back(std::move(rest));
    ASSERT_EQ(got, expected) << "stopped at " << stop;
  }
}

// The least memory that a plan accepts, as the refusal of less says.
template <class P>
std::size_t least_memory(engine_options options, const P& plan) {
  options.memory_bytes = 1;
  try {
    engine eng(options);
    eng.run(plan);
  } catch (const failure& f) {
    constexpr std::string_view begin = "MILLRACE_MEMORY=";
    const std::string said = f.what();
    const auto at = said.find(begin);
    if (at != said.npos) return std::stoull(said.substr(at + begin.size())) * 1_MiB;
  }
  ADD_FAILURE() << "no least figure";
  return 256_MiB;
}

// An index of these shards, with the places of samples.
inline shard_index index_of(engine& eng, const std::vector<std::string>& urls) {
  shard_index index;
  for (const shard_facts& f : eng.run(scan(urls))) {
    shard_index::shard s{.url = f.url,
                         .samples = std::ssize(f.samples),
                         .bytes = static_cast<std::int64_t>(f.bytes)};
    list_places(f, s);
    index.shards.push_back(std::move(s));
  }
  return index;
}

}  // namespace millrace::testing
