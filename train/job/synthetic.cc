#include "train/job/synthetic.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <array>
#include <chrono>

#include "engine/base/error.h"
#include "engine/host/cpu_time.h"
#include "train/device/step_profile.h"
#include "train/job/last_lines.h"
#include "train/job/learner.h"
#include "train/job/step_losses.h"
#include "train/loop/lockstep.h"
#include "train/loop/report.h"
#include "train/loop/schedule.h"
#include "train/ranks/step_agreement.h"

namespace millrace {
namespace {

device_batch made_batch(const train_options& o, c10::Device device) {
  const auto there = torch::TensorOptions().device(device);
  device_batch b;
  b.images = torch::randn({o.batch_size, 3, o.size, o.size}, there)
                 .contiguous(at::MemoryFormat::ChannelsLast);
  b.labels = torch::randint(o.classes, {o.batch_size}, there.dtype(torch::kInt64));
  return b;
}

}  // namespace

int train_synthetic(const prepared_run& run, process_group& group, const train_control& control) {
  const train_options& options = run.options;
  const c10::Device device = run.device;
  const job_place& place = group.place();
  std::optional<learner> model;
  group.together([&] { model.emplace(options, device); });
  model->join(group, run.found.parts.place().rank);
  const std::array batches{made_batch(options, device), made_batch(options, device)};
  reporter report(place.rank, place.world_size, options.log_every_s);
  group.together([&] {
    if (options.metrics.empty()) return;
    report.write_metrics(reporter::metrics_of(options.metrics, place.rank), false);
  });
  step_losses losses(device, report);
  step_profile profile(place.rank == 0 ? options.profile : "", device.is_cuda());
  if (control.writing_begins) control.writing_begins();
  if (control.training_begins) control.training_begins();
  const auto start = steady_clock::now();
  auto last = start;
  int ending = 0;
  std::int64_t step = 0;
  while (step < options.max_steps && ending == 0) {
    profile.before_step(step);
    step_agreement begun(group, {.has_batch = true, .ending = ending_signal(control)});
    const std::int64_t samples = options.batch_size;
    const auto out = model->train(
        batches[static_cast<std::size_t>(step) % batches.size()],
        {.step = step, .rate = options.rate.lr, .of_all_ranks = samples * place.world_size});
    ending = begun.wait().ending;
    ++step;
    const auto now = steady_clock::now();
    losses.add(out, {.step = step,
                     .batch = step,
                     .steps_left = options.max_steps - step,
                     .samples = step * samples,
                     .batch_size = samples,
                     .lr = options.rate.lr,
                     .seconds = std::chrono::duration<double>(now - last).count()});
    losses.read(step_losses::which::arrived);
    last = now;
  }
  losses.read(step_losses::which::all);
  if (losses.finite() < losses.seen()) {
    throw failure(error(errc::bad_state,
                        fmt::format("the loss is not finite from step {} on", losses.finite() + 1))
                      .hint("lower --lr"));
  }
  run_figures f{.place = place,
                .parts = run.found.parts,
                .signal = ending,
                .step = step,
                .samples = step * options.batch_size,
                .cpu_seconds = process_cpu_seconds(),
                .loss = losses.last()};
  f.seconds = seconds_since(start);
  f.counts.delivered = static_cast<std::uint64_t>(f.samples);
  report_run(f, report, group, options.json);
  profile.end();
  report.check_written();
  return ending;
}

}  // namespace millrace
