// Stops the stage and the format of two examples after every few items, and resumes from there. Run
// in a folder with text-{0..3}.tar and lines-{0..3}.tsv. Prints how many samples came, each once.
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wreturn-type"  // of what is a main() there
#define main own_stage_main
#include "examples/own_stage.cc"  // NOLINT(bugprone-suspicious-include)
#undef main
#define main own_format_main
#include "examples/own_format.cc"  // NOLINT(bugprone-suspicious-include)
#undef main
#pragma clang diagnostic pop

#include <millrace/state.h>

#include <set>
#include <stdexcept>

namespace {

using key_set = std::multiset<std::string>;

template <class T>
void add(key_set& to, const T& item) {
  if constexpr (requires { item.items; }) {
    for (const auto& i : item.items) add(to, i);
  } else {
    to.insert(item.key);
  }
}

// The keys of up to `most` items, over all epochs.
template <class T>
key_set keys_of(loader<T>& data, std::size_t most, std::size_t& items) {
  key_set keys;
  items = 0;
  for (int empty = 0; empty < 2 && items < most;) {
    if (auto item = data.next()) {
      add(keys, *item);
      ++items;
      empty = 0;
    } else {
      ++empty;
    }
  }
  return keys;
}

template <class T>
void check(engine& eng, const char* name, const plan<T>& what) {
  std::size_t items = 0;
  auto unbroken = eng.run(what);
  const key_set whole = keys_of(unbroken, ~std::size_t{0}, items);
  const std::size_t all = items;
  for (std::size_t stop = 0; stop <= all; stop += 1 + all / 40) {
    auto first = eng.run(what);
    key_set keys = keys_of(first, stop, items);
    auto second = eng.run(what);
    second.restore(state::from_json(first.save().to_json()).value());
    keys.merge(keys_of(second, ~std::size_t{0}, items));
    if (keys != whole) throw std::runtime_error(std::string(name) + ": another set of samples");
  }
  std::printf("%s: %zu samples\n", name, whole.size());
}

// Two ranks begin, and three go on.
void check_ranks(engine& eng) {
  const auto part = [](int rank, int world_size) {
    return interleaved(
        shards(expand("lines-{0..3}.tsv"),
               {.seed = 1, .rank = rank, .world_size = world_size, .lanes = world_size}) |
        read_samples(std::make_shared<lines>()) | shuffle({.samples = 30}));
  };
  key_set keys;
  std::size_t items = 0;
  std::vector<state> states;
  for (int rank = 0; rank < 2; ++rank) {
    auto data = eng.run(part(rank, 2));
    keys.merge(keys_of(data, 70, items));
    states.push_back(data.save());
  }
  const state whole = merged(states);
  for (int rank = 0; rank < 3; ++rank) {
    auto data = eng.run(part(rank, 3));
    data.restore(whole);
    keys.merge(keys_of(data, ~std::size_t{0}, items));
  }
  const std::set<std::string> different(keys.begin(), keys.end());
  std::printf("ranks: %zu samples, %zu different\n", keys.size(), different.size());
}

}  // namespace

int main() try {
  engine eng({.cpu_threads = 2, .memory_bytes = 256_MiB, .source = {.chunk_bytes = 4_KiB}});
  const auto texts = shards(expand("text-{0..3}.tar"), {.seed = 1, .lanes = 2, .epochs = 2}) |
                     untar() | group_by_key() | keep_fields("txt") | shuffle({.samples = 10});
  check(eng, "stage", texts | packed_into(40));
  check(eng, "stage in front of others", texts | packed_into(40) | batched(3) | prefetch(2));
  check(eng, "format",
        interleaved(shards(expand("lines-{0..3}.tsv"), {.seed = 1, .lanes = 2, .epochs = 2}) |
                    read_samples(std::make_shared<lines>()) | shuffle({.samples = 30})));
  check_ranks(eng);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
