// The cost of long lists and long epochs: only a few bytes per shard should grow with them.
//
//   scale_bench first    1,000,000 shards in a list: the time from the list's text to the first
//                        sample, and the memory that it takes
//   scale_bench state    10,000,000 samples into an epoch of 100,000 shards, with a shuffle of
//                        10,000: how long save() and restore() take, and how large the state is
//   scale_bench ranks N    100,000 shards on N ranks, of which each hundredth is lost: what each of
//                        them does to begin, what a checkpoint holds of them, and how long dividing
//                        the rest of the epoch to the others takes
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/host/standard_error.h"
#include "io/files/memory_source.h"
#include "io/names/shard_spec.h"
#include "millrace/millrace.h"
#include "pipeline/formats/tar_writer.h"
#include "tools/bench/measure.h"

namespace {

using namespace millrace;

// An engine to which every URL "same:..." is one archive of `samples` small samples.
class same_everywhere {
 public:
  explicit same_everywhere(int samples) {
    const std::string path = fmt::format("/dev/shm/millrace-scale-bench-{}.tar", samples);
    tar_writer out(path);
    for (int i = 0; i < samples; ++i) {
      out.add(fmt::format("{:06}.txt", i), "text");
      out.add(fmt::format("{:06}.cls", i), "17");
    }
    out.close();
    std::ifstream in(path, std::ios::binary);
    store_->put("a", {std::istreambuf_iterator<char>(in), {}});
    std::filesystem::remove(path);
  }
  engine_options options() const {
    engine_options how{.cpu_threads = 1, .memory_bytes = 1_GiB};
    how.add_sources = [store = store_](source_registry& to) {
      to.add("same", [inner = memory_source_factory(store)](
                         source_context context, const std::string& /*text*/, const url& /*where*/,
                         byte_range range) {
        return inner(std::move(context), "memory:a", parse_url("memory:a").value(), range);
      });
    };
    return how;
  }

 private:
  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(2_MiB);
};

double resident_mb() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_maxrss) * 1024 / 1e6;
}

void first_sample() {
  const same_everywhere where(100);
  engine eng(where.options());
  const double before = resident_mb();
  const stopwatch_pair watch;
  auto urls = expand_shards("same:train/shard-{0000000..0999999}.tar").value();
  const double listed = watch.seconds();
  auto data = eng.run(shards(std::move(urls), {.seed = 1}) | untar() | group_by_key());
  const auto s = data.next();
  fmt::print(
      "1,000,000 shards: listed after {:.3f} s, first sample ({} of {}) after {:.3f} s; "
      "{:.0f} MB more than the {:.0f} MB before\n",
      listed, s->key, *s->url, watch.seconds(), resident_mb() - before, before);
}

plan<group_of<sample>> long_epoch() {
  return shards(expand_shards("same:train/shard-{000000..099999}.tar").value(), {.seed = 1}) |
         untar() | group_by_key() | shuffle({.samples = 10'000, .seed = 1}) | batched(1000);
}

void state_far_in() {
  const same_everywhere where(1000);
  engine eng(where.options());
  auto data = eng.run(long_epoch());
  for (int i = 0; i < 10'000; ++i) data.next();
  const stopwatch_pair saving;
  const std::string text = data.save().to_json();
  const double saved = saving.seconds();
  const auto expected = data.next();
  auto again = eng.run(long_epoch());
  const stopwatch_pair restoring;
  again.restore(state::from_json(text).value());
  const double restored = restoring.seconds();
  const auto got = again.next();
  fmt::print(
      "10,000,000 samples into 100,000 shards: saved in {:.1f} ms, {:.1f} kB; restored in "
      "{:.1f} ms, the next 1,000 samples after {:.1f} ms: {}\n",
      saved * 1e3, static_cast<double>(text.size()) / 1e3, restored * 1e3,
      restoring.seconds() * 1e3,
      got->items.back().where == expected->items.back().where ? "the right ones" : "WRONG");
}

// Of one rank, in the middle of an epoch.
lane_plan<sample> of_rank(const std::vector<std::string>& urls, int rank, int world_size) {
  return shards(urls, {.seed = 1, .rank = rank, .world_size = world_size}) | untar() |
         group_by_key() | shuffle({.samples = 2'000, .seed = 1});
}

// How long `f` took, in seconds.
double seconds_of(const auto& f) {
  const stopwatch_pair watch;
  f();
  return watch.seconds();
}

void many_ranks(int ranks) {
  const same_everywhere where(200);
  engine eng(where.options());
  const auto urls = expand_shards("same:train/shard-{000000..099999}.tar").value();
  std::vector<state> of_ranks;
  double begun = 0;
  double saved = 0;
  std::size_t bytes = 0;
  for (int r = 0; r < ranks; ++r) {
    auto data = eng.run(of_rank(urls, r, ranks));
    begun += seconds_of([&] { data.next(); });
    for (int i = 0; i < 100; ++i) data.next();
    std::string text;
    saved += seconds_of([&] { text = data.save().to_json(); });
    bytes += text.size();
    of_ranks.push_back(state::from_json(text).value());
  }
  const double before = resident_mb();
  state all;
  const double merging = seconds_of([&] { all = merged(of_ranks); });
  const int left = ranks - std::max(1, ranks / 100);
  std::size_t of_all = all.to_json().size();
  double restored = 0;
  double first = 0;
  constexpr int tried = 8;
  for (int i = 0; i < tried; ++i) {
    auto data = eng.run(of_rank(urls, i * (left - 1) / (tried - 1), left));
    restored += seconds_of([&] { data.restore(all); });
    first += seconds_of([&] { data.next(); });
  }
  fmt::print(
      "{} ranks: first sample after {:.1f} ms, saved in {:.2f} ms, {:.1f} kB a rank, {:.1f} MB in "
      "all; merged in {:.3f} s, {:.1f} MB; each of {} ranks: the rest distributed in {:.3f} s, "
      "next "
      "sample after {:.3f} s; {:.0f} MB more memory\n",
      ranks, 1e3 * begun / ranks, 1e3 * saved / ranks, static_cast<double>(bytes) / ranks / 1e3,
      static_cast<double>(bytes) / 1e6, merging, static_cast<double>(of_all) / 1e6, left,
      restored / tried, first / tried, resident_mb() - before);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 0;
  if (what == "first") {
    first_sample();
  } else if (what == "state") {
    state_far_in();
  } else if (what == "ranks" && ranks > 1) {
    many_ranks(ranks);
  } else {
    to_stderr("usage: scale_bench first|state|ranks N\n");
    return 2;
  }
}
