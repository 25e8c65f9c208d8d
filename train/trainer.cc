#include "train/trainer.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "train/checkpoint.h"
#include "train/data.h"
#include "train/distributed.h"
#include "train/model.h"
#include "train/report.h"
#include "train/schedule.h"
#include "train/to_device.h"

namespace millrace {
namespace {

c10::Device pick_device(const std::string& name, int local_rank) {
  const bool has_gpu = torch::cuda::is_available();
  if (name == "cuda" && !has_gpu) {
    throw failure(error(errc::unsupported, "--device cuda, and torch sees no GPU")
                      .hint("check nvidia-smi and the driver, or train with --device cpu"));
  }
  if (name == "cpu" || !has_gpu) return {c10::kCPU};
  const auto gpus = static_cast<int>(torch::cuda::device_count());
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank % gpus)};
}

double seconds_since(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

// bf16 autocast for the time of its life.
class autocast {
 public:
  explicit autocast(bool on) : on_(on) {
    if (!on_) return;
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~autocast() {
    if (!on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCUDA, false);
  }
  autocast(const autocast&) = delete;
  autocast& operator=(const autocast&) = delete;

 private:
  bool on_;
};

class trainer {
 public:
  trainer(const train_options& options, const engine_options& engine_opts, std::stop_token stop)
      : options_(options),
        place_(job_place::from_environment()),
        device_(pick_device(options.device, place_.local_rank)),
        group_(place_, device_, std::chrono::seconds(options.timeout_s)),
        stop_(std::move(stop)),
        pinned_(make_pinned_allocator(device_)),
        engine_(with_allocator(engine_opts, pinned_.get())),
        hand_off_(device_,
                  options.gpu_decode > 0 ? std::make_unique<gpu_decoder>(device_) : nullptr),
        model_(make_seeded_model()),
        reducer_(group_.make_reducer(parameters())),
        optimizer_(model_->parameters(), sgd_options()) {}

  // Whether it ended by a stop request.
  bool run();

 private:
  static engine_options with_allocator(engine_options o, host_allocator* allocator) {
    o.allocator = allocator;
    return o;
  }
  std::shared_ptr<model> make_seeded_model();
  std::vector<std::pair<std::string, at::Tensor>> parameters() const;
  torch::optim::SGDOptions sgd_options() const;

  void resume_if_asked();
  void restore(const checkpoint& c);
  checkpoint current(const state& data);
  void save(const state& data);

  std::optional<host_batch> next_batch();
  process_group::agreement begin_agreement(bool has_batch);
  bool agreed(process_group::agreement begun);
  void train_epoch();
  void drop_rest(std::optional<host_batch> batch);
  void train_step(host_batch b);
  torch::Tensor loss_of(const torch::Tensor& scores, const device_batch& input) const;
  void end_of_epoch();
  void report_epoch();
  void validate();
  void record(const host_batch& b) const;
  bool checkpoint_is_due() const;
  bool past_last_step() const { return options_.max_steps > 0 && step_ >= options_.max_steps; }
  double fraction_of_epoch() const;
  void report_end(double seconds, std::int64_t samples);

  train_options options_;
  job_place place_;
  c10::Device device_;
  process_group group_;
  std::stop_token stop_;
  std::unique_ptr<host_allocator> pinned_;
  engine engine_;
  to_device hand_off_;
  std::shared_ptr<model> model_;
  std::shared_ptr<c10d::Reducer> reducer_;
  torch::optim::SGD optimizer_;
  std::optional<loader<host_batch>> data_;
  std::optional<reporter> report_;

  std::int64_t step_ = 0;
  std::int64_t epoch_ = 0;
  std::int64_t batch_in_epoch_ = 0;
  std::int64_t epoch_batches_ = 0;
  std::int64_t samples_ = 0;
  std::size_t epochs_reported_ = 0;
  bool stopped_ = false;
  bool epoch_is_over_ = false;
  double waited_ = 0;  // for the batch in hand
  double waited_in_all_ = 0;
  double loss_ = 0;
  double accuracy_ = 0;
};

std::shared_ptr<model> trainer::make_seeded_model() {
  torch::manual_seed(options_.seed);
  auto made = make_model(options_.model, options_.classes, options_.size);
  if (!options_.init_weights.empty()) {
    load_weights(*made, load_tensors(options_.init_weights), options_.init_weights);
  }
  made->to(device_);
  for (auto& p : made->parameters()) {
    if (p.dim() == 4) p.set_data(p.contiguous(at::MemoryFormat::ChannelsLast));
  }
  // All ranks begin with rank 0's weights.
  const torch::NoGradGuard no_grad;
  for (auto& p : made->parameters()) group_.broadcast(p);
  for (auto& b : made->buffers()) group_.broadcast(b);
  return made;
}

std::vector<std::pair<std::string, at::Tensor>> trainer::parameters() const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (const auto& p : model_->named_parameters()) out.emplace_back(p.key(), p.value());
  return out;
}

torch::optim::SGDOptions trainer::sgd_options() const {
  const optimizer_options& o = options_.optimizer;
  return torch::optim::SGDOptions(o.lr)
      .momentum(o.momentum)
      .weight_decay(o.weight_decay)
      .nesterov(o.nesterov);
}

checkpoint trainer::current(const state& data) {
  checkpoint c;
  c.model = weights_of(*model_);
  for (const auto& p : model_->named_parameters()) {
    const auto found = optimizer_.state().find(p.value().unsafeGetTensorImpl());
    if (found == optimizer_.state().end()) continue;
    const auto& kept = static_cast<const torch::optim::SGDParamState&>(*found->second);
    if (kept.momentum_buffer().defined()) c.momentum[p.key()] = kept.momentum_buffer();
  }
  c.step = step_;
  c.epoch = epoch_;
  c.batch_in_epoch = batch_in_epoch_;
  c.epoch_batches = epoch_batches_;
  c.samples = samples_;
  c.world_size = place_.world_size;
  c.data = data;
  return c;
}

void trainer::save(const state& data) {
  save_checkpoint(options_.checkpoint_dir, current(data), group_);
}

void trainer::resume_if_asked() {
  if (options_.resume.empty()) return;
  std::optional<std::string> path = options_.resume;
  if (options_.resume == "auto") path = newest_checkpoint(options_.checkpoint_dir);
  if (!path) return;
  restore(load_checkpoint(*path, place_));
  report_->note(nlohmann::json{{"resumed", *path}, {"step", step_}}.dump(),
                fmt::format("rank {} resumed {} at step {}", place_.rank, *path, step_));
}

void trainer::restore(const checkpoint& c) {
  load_weights(*model_, c.model, options_.resume);
  for (const auto& p : model_->named_parameters()) {
    const auto found = c.momentum.find(p.key());
    if (found == c.momentum.end()) continue;
    auto kept = std::make_unique<torch::optim::SGDParamState>();
    kept->momentum_buffer(torch::empty_like(p.value()).copy_(found->second));
    optimizer_.state()[p.value().unsafeGetTensorImpl()] = std::move(kept);
  }
  step_ = c.step;
  epoch_ = c.epoch;
  batch_in_epoch_ = c.batch_in_epoch;
  epoch_batches_ = c.epoch_batches;
  samples_ = c.samples;
  data_->restore(c.data);
}

// nullopt at the end of an epoch, and when a stop request ends the wait.
std::optional<host_batch> trainer::next_batch() {
  if (stop_.stop_requested()) return std::nullopt;
  const auto start = steady_clock::now();
  std::optional<host_batch> b;
  try {
    b = data_->next();
  } catch (const failure& f) {
    if (f.kind() != errc::stopped || !stop_.stop_requested()) throw;
  }
  waited_ += seconds_since(start);
  return b;
}

double trainer::fraction_of_epoch() const {
  const std::int64_t given = epoch_length(options_, place_.world_size);
  const std::int64_t length = given > 0 ? given : epoch_batches_;
  const double within =
      length > 0 ? static_cast<double>(batch_in_epoch_) / static_cast<double>(length) : 0;
  return static_cast<double>(epoch_) + std::min(within, 1.0);
}

void trainer::record(const host_batch& b) const {
  namespace fs = std::filesystem;
  fs::create_directories(options_.record_batches);
  const auto n = static_cast<std::int64_t>(b.size());
  auto pixels = torch::from_blob(b.pixels->data, {n, b.height, b.width, 3}, torch::kUInt8);
  save_tensors(
      fmt::format("{}/rank{}-{:06}.safetensors", options_.record_batches, place_.rank, step_),
      {{"images", pixels.clone()}, {"labels", torch::tensor(b.labels, torch::kInt64)}});
}

// Of mixed images, that of either label, by their shares.
torch::Tensor trainer::loss_of(const torch::Tensor& scores, const device_batch& input) const {
  const auto of = [&](const torch::Tensor& labels) {
    return torch::nn::functional::cross_entropy(
        scores, labels,
        torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(options_.label_smoothing));
  };
  if (!input.other_labels.defined()) return of(input.labels);
  return input.share * of(input.labels) + (1 - input.share) * of(input.other_labels);
}

void trainer::train_step(host_batch b) {
  const auto start = steady_clock::now();
  const double rate =
      learning_rate(options_.optimizer, fraction_of_epoch(), static_cast<double>(options_.epochs));
  for (auto& g : optimizer_.param_groups()) {
    static_cast<torch::optim::SGDOptions&>(g.options()).lr(rate);
  }
  if (!options_.record_batches.empty()) record(b);
  const auto batch_size = static_cast<std::int64_t>(b.size());
  const device_batch input = hand_off_(std::move(b));
  optimizer_.zero_grad();
  prepare_forward(reducer_.get());
  torch::Tensor scores;
  torch::Tensor loss;
  {
    const autocast half(device_.is_cuda() && options_.amp);
    scores = model_->forward(input.images);
    loss = loss_of(scores, input);
  }
  backward(reducer_.get(), loss);
  if (options_.optimizer.clip_norm > 0) {
    torch::nn::utils::clip_grad_norm_(model_->parameters(), options_.optimizer.clip_norm);
  }
  optimizer_.step();
  ++step_;
  ++batch_in_epoch_;
  samples_ += batch_size;
  if (report_->wants_loss()) {
    loss_ = loss.item<double>();
    accuracy_ = scores.argmax(1).eq(input.labels).to(torch::kFloat32).mean().item<double>();
    if (!std::isfinite(loss_)) {
      throw failure(error(errc::internal, fmt::format("the loss is {} at step {}", loss_, step_))
                        .hint("lower --lr, or add --warmup-epochs or --clip-norm"));
    }
  }
  const double waited = std::exchange(waited_, 0);
  waited_in_all_ += waited;
  report_->step({.step = step_,
                 .epoch = epoch_,
                 .batch = batch_in_epoch_,
                 .samples = samples_,
                 .batch_size = batch_size,
                 .loss = loss_,
                 .accuracy = accuracy_,
                 .lr = rate,
                 .seconds = seconds_since(start) + waited,
                 .waiting = waited});
}

bool trainer::checkpoint_is_due() const {
  if (options_.checkpoint_dir.empty()) return false;
  return stopped_ || past_last_step() ||
         (options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0);
}

// Whether all ranks have a batch in hand, and whether one of them is asked to stop; begun here,
// answered by agreed() while something else goes on.
process_group::agreement trainer::begin_agreement(bool has_batch) {
  return group_.smallest({has_batch ? 1 : 0, stop_.stop_requested() ? 0 : 1});
}

bool trainer::agreed(process_group::agreement begun) {
  const auto all = begun.wait();
  stopped_ = all[1] == 0;
  return all[0] != 0;
}

// Steps through one epoch. While a step runs, the ranks agree on whether all of them have another
// batch and none is asked to stop, so that they all take the same number of steps.
void trainer::train_epoch() {
  model_->train();
  auto batch = next_batch();
  bool go_on = agreed(begin_agreement(batch.has_value())) && !stopped_;
  epoch_is_over_ = !go_on && !stopped_;
  while (go_on) {
    // The position behind the batch in hand, taken before the next one is asked for.
    const state behind = data_->save();
    const bool last_of_run = options_.max_steps > 0 && step_ + 1 >= options_.max_steps;
    std::optional<host_batch> next;
    if (!last_of_run) next = next_batch();
    auto begun = begin_agreement(next.has_value());
    train_step(std::move(*batch));
    go_on = agreed(std::move(begun)) && !stopped_;
    epoch_is_over_ = !go_on && !stopped_ && !last_of_run;
    if (!epoch_is_over_ && checkpoint_is_due()) save(behind);
    batch = std::move(next);
  }
  if (epoch_is_over_) drop_rest(std::move(batch));
}

// Another rank came to the end of its epoch first: what is left here is dropped, and counted.
void trainer::drop_rest(std::optional<host_batch> batch) {
  std::uint64_t left = 0;
  for (; batch; batch = next_batch()) left += batch->size();
  if (left == 0) return;
  report_->note("", fmt::format("rank {} epoch {}: {} samples dropped, because another rank had "
                                "none left",
                                place_.rank, epoch_, left));
}

void trainer::end_of_epoch() {
  epoch_batches_ = batch_in_epoch_;
  batch_in_epoch_ = 0;
  ++epoch_;
  const state data = data_->save();
  if (!options_.checkpoint_dir.empty()) save(data);
  report_epoch();
  if (!options_.val_shards.empty()) validate();
}

// What came and what was skipped in the epoch that is over.
void trainer::report_epoch() {
  const ledger counts = data_->counts();
  if (epochs_reported_ >= counts.epochs.size()) return;
  const ledger::epoch& over = counts.epochs[epochs_reported_++];
  auto skipped = nlohmann::json::object();
  for (const auto& [kind, count] : over.skipped) skipped[std::string(kind_name(kind))] = count;
  report_->note(nlohmann::json{{"end_of_epoch", epoch_ - 1},
                               {"step", step_},
                               {"decoded", over.passed},
                               {"skipped", skipped}}
                    .dump(),
                "");
}

void trainer::validate() {
  const auto start = steady_clock::now();
  const torch::NoGradGuard no_grad;
  for (auto& b : model_->buffers()) group_.broadcast(b);  // rank 0's running statistics
  model_->eval();
  auto data = engine_.run(validation_plan(options_, place_));
  auto sums = torch::zeros({4}, torch::kFloat64);  // loss, top-1, top-5, images
  auto* sum = sums.data_ptr<double>();
  const std::int64_t best = std::min<std::int64_t>(5, options_.classes);
  for (auto& b : data) {
    const device_batch input = hand_off_(std::move(b));
    torch::Tensor scores;
    {
      const autocast half(device_.is_cuda() && options_.amp);
      scores = model_->forward(input.images).to(torch::kFloat32);
    }
    sum[0] += torch::nn::functional::cross_entropy(
                  scores, input.labels,
                  torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum))
                  .item<double>();
    const auto hits = std::get<1>(scores.topk(best, 1)).eq(input.labels.unsqueeze(1));
    sum[1] += hits.narrow(1, 0, 1).sum().item<double>();
    sum[2] += hits.sum().item<double>();
    sum[3] += static_cast<double>(input.size());
    if (stop_.stop_requested() && group_.alone()) return;
  }
  group_.sum(sums);
  model_->train();
  if (place_.rank != 0) return;
  const double n = std::max(sum[3], 1.0);
  report_->note(nlohmann::json{{"validation", true},
                               {"epoch", epoch_},
                               {"step", step_},
                               {"loss", sum[0] / n},
                               {"top1", sum[1] / n},
                               {"top5", sum[2] / n},
                               {"images", sum[3]},
                               {"seconds", seconds_since(start)}}
                    .dump(),
                fmt::format("epoch {} validation loss {:.4f} top-1 {:.2f} % top-5 {:.2f} % of {} "
                            "images in {:.1f} s",
                            epoch_, sum[0] / n, 100 * sum[1] / n, 100 * sum[2] / n, sum[3],
                            seconds_since(start)));
}

void trainer::report_end(double seconds, std::int64_t samples) {
  const run_stats stats = data_->stats();
  ledger counts = data_->counts();
  counts.damaged += hand_off_.damaged();
  std::string stages;
  for (const auto& s : stats.stages) {
    stages += fmt::format("{}{} {:.1f} s", stages.empty() ? "" : ", ", s.name, s.busy);
  }
  for (const auto& skipped : counts.first_skipped) {
    report_->note("", fmt::format("rank {} skipped: {}", place_.rank, skipped));
  }
  const double rate = seconds > 0 ? static_cast<double>(samples) / seconds : 0;
  report_->note(
      nlohmann::json{{"end", stopped_ ? "stopped" : "done"},
                     {"step", step_},
                     {"samples", samples},
                     {"seconds", seconds},
                     {"waiting", waited_in_all_},
                     {"delivered", counts.delivered},
                     {"skipped", counts.skipped_in_all()},
                     {"dropped", counts.dropped},
                     {"lost", counts.lost},
                     {"damaged", counts.damaged},
                     {"bytes_read", stats.bytes_read},
                     {"retries", stats.retries}}
          .dump(),
      fmt::format("rank {} {} after {} steps, {} samples, {:.1f} s: {:.1f} images/s, {:.1f} % of "
                  "the time waiting for data\nrank {} samples: {}; read {:.1f} MB in {} requests, "
                  "{} retries\nrank {} time in stages: {}",
                  place_.rank, stopped_ ? "stopped" : "done", step_, samples, seconds, rate,
                  seconds > 0 ? 100 * waited_in_all_ / seconds : 0, place_.rank, counts.summary(),
                  static_cast<double>(stats.bytes_read) / 1e6, stats.requests, stats.retries,
                  place_.rank, stages));
}

bool trainer::run() {
  report_.emplace(place_.rank, options_.log_every_s, options_.metrics, !options_.resume.empty());
  data_.emplace(engine_.run(training_plan(options_, place_)));
  // A stop request also ends a wait for data.
  const std::stop_callback wake(stop_, [this] { data_->stop(); });
  resume_if_asked();
  const auto start = steady_clock::now();
  const std::int64_t samples_before = samples_;
  while (epoch_ < options_.epochs && !stopped_ && !past_last_step()) {
    epoch_is_over_ = false;
    train_epoch();
    if (!stopped_ && !past_last_step()) end_of_epoch();
  }
  if (past_last_step() && !options_.val_shards.empty() && !stopped_) validate();
  report_end(seconds_since(start), samples_ - samples_before);
  return stopped_;
}

}  // namespace

int train(const train_options& options, const engine_options& engine, std::stop_token stop,
          const std::function<int()>& exit_code_when_stopped) {
  const bool was_stopped = trainer(options, engine, std::move(stop)).run();
  return was_stopped ? exit_code_when_stopped() : 0;
}

}  // namespace millrace
