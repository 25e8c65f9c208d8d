#include "train/job/validation.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "train/job/data.h"
#include "train/loop/batch_feed.h"
#include "train/loop/lockstep.h"
#include "train/ranks/step_agreement.h"
#include "train/ranks/totals.h"

namespace millrace {
namespace {

error no_image(const ledger& counts) {
  const std::string first = counts.first_skipped.empty() ? "" : counts.first_skipped.front();
  return error(errc::no_samples, fmt::format("no image is left: {}{}", counts.summary(),
                                             first.empty() ? "" : "; the first: " + first))
      .hint("repair the data, or leave --val-shards out");
}

}  // namespace

std::string json_of(const validation_figures& v, std::int64_t epoch, std::int64_t step) {
  auto skipped = nlohmann::json::object();
  for (const auto& [kind, count] : v.counts.skipped) skipped[std::string(kind_name(kind))] = count;
  return nlohmann::json{{"validation", true},   {"epoch", epoch},       {"step", step},
                        {"loss", v.loss},       {"top1", v.top1},       {"top5", v.top5},
                        {"images", v.images},   {"seconds", v.seconds}, {"skipped", skipped},
                        {"lost", v.counts.lost}}
      .dump();
}

std::string text_of(const validation_figures& v, std::int64_t epoch) {
  const bool is_whole = v.counts.skipped.empty() && v.counts.lost == 0;
  return fmt::format(
      "epoch {} validation loss {:.4f} top-1 {:.2f} % top-5 {:.2f} % of {} images in {:.1f} s{}",
      epoch, v.loss, 100 * v.top1, 100 * v.top5, v.images, v.seconds,
      is_whole ? "" : "; " + v.counts.summary());
}

std::optional<validation_figures> run_validation(const train_options& options,
                                                 const run_inputs& found, engine& eng,
                                                 learner& with, process_group& group,
                                                 const train_control& control, int& ending) {
  const auto start = steady_clock::now();
  with.begin_evaluation();
  // Of the ranks that share a part of the data, one validates it: each image counts once.
  const bool is_reading = found.parts.is_first();
  auto data = eng.run(validation_plan(options, found), control.stop);
  batch_feed batches(data, control.stop);
  auto sums =
      torch::zeros({4}, torch::TensorOptions().dtype(torch::kFloat64).device(with.device()));
  // A rank without images takes part all the same, if others have some.
  const auto is_empty = [&batches] {
    return batches.failed() && batches.failed()->kind() == errc::no_samples;
  };
  bool has_more_here = is_reading;
  for (bool has_more = true; has_more && ending == 0;) {
    std::optional<host_batch> b;
    if (has_more_here) b = batches.next();
    has_more_here = b.has_value();
    step_agreement begun(group, {.has_batch = has_more_here,
                                 .has_failed = batches.failed() && !is_empty(),
                                 .ending = ending_signal(control)});
    if (b) with.evaluate(std::move(*b), sums);
    const common_word all = begun.wait();
    has_more = all.one_has_batch && !all.one_failed;
    ending = all.ending;
  }
  with.end_evaluation();
  const auto check_failed = [&](bool may_be_empty) {
    group.together([&] {
      if (!batches.failed() || (may_be_empty && is_empty())) return;
      throw failure(of_validation(with_policy(*batches.failed(), options)));
    });
  };
  check_failed(true);
  if (ending != 0) return std::nullopt;
  group.sum(sums);
  const auto all = sums.cpu();
  const auto* sum = all.data_ptr<double>();
  if (sum[3] == 0) check_failed(false);
  const ledger counts = sum_over_ranks(is_reading ? data.counts() : ledger(), group);
  if (sum[3] == 0) throw failure(of_validation(no_image(counts)));
  const double n = sum[3];
  return validation_figures{.loss = sum[0] / n,
                            .top1 = sum[1] / n,
                            .top5 = sum[2] / n,
                            .images = sum[3],
                            .seconds = seconds_since(start),
                            .counts = counts};
}

}  // namespace millrace
