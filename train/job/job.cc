#include "train/job/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <span>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/host/log.h"
#include "millrace/version.h"
#include "pipeline/formats/class_folders.h"
#include "pipeline/state/records.h"
#include "train/checkpoints/checkpoint.h"
#include "train/device/host_memory.h"
#include "train/device/to_device.h"
#include "train/job/data.h"
#include "train/job/inputs.h"
#include "train/job/outputs.h"
#include "train/job/remarks.h"
#include "train/models/exported_file.h"
#include "train/models/safetensors.h"

namespace millrace {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string number_of(std::int64_t n, const char* one) {
  return counted(static_cast<std::uint64_t>(n), one);
}

std::string range_of(number_of_steps n) {
  if (n.least == n.most) return std::to_string(n.most);
  return fmt::format("{} {} {}", n.least, n.least + 1 == n.most ? "or" : "to", n.most);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code why;
  for (fs::directory_iterator i(folder, why), end; !why && i != end; i.increment(why)) {
    names.push_back(i->path().filename());
  }
  if (why) {
    throw failure(
        error(kind_of(why.value()), "cannot read the folder").at(folder).cause(why.value()));
  }
  std::ranges::sort(names);
  return names;
}

// Splits a list joined by '/'.
std::vector<std::string> split_names(const std::string& list) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at < list.size();) {
    const std::size_t end = std::min(list.find('/', at), list.size());
    names.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

// The step whose batch record() wrote under this name; the largest number for other names.
std::int64_t step_recorded(const std::string& name) {
  int rank = 0;
  std::int64_t step = 0;
  constexpr int both = 2;
  const bool is_recorded =
      std::sscanf(name.c_str(), "rank%d-%ld.safetensors", &rank, &step) == both;
  return is_recorded ? step : std::numeric_limits<std::int64_t>::max();
}

// "25.6 M", "44,746".
std::string short_count(std::int64_t n) {
  constexpr double million = 1e6;
  if (static_cast<double>(n) >= million) {
    return fmt::format("{:.1f} M", static_cast<double>(n) / million);
  }
  return n < 1000 ? std::to_string(n) : fmt::format("{},{:03}", n / 1000, n % 1000);
}

json sum_of(const json& a, const json& b) {
  if (a.is_number_float() || b.is_number_float()) return a.get<double>() + b.get<double>();
  return a.get<std::uint64_t>() + b.get<std::uint64_t>();
}

// Those of `a` that `b` lacks, as often as it does.
std::vector<std::string> only_in(std::vector<std::string> a, std::vector<std::string> b) {
  std::ranges::sort(a);
  std::ranges::sort(b);
  std::vector<std::string> out;
  std::ranges::set_difference(a, b, std::back_inserter(out));
  return out;
}

// How the shards of a checkpoint and of a run differ: ": 1 of its 8 is gone (a.tar), ...".
std::string differing_shards(const std::vector<std::string>& then,
                             const std::vector<std::string>& now) {
  if (then.empty() || now.empty()) return ", or with another index";
  if (then == now) return ": by the same names, with another index, or with or without one";
  const auto gone = only_in(then, now);
  const auto added = only_in(now, then);
  if (gone.empty() && added.empty()) return ": the same ones, in another order";
  std::string out = ": ";
  if (!gone.empty()) {
    out += fmt::format("{} of its {} {} gone ({})", gone.size(), then.size(),
                       gone.size() == 1 ? "is" : "are", first_of(gone));
  }
  if (!gone.empty() && !added.empty()) out += ", ";
  if (!added.empty()) {
    out += fmt::format("{} {} new ({})", added.size(), added.size() == 1 ? "is" : "are",
                       first_of(added));
  }
  return out;
}

// Checks an exported model; its content, not its place, is what checkpoints record and ranks share.
void look_at_model(train_options& o, c10::Device device) {
  if (!names_exported_model(o.model)) return;
  const exported_description model = read_description(o.model);
  if (o.mode == train_epochs::exact && model.least_images > 1) {
    throw failure(
        error(errc::usage, fmt::format("--mode exact cannot be combined with this model: the last "
                                       "batch may have one image, and the model takes {} or more",
                                       model.least_images))
            .at(o.model)
            .hint("use --mode equal"));
  }
  check_exported(model, o.model, device.is_cuda() ? "cuda" : "cpu", o.size, o.classes,
                 o.batch_size / o.accumulate);
  o.said["--model"] = printable(fmt::format("{} {}", model.name, model.identity));
}

// NCCL fails on one GPU for two ranks, in words of its own.
void check_own_gpus(c10::Device device, process_group& group) {
  const auto gpus = group.gathered(gpu_identity(device));
  group.together([&] {
    std::map<std::string, std::size_t> rank_of;
    for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
      if (gpus[rank].empty()) continue;
      const auto [other, is_first] = rank_of.emplace(gpus[rank], rank);
      if (is_first) continue;
      throw failure(
          error(errc::usage, fmt::format("ranks {} and {} have the same GPU", other->second, rank))
              .hint("start as many ranks on a host as it has GPUs, show each its own "
                    "(CUDA_VISIBLE_DEVICES), or train with --device cpu"));
    }
  });
}

}  // namespace

void agree_on_terms(const train_options& options, c10::Device device, process_group& group) {
  arguments mine;
  for (const auto& [option, value] : options.said) {
    if (is_common(option)) mine[option] = value;
  }
  // Values may differ, but whether it is given decides which calls the group makes.
  mine["--checkpoint-dir"] = options.checkpoint_dir.empty() ? "" : "given";
  mine["inputs:"] = inputs_fingerprint(options);
  constexpr const char* classes = "class folders:";
  mine[classes] = fmt::format("{}", fmt::join(options.raw_classes, "/"));
  mine["device"] = device.is_cuda() ? "cuda" : "cpu";
  mine["program"] = "millrace " MILLRACE_VERSION ", torch " TORCH_VERSION;
  // Not as JSON text: values need not be UTF-8.
  std::string packed;
  json::to_cbor(json(mine), packed);
  const auto first = json::from_cbor(group.shared(packed)).get<arguments>();
  group.together([&] {
    std::string differ;
    for (const auto& [option, value] : mine) {
      const auto found = first.find(option);
      const std::string other = found == first.end() ? "" : found->second;
      if (value == other) continue;
      if (option == classes) {
        differ += (differ.empty() ? "" : "; ") +
                  differing_classes(split_names(value), split_names(other), "on rank 0");
        continue;
      }
      differ += fmt::format("{}{} {}, where rank 0 has {}", differ.empty() ? "" : "; ", option,
                            value.empty() ? "none" : value, other.empty() ? "none" : other);
    }
    if (differ.empty()) return;
    throw failure(error(errc::usage, "the ranks were not started alike: " + differ)
                      .hint("give all ranks the same arguments and the same data"));
  });
}

c10::Device prepare(train_options& options, const engine_options& engine, process_group& group) {
  const job_place& place = group.place();
  c10::Device device = c10::kCPU;
  group.together([&] {
    device = pick_device(options.device, place.local_rank);
    options.device = device.is_cuda() ? "cuda" : "cpu";
    if (device.is_cpu()) keep_freed_memory();
    find_inputs(options, engine);
    look_at_model(options, device);
  });
  agree_on_terms(options, device, group);
  check_own_gpus(device, group);
  options.parts = options.data_world == 0
                      ? data_ranks(place)
                      : data_ranks(group, options.data_rank, options.data_world);
  // One of those that skip the same samples lists them.
  if (!options.parts.is_first()) options.bad_samples.report.clear();
  // Rank 0 alone reads what the run is resumed from: the others may have been started again.
  options.resume = group.shared(options.resume);
  group.connect(device);
  group.together([&] {
    check_outputs(options, place);
    check_inputs(options, place, engine);
    if (group.is_first()) {
      options.counted_batches = count_first_epoch(options, options.parts.place(), engine);
    }
    make_output_folders(options);
  });
  options.counted_batches = std::stoll(group.shared(std::to_string(options.counted_batches)));
  if (group.is_first()) tell_of_no_effect(options, device);
  return device;
}

std::string begin_line(const train_options& options, const job_place& place, const std::string& run,
                       const std::string& start, std::int64_t step, std::int64_t parameters) {
  return json{{"arguments", options.said},
              {"begin", run},
              {"start", start},
              {"rank", place.rank},
              {"world_size", place.world_size},
              {"data_rank", options.parts.place().rank},
              {"data_world", options.parts.place().world_size},
              {"launcher", place.launcher},
              {"attempt", place.attempt},
              {"from_step", step},
              {"parameters", parameters}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string resumed_line(const std::string& checkpoint, std::int64_t step) {
  return json{{"resumed", checkpoint}, {"step", step}}.dump(-1, ' ', false,
                                                            json::error_handler_t::replace);
}

std::string banner(const train_options& o, const job_place& place, c10::Device device,
                   std::int64_t parameters, number_of_steps each_epoch, number_of_steps left) {
  std::string data =
      o.raw_files > 0 ? number_of(o.raw_files, "file") : number_of(std::ssize(o.shards), "shard");
  if (o.lengths) data = number_of(o.lengths->samples(), "sample") + " in " + data;
  const int parts = o.parts.place().world_size;
  const std::string in_all =
      parts > 1 ? fmt::format(" ({} in all)", std::int64_t{o.batch_size} * parts) : "";
  const std::string shared =
      o.parts.sharers() > 1 ? fmt::format(", {} for each part of the data", o.parts.sharers()) : "";
  std::string steps = "steps unknown until the first epoch ends (an --index tells)";
  if (each_epoch.most > 0) {
    steps = fmt::format("{}{} {} an epoch", each_epoch.varies ? "about " : "", range_of(each_epoch),
                        each_epoch.most == 1 ? "step" : "steps");
  }
  if (left.most >= 0) {
    steps += fmt::format(", {}{} to take", each_epoch.varies ? "about " : "", range_of(left));
  }
  return fmt::format("{} of {} parameters, {} on {}; {}; batches of {}{}\n{}; {}, {}", o.model,
                     short_count(parameters), fmt::format("{} classes", o.classes),
                     device.is_cuda() ? fmt::format("GPUs{}", o.amp ? ", bf16" : "") : "the CPU",
                     number_of(place.world_size, "rank") + shared, o.batch_size, in_all, data,
                     number_of(o.epochs, "epoch"), steps);
}

void check_recorded(const std::string& folder, std::int64_t step, bool is_resumed) {
  if (folder.empty()) return;
  for (const std::string& name : names_in(folder)) {
    const std::int64_t recorded = step_recorded(name);
    if (is_resumed && recorded < step) continue;
    throw failure(error(errc::usage, is_resumed ? "--record-batches would overwrite " + name
                                                : "--record-batches is a folder that is not empty")
                      .at(folder)
                      .hint("use another folder, or empty it"));
  }
}

std::vector<std::string> recorded_shards(const train_options& o) {
  constexpr std::size_t most = 100'000;
  std::vector<std::string> names;
  if (o.shards.size() > most) return names;
  for (const std::string& url : o.shards) names.push_back(printable(redacted(url)));
  return names;
}

void check_same_shards(const checkpoint_record& saved, const state& fresh,
                       const std::vector<std::string>& shards) {
  const auto was = plan_record::in(saved.data);
  const auto is = plan_record::in(fresh);
  if (!was || !is || was->list == is->list) return;
  // With other lanes an index may begin to matter: the pipeline decides.
  if (was->lanes != is->lanes) return;
  // What a pattern or a folder no longer finds may come back: a launcher may try again.
  const bool are_only_gone = !shards.empty() && only_in(shards, saved.shards).empty() &&
                             shards.size() < saved.shards.size();
  throw failure(
      error(are_only_gone ? errc::not_found : errc::usage,
            "the checkpoint was saved with another list of shards" +
                differing_shards(saved.shards, shards))
          .hint("give the shards of the run that saved it, by the same names in the same "
                "order (MILLRACE_REWRITE=OLD=NEW reads them from another place); to train "
                "on other shards, begin a new run with its weights: --init-weights "
                "CHECKPOINT/model.safetensors"));
}

void record(const host_batch& b, const std::string& folder, const job_place& place,
            std::int64_t step) {
  const auto n = static_cast<std::int64_t>(b.size());
  auto pixels = torch::from_blob(b.pixels->data, {n, b.height, b.width, 3}, torch::kUInt8);
  try {
    save_tensors(fmt::format("{}/rank{}-{:06}.safetensors", folder, place.rank, step),
                 {{"images", pixels.clone()}, {"labels", torch::tensor(b.labels, torch::kInt64)}});
  } catch (const failure& f) {
    error why = f.why();
    const std::string known = why.what_to_do();
    // check_recorded() would refuse the same command.
    throw failure(why.hint(known + (known.empty() ? "" : "; ") +
                           "then record the run again into an empty folder"));
  }
}

error no_step(const train_options& options, const ledger& counts) {
  const std::uint64_t skipped = counts.skipped_in_all();
  if (skipped > 0) {
    return error(
               errc::no_samples,
               fmt::format("an epoch without a single step: {} skipped, and fewer than a batch of "
                           "{} left; the first: {}",
                           counted(skipped, "sample"), options.batch_size,
                           counts.first_skipped.empty() ? "" : counts.first_skipped.front()))
        .hint("repair the data (--skipped FILE lists all), or lower --batch-size");
  }
  return error(errc::no_samples,
               fmt::format("an epoch without a single step: a rank has fewer samples than a batch "
                           "of {}",
                           options.batch_size))
      .hint("lower --batch-size, or use fewer ranks");
}

std::string json_of(const ledger::epoch& over, std::int64_t epoch, std::int64_t step) {
  auto skipped = json::object();
  for (const auto& [kind, count] : over.skipped) skipped[std::string(kind_name(kind))] = count;
  return json{
      {"end_of_epoch", epoch}, {"step", step}, {"decoded", over.passed}, {"skipped", skipped}}
      .dump();
}

namespace {

// The figure of a job, of those of its ranks.
enum class job_figure : std::uint8_t {
  shared,       // the same on all
  sum,          // over all ranks
  sum_of_data,  // over the ranks that `counts` names: one of those that share a part of the data
  greatest,
};

// A figure of the last lines. A new one is a row here.
struct end_figure {
  const char* name;
  job_figure of_job;
  json (*of_rank)(const run_figures& f);
};
double rate_of(const run_figures& f) {
  return f.seconds > 0 ? static_cast<double>(f.samples) / f.seconds : 0;
}
std::span<const end_figure> end_figures() {
  using enum job_figure;
  static constexpr auto all = std::to_array<end_figure>({
      {"end", shared,
       [](const run_figures& f) -> json { return f.signal != 0 ? "stopped" : "done"; }},
      {"signal", shared, [](const run_figures& f) -> json { return f.signal; }},
      {"step", shared, [](const run_figures& f) -> json { return f.step; }},
      {"epochs", shared, [](const run_figures& f) -> json { return f.epoch; }},
      {"world_size", shared, [](const run_figures& f) -> json { return f.place.world_size; }},
      {"data_world", shared,
       [](const run_figures& f) -> json { return f.parts.place().world_size; }},
      {"seconds", shared, [](const run_figures& f) -> json { return f.seconds; }},
      {"samples", sum_of_data, [](const run_figures& f) -> json { return f.samples; }},
      {"samples_per_s", sum_of_data, [](const run_figures& f) -> json { return rate_of(f); }},
      {"cpu_seconds", sum, [](const run_figures& f) -> json { return f.cpu_seconds; }},
      {"waiting", greatest, [](const run_figures& f) -> json { return f.waiting; }},
      {"delivered", sum_of_data, [](const run_figures& f) -> json { return f.counts.delivered; }},
      {"skipped", sum_of_data,
       [](const run_figures& f) -> json { return f.counts.skipped_in_all(); }},
      {"dropped", sum_of_data, [](const run_figures& f) -> json { return f.counts.dropped; }},
      {"lost", sum_of_data, [](const run_figures& f) -> json { return f.counts.lost; }},
      {"damaged", sum_of_data, [](const run_figures& f) -> json { return f.counts.damaged; }},
      {"bytes", sum, [](const run_figures& f) -> json { return f.stats.sources.bytes; }},
      {"bytes_read", sum, [](const run_figures& f) -> json { return f.stats.sources.bytes; }},
      {"retries", sum, [](const run_figures& f) -> json { return f.stats.sources.retries; }},
  });
  return all;
}

}  // namespace

// A line of metrics; `counts`: whether the rank's samples do.
static std::string json_of(const run_figures& f) {
  json out{{"counts", f.parts.is_first()}};
  for (const end_figure& each : end_figures()) out[each.name] = each.of_rank(f);
  json& sources = out["sources"];
  source_counters::each([&](std::string_view name, auto figure, auto) {
    sources[std::string(name)] = f.stats.sources.*figure;
  });
  if (f.loss) out["last_loss"] = *f.loss;
  if (f.validation) {
    out["top1"] = f.validation->top1;
    out["top5"] = f.validation->top5;
    out["validation_loss"] = f.validation->loss;
    out["validation_images"] = f.validation->images;
    out["validation_skipped"] = f.validation->counts.skipped_in_all();
    out["validation_lost"] = f.validation->counts.lost;
  }
  return out.dump();
}

// The line of the job, of those of its ranks.
static std::string json_of_job(const std::vector<std::string>& of_ranks) {
  json out = json::parse(of_ranks.front());
  out.erase("counts");
  for (std::size_t rank = 1; rank < of_ranks.size(); ++rank) {
    const json other = json::parse(of_ranks[rank]);
    for (const end_figure& each : end_figures()) {
      json& mine = out[each.name];
      const json& its = other[each.name];
      const bool is_summed = each.of_job == job_figure::sum ||
                             (each.of_job == job_figure::sum_of_data && other["counts"]);
      if (is_summed) mine = sum_of(mine, its);
      if (each.of_job == job_figure::greatest) mine = std::max(mine, its);
    }
    source_counters::each([&](std::string_view figure, auto, source_counters::total how) {
      json& mine = out["sources"][std::string(figure)];
      const json& its = other["sources"][std::string(figure)];
      mine = how == source_counters::total::sum ? sum_of(mine, its) : std::max(mine, its);
    });
  }
  return out.dump();
}

static std::string text_of(const run_figures& f) {
  const int rank = f.place.rank;
  std::string stages;
  for (const auto& s : f.stats.stages) {
    stages += fmt::format("{}{} {}", stages.empty() ? "" : ", ", s.name, time_text(s.busy));
  }
  const double rate = rate_of(f);
  const int parts = f.parts.place().world_size;
  const std::string in_all = parts > 1 ? fmt::format(" ({:.1f} of all ranks)", rate * parts) : "";
  const std::string trained = fmt::format(
      "rank {} {} after {}, {}, {}: {:.1f} images/s{}, {:.1f} % of the time "
      "waiting for data",
      rank, f.signal != 0 ? "stopped" : "done", number_of(f.step, "step"),
      number_of(f.samples, "sample"), time_text(f.seconds), rate, in_all,
      f.seconds > 0 ? 100 * f.waiting / f.seconds : 0);
  if (stages.empty()) return trained;  // --synthetic: no data
  return fmt::format(
      "{}\nrank {} samples: {}; read {} in {}, {}\nrank {} time in stages: {}; {} of CPU in the "
      "decoding pool",
      trained, rank, f.counts.summary(), format_bytes(f.stats.sources.bytes),
      counted(f.stats.sources.requests, "request"),
      counted(f.stats.sources.retries, "retry", "retries"), rank, stages,
      time_text(f.stats.pool_cpu));
}

void report_run(const run_figures& f, reporter& to, process_group& group, bool as_json) {
  to.note(json_of(f), text_of(f));
  const auto of_ranks = group.gathered(json_of(f));
  if (as_json && group.is_first()) fmt::print("{}\n", json_of_job(of_ranks));
}

}  // namespace millrace
