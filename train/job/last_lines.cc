#include "train/job/last_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/units.h"
#include "engine/base/words.h"

namespace millrace {
namespace {

using nlohmann::json;

json sum_of(const json& a, const json& b) {
  if (a.is_number_float() || b.is_number_float()) return a.get<double>() + b.get<double>();
  return a.get<std::uint64_t>() + b.get<std::uint64_t>();
}

// The figure of a job, of those of its ranks.
enum class job_figure : std::uint8_t {
  shared,       // the same on all
  sum,          // over all ranks
  sum_of_data,  // over the ranks that `counts` names: one of those that share a part of the data
  greatest,
};

// A figure of the last lines other than the counts of the ledger. A new one is a row here.
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
      {"skipped", sum_of_data,
       [](const run_figures& f) -> json { return f.counts.skipped_in_all(); }},
      // The same under two names: "bytes" is what every benchmark calls it.
      {"bytes", sum, [](const run_figures& f) -> json { return f.stats.sources.bytes; }},
      {"bytes_read", sum, [](const run_figures& f) -> json { return f.stats.sources.bytes; }},
      {"retries", sum, [](const run_figures& f) -> json { return f.stats.sources.retries; }},
  });
  return all;
}

// A line of metrics; `counts`: whether the rank's samples do.
std::string json_of(const run_figures& f) {
  json out{{"counts", f.parts.is_first()}};
  for (const end_figure& each : end_figures()) out[each.name] = each.of_rank(f);
  ledger::each_count(
      [&](const char* name, std::uint64_t ledger::* count) { out[name] = f.counts.*count; });
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
std::string json_of_job(const std::vector<std::string>& of_ranks) {
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
    ledger::each_count([&](const char* name, auto) {
      if (other["counts"]) out[name] = sum_of(out[name], other[name]);
    });
    source_counters::each([&](std::string_view figure, auto, source_counters::total how) {
      json& mine = out["sources"][std::string(figure)];
      const json& its = other["sources"][std::string(figure)];
      mine = how == source_counters::total::sum ? sum_of(mine, its) : std::max(mine, its);
    });
  }
  return out.dump();
}

std::string text_of(const run_figures& f) {
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
      rank, f.signal != 0 ? "stopped" : "done", counted(static_cast<std::uint64_t>(f.step), "step"),
      counted(static_cast<std::uint64_t>(f.samples), "sample"), time_text(f.seconds), rate, in_all,
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

}  // namespace

std::string json_of(const ledger::epoch& over, std::int64_t epoch, std::int64_t step) {
  auto skipped = json::object();
  for (const auto& [kind, count] : over.skipped) skipped[std::string(kind_name(kind))] = count;
  return json{
      {"end_of_epoch", epoch}, {"step", step}, {"decoded", over.passed}, {"skipped", skipped}}
      .dump();
}

void report_run(const run_figures& f, reporter& to, process_group& group, bool as_json) {
  to.note(json_of(f), text_of(f));
  const auto of_ranks = group.gathered(json_of(f));
  if (as_json && group.is_first()) fmt::print("{}\n", json_of_job(of_ranks));
}

}  // namespace millrace
