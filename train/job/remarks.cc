#include "train/job/remarks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/host/log.h"
#include "train/job/data.h"

namespace millrace {
namespace {

void report_gpus(const train_options& o) {
  std::vector<std::string> idle;
  if (o.tf32) idle.emplace_back("--tf32");
  if (o.deterministic) idle.emplace_back("--deterministic");
  if (o.asks_for_amp) idle.emplace_back("--amp");
  if (idle.empty()) return;
  log_notice(fmt::format("{} {} no effect: training is on the CPU", fmt::join(idle, " and "),
                         idle.size() == 1 ? "has" : "have"));
}

void report_warm_up(const train_options& o, const run_inputs& found) {
  auto trained = static_cast<double>(o.epochs);
  const auto batches = static_cast<double>(known_epoch_batches(o, found));
  if (o.max_steps > 0 && batches > 0) {
    trained = std::min(trained, static_cast<double>(o.max_steps) / batches);
  }
  if (o.rate.warmup_epochs <= trained) return;
  log_notice(
      fmt::format("--warmup-epochs {:g} is longer than the training, which ends after {:.3g}: the "
                  "learning rate does not reach --lr {:g}",
                  o.rate.warmup_epochs, trained, o.rate.lr));
}

}  // namespace

void report_no_effect(const train_options& o, const run_inputs& found, c10::Device device) {
  if (!device.is_cuda()) report_gpus(o);
  if (!o.synthetic) report_warm_up(o, found);
}

}  // namespace millrace
