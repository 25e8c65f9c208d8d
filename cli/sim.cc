#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "pipeline/tools/scan.h"
#include "pipeline/tools/simulate.h"
#include "pipeline/wids/shard_index.h"

namespace millrace::cli {
namespace {

struct arguments {
  shard_arguments shards;
  std::string index;
  std::string counts;
  loader_simulation loader;
  bool show_splits = false;
  bool show_open = false;
  int lanes = 0;
  bool quality = false;
  quality_options mixing;
  bool json = false;
};

// "95,88,91", or "90x10" for ten of 90.
std::vector<std::int64_t> counts_in(const std::string& text) {
  std::vector<std::int64_t> out;
  for (std::size_t from = 0; from <= text.size();) {
    const auto end = std::min(text.find(',', from), text.size());
    const char* at = text.data() + from;
    std::int64_t count = -1;
    std::int64_t times = 1;
    auto parsed = std::from_chars(at, text.data() + end, count);
    if (parsed.ec == std::errc{} && parsed.ptr < text.data() + end && *parsed.ptr == 'x') {
      parsed = std::from_chars(parsed.ptr + 1, text.data() + end, times);
    }
    constexpr std::int64_t most = 10'000'000;
    if (parsed.ec != std::errc{} || parsed.ptr != text.data() + end || count < 0 || times < 1 ||
        times > most) {
      throw failure(error(errc::usage, fmt::format("'{}' is no list of counts", text))
                        .hint("write 95,88,91 or, for ten shards of 90 samples, 90x10"));
    }
    out.insert(out.end(), static_cast<std::size_t>(times), count);
    from = end + 1;
  }
  return out;
}

struct shard_list {
  std::vector<std::string> names;
  std::vector<std::int64_t> samples;
};

shard_list lengths(const environment& e, const arguments& a) {
  shard_list out;
  if (!a.counts.empty()) {
    out.samples = counts_in(a.counts);
    for (std::size_t i = 0; i < out.samples.size(); ++i) out.names.push_back(fmt::format("#{}", i));
    return out;
  }
  engine eng(a.shards.engine(e));
  if (!a.index.empty()) {
    for (const auto& s : read_index(eng, a.index, a.shards.base).shards) {
      out.names.push_back(s.url);
      out.samples.push_back(s.samples);
    }
    return out;
  }
  if (a.shards.specs.empty()) {
    throw failure(error(errc::usage, "no shards")
                      .hint("name shards, an --index, or --counts 90x10 (ten shards of 90)"));
  }
  out.names = a.shards.urls(e);
  for (const shard_facts& f : eng.run(scan(out.names, {.md5 = false}))) {
    if (!f.problems.empty()) throw failure(f.problems.front());
    out.samples.push_back(std::ssize(f.samples));
  }
  return out;
}

void print_parameters(const loader_simulation& s) {
  fmt::print("parameters:\n\tworldsize {}\n\tnworkers {}\n\tnshards {}\n\tpartial {}\n",
             s.world_size, s.workers, s.samples.size(), s.partial ? "True" : "False");
  fmt::print("\tnbatches {}\n\tloader-repeat {}\n\tdataset-repeat {}\n\n", s.batches, s.repeat,
             s.dataset_repeat);
}

void print_splits(const arguments& a, const shard_list& shards, int rank) {
  const loader_simulation& s = a.loader;
  for (int w = 0; w < std::max(s.workers, 1); ++w) {
    const auto mine = s.shards_of(rank, w);
    if (a.show_splits) {
      std::size_t of_node = 0;
      for (int other = 0; other < std::max(s.workers, 1); ++other) {
        of_node += s.shards_of(rank, other).size();
      }
      fmt::print(stderr, "split_by_node {}/{} len={}\n", rank, s.world_size, of_node);
      fmt::print(stderr, "split_by_worker {}/{} len={}\n", w, s.workers, mine.size());
    }
    if (!a.show_open) continue;
    for (const std::size_t i : mine) fmt::print(stderr, "GOPEN {}\n", redacted(shards.names[i]));
  }
}

nlohmann::json print_own_modes(const arguments& a) {
  const loader_simulation& s = a.loader;
  auto out = nlohmann::json::array();
  if (s.world_size < 1) return out;
  const int lanes = shard_list_options{.world_size = s.world_size, .lanes = a.lanes}.lane_count();
  if (!a.json) fmt::print("\nmillrace, {} lanes, batches of {}:\n", lanes, s.batch_size);
  for (const epoch_figures& f :
       simulate_modes(s.samples, s.world_size, s.batch_size, !s.partial, a.lanes, 0)) {
    const auto [least, most] = std::ranges::minmax(f.batches);
    if (!a.json) {
      fmt::print(
          "{:17} {} batches a rank; {} samples given, {} dropped, {} given twice; idle at the end "
          "{:.1f} %\n",
          f.mode, least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most),
          f.delivered, f.dropped, f.repeated, 100 * f.idle);
    }
    out.push_back({{"mode", f.mode},
                   {"batches", f.batches},
                   {"samples", f.delivered},
                   {"dropped", f.dropped},
                   {"repeated", f.repeated},
                   {"idle", f.idle}});
  }
  return out;
}

int quality(const arguments& a) {
  auto list = nlohmann::json::array();
  if (!a.json) {
    fmt::print("{} shards of {} samples sorted by {} classes, {} held\n", a.mixing.shards,
               a.mixing.samples_per_shard, a.mixing.classes, a.mixing.buffer);
    fmt::print("{:20} {:>8} {:>12} {:>10}\n", "", "moved", "neighbours", "classes");
  }
  for (const shuffle_quality& q : simulate_quality(a.mixing)) {
    if (!a.json)
      fmt::print("{:20} {:8.4f} {:12.5f} {:10.3f}\n", q.name, q.moved, q.neighbours, q.classes);
    list.push_back({{"order", q.name},
                    {"moved", q.moved},
                    {"neighbours", q.neighbours},
                    {"classes", q.classes}});
  }
  if (a.json) {
    fmt::print("{}\n", nlohmann::json{{"quality", list}}.dump());
  } else {
    fmt::print(
        "\nmoved: mean distance from the place in the list, as a part of it (1/3 is random)\n");
    fmt::print("neighbours: part that stood within 100 places of the sample before already\n");
    fmt::print("classes: different ones in a batch of 256, as a part of a full permutation's\n");
  }
  return 0;
}

int sim(const environment& e, arguments a) {
  if (a.quality) return quality(a);
  const shard_list shards = lengths(e, a);
  loader_simulation& s = a.loader;
  s.samples = shards.samples;
  if (!a.json) print_parameters(s);
  bool same = true;
  auto ranks = nlohmann::json::array();
  batch_histogram first;
  for (int r = 0; r < s.world_size; ++r) {
    if (a.show_splits || a.show_open) print_splits(a, shards, r);
    const auto batches = s.rank(r);
    if (r == 0) first = batches;
    same = same && batches == first;
    ranks.push_back(batches);
    if (!a.json) fmt::print("rank {}: {}\n", r, python_text(batches));
  }
  if (!a.json) {
    fmt::print("\n{}\n", same ? "SUCCESS: same batches in all workers"
                              : "FAILED: inconsistent batches in different workers");
  }
  auto modes = print_own_modes(a);
  if (a.json) {
    fmt::print("{}\n",
               nlohmann::json{{"success", same}, {"ranks", ranks}, {"millrace", modes}}.dump());
  }
  return 0;
}

}  // namespace

action add_sim(CLI::App& app) {
  CLI::App* command = app.add_subcommand("sim", "batches of each rank, before training");
  auto a = std::make_shared<arguments>();
  loader_simulation& s = a->loader;
  constexpr int many = 1'000'000;
  a->shards.add_to(*command, false);
  command->add_option("--index", a->index, "take the shards and their lengths from this index");
  command->add_option("--counts", a->counts, "lengths without shards: 95,88,91 or 90x10");
  command->add_option("--size", s.world_size, "ranks")
      ->check(CLI::Range(0, many))
      ->capture_default_str();
  command->add_option("--batch-size", s.batch_size, "samples in a batch")
      ->check(CLI::Range(1, many))
      ->capture_default_str();
  command->add_option("--nworkers", s.workers, "worker processes of each rank")
      ->check(CLI::Range(0, many))
      ->capture_default_str();
  command->add_option("--nbatches", s.batches, "batches of an epoch, at most")
      ->capture_default_str();
  command->add_flag("--partial,!--no-partial", s.partial, "keep smaller batches");
  command->add_option("--repeat", s.repeat, "passes of the loader")
      ->check(CLI::Range(1, many))
      ->capture_default_str();
  command->add_option("--dsrepeat", s.dataset_repeat, "passes of each worker's dataset")
      ->check(CLI::Range(1, many))
      ->capture_default_str();
  command->add_flag("--showsplits,!--no-showsplits", a->show_splits, "say how shards are split");
  command->add_flag("--showopen,!--no-showopen", a->show_open, "say which shards are opened");
  command->add_option("--lanes", a->lanes, "of millrace (a multiple of --size, 8 or more)");
  command->add_flag("--quality", a->quality, "how well a shuffle mixes, beside others'");
  command->add_option("--shuffle", a->mixing.buffer, "samples that the shuffle holds (--quality)")
      ->check(CLI::Range(1, 100'000'000))
      ->capture_default_str();
  command->add_option("--shards", a->mixing.shards, "shards (--quality)")
      ->check(CLI::Range(1, many))
      ->capture_default_str();
  command->add_option("--samples", a->mixing.samples_per_shard, "samples in each (--quality)")
      ->check(CLI::Range(1, many))
      ->capture_default_str();
  command->add_flag("--json", a->json, "print one JSON object on the last line");
  return [a](const environment& e) { return sim(e, *a); };
}

}  // namespace millrace::cli
