#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "engine/base/words.h"
#include "engine/host/standard_error.h"
#include "pipeline/formats/scan.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/wids/index_entries.h"
#include "pipeline/wids/read_index.h"
#include "tools/inspect/simulate.h"

namespace millrace::cli {
namespace {

struct sim_arguments {
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

// Parses "95,88,91", or "90x10" for ten times 90.
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
    if (parsed.ec != std::errc{} || parsed.ptr != text.data() + end || count < 0 || times < 1) {
      throw failure(error(errc::usage, fmt::format("'{}' is not a list of counts", text))
                        .hint("write 95,88,91 or, for ten shards of 90 samples, 90x10"));
    }
    if (times > most - std::ssize(out)) {
      throw failure(error(errc::usage, fmt::format("--counts names more than {} shards", most)));
    }
    out.insert(out.end(), static_cast<std::size_t>(times), count);
    from = end + 1;
  }
  return out;
}

struct shard_list {
  std::vector<std::string> names;  // empty: shards without names
  std::vector<std::int64_t> samples;
  bool has_offsets = false;  // in the index

  std::string name(std::size_t i) const {
    return names.empty() ? fmt::format("#{}", i) : redacted(names[i]);
  }
};

// The lengths that the index gives for the shards, or for all that it lists if none are named.
shard_list lengths_in_index(const environment& e, const sim_arguments& a) {
  engine eng(a.shards.engine(e));
  const shard_index said = read_index(eng, a.index, a.shards.base);
  shard_list out;
  if (a.shards.specs.empty()) {
    for (const auto& s : said.shards) {
      out.names.push_back(s.url);
      out.samples.push_back(s.samples);
    }
    out.has_offsets = said.has_offsets();
    return out;
  }
  out.names = a.shards.urls(e);
  const index_entries entries(said, out.names);
  shard_index chosen;
  for (const std::string& url : out.names) {
    const auto [shard, is_ambiguous] = entries.find(url);
    if (shard == nullptr) throw failure(not_listed(url, is_ambiguous));
    out.samples.push_back(shard->samples);
    chosen.shards.push_back(*shard);
  }
  out.has_offsets = chosen.has_offsets();
  return out;
}

// nullopt after a signal.
std::optional<shard_list> lengths(const environment& e, const sim_arguments& a) {
  shard_list out;
  if (!a.counts.empty()) {
    out.samples = counts_in(a.counts);
    return out;
  }
  if (!a.index.empty()) return lengths_in_index(e, a);
  if (a.shards.specs.empty()) {
    throw failure(error(errc::usage, "no shards")
                      .hint("name shards, an --index, or --counts 90x10 (ten shards of 90)"));
  }
  out.names = a.shards.urls(e);
  const std::stop_token stop = stop_requested();
  engine eng(a.shards.engine(e));
  auto data = eng.run(scan(out.names, {.md5 = false, .keys = false}));
  std::atomic<std::uint64_t> shards = 0;
  const progress shown("sim", {.items = out.names.size()},
                       [&] { return work_done{data.stats().sources.bytes, shards}; });
  const bool whole = take_until_stopped(data, stop, [&](const shard_facts& f) {
    if (!f.problems.empty()) throw failure(f.problems.front());
    out.samples.push_back(std::ssize(f.samples));
    ++shards;
  });
  if (!whole) return std::nullopt;
  return out;
}

void print_parameters(const loader_simulation& s) {
  fmt::print("parameters:\n\tworldsize {}\n\tnworkers {}\n\tnshards {}\n\tpartial {}\n",
             s.world_size, s.workers, s.samples.size(), s.partial ? "True" : "False");
  fmt::print("\tnbatches {}\n\tloader-repeat {}\n\tdataset-repeat {}\n\n", s.batches, s.repeat,
             s.dataset_repeat);
}

void print_splits(const sim_arguments& a, const shard_list& shards, int rank) {
  const loader_simulation& s = a.loader;
  for (int w = 0; w < std::max(s.workers, 1); ++w) {
    const auto mine = s.shards_of(rank, w);
    if (a.show_splits) {
      std::size_t of_node = 0;
      for (int other = 0; other < std::max(s.workers, 1); ++other) {
        of_node += s.shards_of(rank, other).size();
      }
      to_stderr("split_by_node {}/{} len={}\n", rank, s.world_size, of_node);
      to_stderr("split_by_worker {}/{} len={}\n", w, s.workers, mine.size());
    }
    if (!a.show_open) continue;
    for (const std::size_t i : mine) to_stderr("GOPEN {}\n", shards.name(i));
  }
}

nlohmann::json print_own_modes(const sim_arguments& a, bool has_offsets) {
  const loader_simulation& s = a.loader;
  auto out = nlohmann::json::array();
  const int lanes = shard_list_options{.world_size = s.world_size, .lanes = a.lanes}.lane_count();
  if (!a.json)
    fmt::print("\nmillrace, {}, batches of {}:\n",
               counted(static_cast<std::uint64_t>(lanes), "lane"), s.batch_size);
  for (const epoch_figures& f :
       simulate_modes(s.samples, has_offsets, s.world_size, s.batch_size, !s.partial, a.lanes, 0)) {
    const auto [least, most] = std::ranges::minmax(f.batches);
    if (!a.json) {
      fmt::print(
          "{:17} {} batches per rank; {} samples delivered, {} dropped, {} repeated; idle at the "
          "end {:.1f} %\n",
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

int quality(const sim_arguments& a) {
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
    print_json({{"quality", list}});
  } else {
    fmt::print(
        "\nmoved: mean distance from the original place, as a share of the list (1/3 is random)\n");
    fmt::print(
        "neighbours: share that was within 100 places of the previous sample before shuffling\n");
    fmt::print("classes: distinct ones in a batch of 256, relative to a full permutation\n");
  }
  return 0;
}

int sim(const environment& e, sim_arguments a) {
  const int ranks = a.loader.world_size;
  if (a.lanes != 0 && (a.lanes < 0 || a.lanes % ranks != 0)) {
    throw failure(
        error(errc::usage,
              fmt::format("--lanes {} cannot be divided evenly among {} ranks", a.lanes, ranks))
            .hint("--lanes takes a multiple of --world-size"));
  }
  if (a.quality) return quality(a);
  const auto stopped = [&] {
    if (a.json) print_json({{"interrupted", true}});
    return exit_code_of_interrupt();
  };
  const auto shards = lengths(e, a);
  if (!shards) return stopped();
  loader_simulation& s = a.loader;
  s.samples = shards->samples;
  if (!a.json) print_parameters(s);
  const std::atomic<bool>& is_over = interrupted();
  bool same = true;
  auto by_rank = nlohmann::json::array();
  batch_histogram first;
  for (int r = 0; r < s.world_size; ++r) {
    if (is_over) return stopped();
    if (a.show_splits || a.show_open) print_splits(a, *shards, r);
    const auto batches = s.rank(r);
    if (r == 0) first = batches;
    same = same && batches == first;
    by_rank.push_back(batches);
    if (!a.json) fmt::print("rank {}: {}\n", r, python_text(batches));
  }
  const bool none = first.empty();
  if (!a.json) {
    fmt::print("\n{}\n", !same  ? "FAILED: inconsistent batches in different workers"
                         : none ? "FAILED: no batch in any worker"
                                : "SUCCESS: same batches in all workers");
  }
  auto modes = print_own_modes(a, shards->has_offsets);
  if (!a.json) {
    fmt::print(
        "millrace-train --mode equal uses 'equal, dropping' with --index, and 'equal, unknown' "
        "without: all ranks stop when the first has no more batches, here in the first epoch\n");
  }
  if (a.json) {
    print_json({{"success", same && !none}, {"ranks", by_rank}, {"millrace", modes}});
  }
  return 0;
}

}  // namespace

action add_sim(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("sim", "predicts the batches of each rank, before training");
  auto a = std::make_shared<sim_arguments>();
  loader_simulation& s = a->loader;
  constexpr int many = 1'000'000;
  a->shards.add_to(*command, false);
  command
      ->add_option("--index", a->index,
                   "take lengths from this index, and its shards if none are named")
      ->type_name("URL")
      ->group("Input");
  command
      ->add_option("--counts", a->counts, "lengths of shards, instead of shards: 95,88,91 or 90x10")
      ->type_name("N,N,...")
      ->group("Input");
  command->option_defaults()->group("Loader");
  command->add_option("--world-size", s.world_size, "number of ranks")
      ->type_name("RANKS")
      ->check(in_range(1, many))
      ->capture_default_str();
  command->add_option("--batch-size,--batch", s.batch_size, "samples in a batch")
      ->type_name("SAMPLES")
      ->check(in_range(1, many))
      ->capture_default_str();
  command->add_option("--nworkers", s.workers, "worker processes of each rank")
      ->check(in_range(0, many))
      ->capture_default_str();
  command->add_option("--nbatches", s.batches, "maximum number of batches in an epoch")
      ->type_name("BATCHES")
      ->check(in_range(0, std::numeric_limits<std::int64_t>::max()))
      ->capture_default_str();
  command->add_flag("--partial,!--no-partial", s.partial, "keep the last, smaller batch");
  command->add_option("--repeat", s.repeat, "passes of the loader")
      ->check(in_range(1, many))
      ->capture_default_str();
  command->add_option("--dsrepeat", s.dataset_repeat, "passes of each worker's dataset")
      ->check(in_range(1, many))
      ->capture_default_str();
  command->add_flag("--showsplits,!--no-showsplits", a->show_splits, "print how shards are split")
      ->group("Output");
  command->add_flag("--showopen,!--no-showopen", a->show_open, "print which shards are opened")
      ->group("Output");
  command->add_option("--lanes", a->lanes,
                      "millrace's lanes, a multiple of --world-size [8 or more]");
  command->option_defaults()->group("Quality of the shuffle");
  command->add_flag("--quality", a->quality,
                    "show how well the shuffle mixes, compared with others");
  command->add_option("--shuffle", a->mixing.buffer, "samples that the shuffle holds (--quality)")
      ->type_name("SAMPLES")
      ->check(in_range(1, 100'000'000))
      ->capture_default_str();
  command->add_option("--shards", a->mixing.shards, "shards (--quality)")
      ->check(in_range(1, many))
      ->capture_default_str();
  command->add_option("--samples", a->mixing.samples_per_shard, "samples in each (--quality)")
      ->type_name("SAMPLES")
      ->check(in_range(1, many))
      ->capture_default_str();
  add_json(*command, a->json);
  command->footer("Example:\n  millrace sim --counts 90x10 --world-size 8 --batch-size 32");
  return [a](const environment& e) { return sim(e, *a); };
}

}  // namespace millrace::cli
