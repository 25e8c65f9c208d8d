#include "train/job/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "millrace/version.h"
#include "train/command_line/option_terms.h"
#include "train/device/devices.h"
#include "train/device/host_memory.h"
#include "train/job/inputs.h"
#include "train/job/outputs.h"
#include "train/job/remarks.h"
#include "train/models/exported_file.h"

namespace millrace {
namespace {

using nlohmann::json;

std::string number_of(std::int64_t n, const char* one) {
  return counted(static_cast<std::uint64_t>(n), one);
}

std::string range_of(number_of_steps n) {
  if (n.least == n.most) return std::to_string(n.most);
  return fmt::format("{} {} {}", n.least, n.least + 1 == n.most ? "or" : "to", n.most);
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

// "25.6 M", "44,746".
std::string short_count(std::int64_t n) {
  constexpr double million = 1e6;
  if (static_cast<double>(n) >= million) {
    return fmt::format("{:.1f} M", static_cast<double>(n) / million);
  }
  return n < 1000 ? std::to_string(n) : fmt::format("{},{:03}", n / 1000, n % 1000);
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

void agree_on_terms(const train_options& options, const run_inputs& found, c10::Device device,
                    process_group& group) {
  arguments mine;
  for (const auto& [option, value] : options.said) {
    if (is_common(option)) mine[option] = value;
  }
  // Values may differ, but whether it is given decides which calls the group makes.
  mine["--checkpoint-dir"] = options.checkpoint_dir.empty() ? "" : "given";
  mine["inputs:"] = inputs_fingerprint(options, found);
  constexpr const char* classes = "class folders:";
  mine[classes] = fmt::format("{}", fmt::join(found.raw_classes, "/"));
  mine["device"] = device.is_cuda() ? "cuda" : "cpu";
  mine["program"] = "millrace " MILLRACE_VERSION ", torch " TORCH_VERSION;
  // Not as JSON text: values need not be UTF-8.
  std::string packed;
  json::to_cbor(json(mine), packed);
  const auto first = json::from_cbor(group.shared(packed)).get<arguments>();
  group.together([&] {
    std::string differ;
    for (const auto& [option, value] : mine) {
      const auto at = first.find(option);
      const std::string other = at == first.end() ? "" : at->second;
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

prepared_run prepare(const train_options& given, const engine_options& engine,
                     process_group& group) {
  const job_place& place = group.place();
  prepared_run run{.options = given, .found = {}};
  auto& [options, found, device] = run;
  group.together([&] {
    device = pick_device(options.device, place.local_rank);
    options.device = device.is_cuda() ? "cuda" : "cpu";
    if (device.is_cpu()) keep_freed_memory();
    found = find_inputs(options, engine);
    look_at_model(options, device);
  });
  agree_on_terms(options, found, device, group);
  check_own_gpus(device, group);
  found.parts = options.data_world == 0 ? data_ranks(place)
                                        : data_ranks(group, options.data_rank, options.data_world);
  // One of those that skip the same samples lists them.
  if (!found.parts.is_first()) options.bad_samples.report.clear();
  // Rank 0 alone reads what the run is resumed from: the others may have been started again.
  options.resume = group.shared(options.resume);
  group.connect(device);
  group.together([&] {
    check_outputs(options, place);
    check_inputs(options, found, place, engine);
    if (group.is_first()) found.counted_batches = count_first_epoch(options, found, engine);
    make_output_folders(options);
  });
  found.counted_batches = std::stoll(group.shared(std::to_string(found.counted_batches)));
  if (group.is_first()) report_no_effect(options, found, device);
  return run;
}

std::string begin_line(const train_options& options, const data_ranks& parts,
                       const job_place& place, const std::string& run, const std::string& start,
                       std::int64_t step, std::int64_t parameters) {
  return json{{"arguments", options.said},
              {"begin", run},
              {"start", start},
              {"rank", place.rank},
              {"world_size", place.world_size},
              {"data_rank", parts.place().rank},
              {"data_world", parts.place().world_size},
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

std::string banner(const prepared_run& run, const job_place& place, std::int64_t parameters,
                   number_of_steps each_epoch, number_of_steps left) {
  const auto& [o, found, device] = run;
  std::string data = found.raw_files > 0 ? number_of(found.raw_files, "file")
                                         : number_of(std::ssize(o.shards), "shard");
  if (found.lengths) data = number_of(found.lengths->samples(), "sample") + " in " + data;
  const int parts = found.parts.place().world_size;
  const std::string in_all =
      parts > 1 ? fmt::format(" ({} in all)", std::int64_t{o.batch_size} * parts) : "";
  const std::string shared =
      found.parts.sharers() > 1
          ? fmt::format(", {} for each part of the data", found.parts.sharers())
          : "";
  std::string steps = "steps unknown until the first epoch ends (an --index tells)";
  if (each_epoch.most > 0) {
    steps = fmt::format("{}{} {} an epoch", each_epoch.varies ? "about " : "", range_of(each_epoch),
                        each_epoch.most == 1 ? "step" : "steps");
  }
  if (left.most >= 0) {
    steps += fmt::format(", {}{} to take", each_epoch.varies ? "about " : "", range_of(left));
  }
  const auto said = [&o](const char* option) {
    const auto found = o.said.find(option);
    return found != o.said.end() ? found->second : "";
  };
  const std::string how =
      fmt::format("{}, lr {}, schedule {}", said("--optimizer"), said("--lr"), said("--schedule"));
  return fmt::format("{} of {} parameters, {} on {}; {}; batches of {}{}; {}\n{}; {}, {}", o.model,
                     short_count(parameters), fmt::format("{} classes", o.classes),
                     device.is_cuda() ? fmt::format("GPUs{}", o.amp ? ", bf16" : "") : "the CPU",
                     number_of(place.world_size, "rank") + shared, o.batch_size, in_all, how, data,
                     number_of(o.epochs, "epoch"), steps);
}

}  // namespace millrace
