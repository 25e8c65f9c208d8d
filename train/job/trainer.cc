#include "train/job/trainer.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "engine/host/cpu_time.h"
#include "engine/host/log.h"
#include "train/checkpoints/run_checkpoints.h"
#include "train/command_line/option_terms.h"
#include "train/device/devices.h"
#include "train/device/step_profile.h"
#include "train/files.h"
#include "train/job/data.h"
#include "train/job/epoch_facts.h"
#include "train/job/inputs.h"
#include "train/job/job.h"
#include "train/job/last_lines.h"
#include "train/job/learner.h"
#include "train/job/outputs.h"
#include "train/job/recorded_batches.h"
#include "train/job/run_position.h"
#include "train/job/step_losses.h"
#include "train/job/synthetic.h"
#include "train/job/validation.h"
#include "train/loop/lockstep.h"
#include "train/loop/report.h"
#include "train/loop/schedule.h"

namespace millrace {
namespace {

class trainer {
 public:
  trainer(const prepared_run& run, process_group& group, const engine_options& engine_opts,
          const train_control& control)
      : run_(run),
        place_(group.place()),
        data_place_(run_.found.parts.place()),
        group_(group),
        control_(control),
        pinned_(make_pinned_allocator(run_.device)),
        engine_(with_allocator(engine_opts, pinned_.get())),
        checkpoints_({.folder = options_.checkpoint_dir,
                      .resume = options_.resume,
                      .keep = options_.keep,
                      .overwrite = options_.overwrite,
                      .parts = run_.found.parts,
                      .saved = control.checkpoint_is_saved,
                      .reach = engine_opts},
                     group_, state_bytes(options_, engine_opts)),
        epochs_(options_, run_.found),
        report_(place_.rank, data_place_.world_size, options_.log_every_s),
        losses_(run_.device, report_),
        profile_(place_.rank == 0 ? options_.profile : "", run_.device.is_cuda()) {
    group_.together([&] { learner_.emplace(options_, run_.device); });
    learner_->join(group_, data_place_.rank);
  }

  // The signal that ended it; 0: none.
  int run();
  run_checkpoints& checkpoints() { return checkpoints_; }

 private:
  static engine_options with_allocator(engine_options o, host_allocator* allocator) {
    o.allocator = allocator;
    return o;
  }

  void start();
  void resume();
  void claim_files();
  void save(const state& data);
  void finish_save();
  void look_at_save();
  std::optional<host_batch> next_batch();
  void agree();
  void end_if_too_many_skipped();
  void save_before_failure(const state& data);
  bool is_saved() const { return checkpoints_.holds(step_); }
  void tell_saved(const std::string& why, const std::string& and_then);
  void tell_last_save();
  void check_losses();
  bool is_stopped() const { return ending_ != 0; }
  bool train_epoch();
  void train_step(host_batch b);
  // A loss that is not finite ends the ranks at their next agreement.
  void report_losses(step_losses::which which) {
    if (!losses_.read(which)) batches_->tell_diverged();
  }
  void end_of_epoch();
  void report_epoch();
  void validate();
  bool checkpoint_is_due() const;
  bool is_past_last_step() const { return options_.max_steps > 0 && step_ >= options_.max_steps; }
  bool is_over() const { return epoch_ >= options_.epochs || is_past_last_step(); }
  run_position position(std::int64_t epoch_batches) const {
    return {step_, epoch_, batch_in_epoch_, epoch_batches};
  }
  run_position position() const { return position(epochs_.batches().least); }
  void report_end(double seconds, std::int64_t samples);

  prepared_run run_;
  const train_options& options_ = run_.options;
  job_place place_;
  job_place data_place_;  // of this rank's part of the data
  process_group& group_;
  train_control control_;
  std::unique_ptr<host_allocator> pinned_;
  engine engine_;
  std::optional<learner> learner_;
  std::optional<loader<host_batch>> data_;
  std::optional<lockstep> batches_;
  run_checkpoints checkpoints_;
  epoch_facts epochs_;
  reporter report_;
  step_losses losses_;
  step_profile profile_;

  std::int64_t step_ = 0;
  std::int64_t first_step_ = 0;  // at which this process started or resumed
  std::int64_t epoch_ = 0;
  std::int64_t batch_in_epoch_ = 0;
  std::int64_t samples_ = 0;
  std::int64_t samples_of_all_ = 0;  // parts of the data
  std::uint64_t left_out_ = 0;       // of epochs, by the index
  std::size_t epochs_reported_ = 0;
  int ending_ = 0;  // the signal by which a rank was asked to end
  bool save_asked_ = false;
  bool save_failed_ = false;      // on rank 0
  bool owes_validation_ = false;  // when resumed
  bool is_validated_ = false;     // when resumed
  double waited_in_all_ = 0;      // seconds, for batches
  std::optional<validation_figures> validated_;
};

// The checks that all ranks make before the first of them writes anything.
void trainer::start() {
  group_.together([&] {
    // A stop request also ends a wait for data.
    data_.emplace(engine_.run(training_plan(options_, run_.found), control_.stop));
    batches_.emplace(
        *data_, group_, control_,
        options_.mode == train_epochs::exact ? rest_of_epoch::trained : rest_of_epoch::dropped,
        run_.found.parts);
    if (!options_.val_shards.empty()) engine_.run(validation_plan(options_, run_.found));
  });
  const auto check_rate = [this] { position().check_rate(options_); };
  if (options_.resume.empty()) check_rate();
  resume();
  check_rate();
  const std::string& resumed = checkpoints_.resumed();
  group_.together([&] { check_recorded(options_.record_batches, step_, !resumed.empty()); });
  claim_files();
  report_.note(begin_line(options_, run_.found.parts, place_, checkpoints_.run(),
                          group_.shared(unique_name()), step_, learner_->parameters()),
               place_.rank == 0 ? banner(run_, place_, learner_->parameters(), epochs_.batches(),
                                         {position().steps_left(options_),
                                          position(epochs_.batches().most).steps_left(options_)})
                                : "");
  if (resumed.empty()) return;
  report_.note(resumed_line(resumed, step_), fmt::format("rank {} resumed {} at step {}",
                                                         place_.rank, printable(resumed), step_));
  if (!is_validated_ || !group_.is_first()) return;
  report_.note("", "validated already: figures in " + printable(checkpoints_.figures_of_resumed()));
}

void trainer::resume() {
  const auto loaded = checkpoints_.load(lanes_of(data_->save()), options_.batch_size);
  if (!loaded) return;
  const checkpoint& c = *loaded;
  group_.together([&] {
    const std::string other = told_differences(options_.said, c.said, options_.defaults);
    check_same_classes(c.classes, options_, run_.found);
    check_same_shards(c, data_->save(), recorded_shards(options_));
    if (!other.empty() && group_.is_first()) log_notice("resuming with " + other);
    learner_->restore(c, checkpoints_.resumed());
    data_->restore(c.data);
  });
  step_ = first_step_ = c.step;
  epoch_ = c.epoch;
  batch_in_epoch_ = c.batch_in_epoch;
  epochs_.resume(c, data_->save());
  samples_ = c.samples;
  samples_of_all_ = c.samples * data_place_.world_size;
  const bool is_between_epochs = batch_in_epoch_ == 0 && epoch_ > 0;
  if (options_.val_shards.empty() || !(is_between_epochs || is_past_last_step())) return;
  is_validated_ = group_.shared(group_.is_first() ? validation_fingerprint(options_, run_.found)
                                                  : "") == c.validated;
  owes_validation_ = !is_validated_;
}

// Files are written from here on: all checks have passed.
void trainer::claim_files() {
  if (control_.writing_begins) control_.writing_begins();
  group_.together([&] {
    if (!options_.metrics.empty()) {
      report_.write_metrics(reporter::metrics_of(options_.metrics, place_.rank),
                            !options_.resume.empty());
    }
    empty_replaced_list(options_);
    if (group_.is_first()) checkpoints_.set_aside();
  });
}

void trainer::save(const state& data) {
  const bool was_asked = std::exchange(save_asked_, false);
  check_losses();
  checkpoint c{{.step = step_,
                .epoch = epoch_,
                .batch_in_epoch = batch_in_epoch_,
                .epoch_batches = epochs_.batches().least,
                .samples = samples_of_all_ / data_place_.world_size,
                .batch_size = options_.batch_size,
                .world_size = data_place_.world_size,
                .said = options_.said,
                .shards = recorded_shards(options_),
                .classes = run_.found.raw_classes,
                .data = data}};
  if (group_.is_first()) learner_->save(c);
  checkpoints_.begin_save(std::move(c));
  if (was_asked || is_stopped() || batches_->one_failed()) finish_save();
  if (was_asked && !is_stopped()) tell_saved("SIGUSR1", "; training continues");
}

void trainer::finish_save() {
  if (checkpoints_.finish() && control_.checkpoint_is_saved) control_.checkpoint_is_saved();
}

void trainer::look_at_save() {
  try {
    if (checkpoints_.has_saved()) batches_->tell_saved();
  } catch (const failure& f) {
    save_failed_ = true;
    batches_->tell_failed(f.why());
  }
}

// nullopt: the epoch is over, or a rank was asked to end. Data that fail end the run of all ranks.
std::optional<host_batch> trainer::next_batch() {
  std::optional<host_batch> next;
  try {
    next = batches_->next();
  } catch (const failure& f) {
    if (!batches_->one_failed()) throw;
    report_losses(step_losses::which::all);
    const bool is_failed_save = !group_.shared(save_failed_ ? "save" : "").empty();
    if (is_failed_save) throw;
    if (batches_->position()) save_before_failure(*batches_->position());
    throw failure(with_policy(f.why(), options_));
  }
  ending_ = batches_->ending();
  return next;
}

// The model and the position before the failure, `data`, are sound.
void trainer::save_before_failure(const state& data) {
  if (!checkpoints_.are_written()) return;
  try {
    save(data);
  } catch (const failure& f) {
    log_notice(fmt::format("the state could not be saved: {}", f.what()));
    return;
  }
  tell_saved("the data failed", "; --resume auto continues from there");
}

void trainer::tell_saved(const std::string& why, const std::string& and_then) {
  if (!group_.is_first()) return;
  report_.note("", fmt::format("{}: step {} is saved in {}{}", why, step_,
                               printable(checkpoints_.newest()), and_then));
}

void trainer::tell_last_save() {
  if (step_ == first_step_) return;
  if (!is_stopped()) return is_saved() ? tell_saved("done", "") : void();
  const std::string why = fmt::format("stopped by SIG{}", sigabbrev_np(ending_));
  if (is_saved()) return tell_saved(why, "; --resume auto continues from there");
  if (group_.is_first()) report_.note("", why + "; nothing is saved without --checkpoint-dir");
}

void trainer::train_step(host_batch b) {
  profile_.before_step(step_ - first_step_);
  const auto start = steady_clock::now();
  const double rate =
      learning_rate(options_.rate, position().epochs(), static_cast<double>(options_.epochs),
                    static_cast<double>(position().epoch_batches));
  const auto batch_size = static_cast<std::int64_t>(b.size());
  if (!options_.record_batches.empty() && batch_size > 0) {
    record(b, options_.record_batches, place_, step_);
  }
  const std::int64_t of_all_ranks =
      options_.mode == train_epochs::exact ? batches_->samples() : batch_size * place_.world_size;
  std::vector<std::string> keys;
  if (options_.metrics_keys) keys = b.keys;
  const auto out = learner_->train(learner_->bring(std::move(b)),
                                   {.step = step_, .rate = rate, .of_all_ranks = of_all_ranks});
  ++step_;
  ++batch_in_epoch_;
  samples_ += batch_size;
  samples_of_all_ += of_all_ranks / run_.found.parts.sharers();
  const double waited = batches_->take_waited();
  waited_in_all_ += waited;
  losses_.add(out, {.step = step_,
                    .epoch = epoch_,
                    .batch = batch_in_epoch_,
                    .epoch_batches = epochs_.batches().is_exact() ? epochs_.batches().least : 0,
                    .steps_left = position().steps_left(options_),
                    .samples = samples_,
                    .batch_size = batch_size,
                    .lr = rate,
                    .seconds = seconds_since(start) + waited,
                    .waiting = waited,
                    .keys = std::move(keys)});
  report_losses(step_losses::which::arrived);
}

// Called by all ranks: ends them if a loss of any was not finite.
void trainer::check_losses() {
  report_losses(step_losses::which::all);
  check_finite(losses_, {first_step_, step_}, group_, checkpoints_);
}

bool trainer::checkpoint_is_due() const {
  if (!checkpoints_.are_written()) return false;
  return is_stopped() || save_asked_ || is_past_last_step() ||
         (options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0);
}

void trainer::agree() {
  batches_->agree();
  ending_ = batches_->ending();
  if (batches_->one_diverged()) check_losses();
  if (batches_->take_saved() && control_.checkpoint_is_saved) control_.checkpoint_is_saved();
  if (!batches_->take_save_request()) return;
  save_asked_ = checkpoints_.are_written();
  if (!save_asked_ && group_.is_first()) {
    log_notice("SIGUSR1 asks for a checkpoint, but --checkpoint-dir is not set");
  }
}

// Data that fail after the last step of the run are left to the run that resumes it.
void trainer::end_if_too_many_skipped() {
  if (!batches_->one_failed()) return;
  group_.together([&] {
    const auto& why = batches_->failed();
    if (why && why->kind() == errc::too_many_skipped) throw failure(with_policy(*why, options_));
  });
}

// Returns whether the epoch is over, and not the run within it.
bool trainer::train_epoch() {
  const std::uint64_t dropped = batches_->dropped();
  while (auto batch = next_batch()) {
    train_step(std::move(*batch));
    look_at_save();
    agree();
    const bool is_last = is_past_last_step();
    const bool has_failed = batches_->one_failed() && !is_last;  // next_batch() saves
    if (!batches_->epoch_is_over() && !has_failed && checkpoint_is_due()) {
      save(*batches_->position());
    }
    if (!is_last) continue;
    end_if_too_many_skipped();
    break;
  }
  report_losses(step_losses::which::all);
  const std::uint64_t more = batches_->dropped() - dropped;
  if (more > 0) {
    report_.note("", fmt::format("rank {} epoch {}: {} dropped, because another rank had none left",
                                 place_.rank, epoch_, counted(more, "sample")));
  }
  return batches_->epoch_is_over();
}

void trainer::end_of_epoch() {
  // All steps of a resumed epoch may already have been taken.
  if (batch_in_epoch_ == 0) throw failure(no_step(options_, data_->counts()));
  if (group_.is_first()) left_out_ += epochs_.left_out(epoch_);  // of no rank: counted once
  epochs_.end(batch_in_epoch_);
  batch_in_epoch_ = 0;
  ++epoch_;
  if (checkpoints_.are_written()) save(data_->save());
  report_epoch();
  if (!options_.val_shards.empty()) validate();
}

void trainer::report_epoch() {
  const ledger counts = data_->counts();
  if (epochs_reported_ >= counts.epochs.size()) return;
  report_.note(json_of(counts.epochs[epochs_reported_++], epoch_ - 1, step_), "");
}

// Validates after the epoch of the last step.
void trainer::validate() {
  check_losses();
  finish_save();
  owes_validation_ = false;
  const std::int64_t epoch = batch_in_epoch_ == 0 ? epoch_ - 1 : epoch_;
  std::optional<validation_figures> figures;
  const std::string of = validation_fingerprint(options_, run_.found);
  try {
    figures = run_validation(options_, run_.found, engine_, *learner_, group_, control_, ending_);
  } catch (const failure&) {
    if (is_saved()) tell_saved("the validation failed", "; --resume auto begins with it");
    throw;
  }
  if (!figures) {
    if (group_.is_first()) {
      report_.note("", fmt::format("epoch {} validation was interrupted{}", epoch,
                                   is_saved() ? "; --resume auto does it first" : ""));
    }
    return;
  }
  // Later epochs skip the same ones.
  if (!validated_) report_.skipped(figures->counts, " in validation");
  validated_ = figures;
  if (!group_.is_first()) return;
  const std::string line = json_of(*figures, epoch, step_);
  report_.note(line, text_of(*figures, epoch));
  if (is_saved()) checkpoints_.add_validation(line, of);
}

void trainer::report_end(double seconds, std::int64_t samples) {
  run_figures f{.place = place_,
                .parts = run_.found.parts,
                .signal = ending_,
                .step = step_,
                .epoch = epoch_,
                .samples = samples,
                .seconds = seconds,
                .cpu_seconds = process_cpu_seconds(),
                .waiting = waited_in_all_,
                .loss = losses_.last(),
                .validation = validated_,
                .stats = data_->stats(),
                .counts = data_->counts()};
  f.counts.damaged += learner_->damaged();
  f.counts.delivered = static_cast<std::uint64_t>(samples);  // not a batch beyond the last step
  f.counts.dropped += batches_->dropped() + left_out_;
  report_.skipped(f.counts, "");
  report_run(f, report_, group_, options_.json);
}

int trainer::run() {
  start();
  if (control_.training_begins) control_.training_begins();
  const auto start = steady_clock::now();
  const std::int64_t samples_before = samples_;
  if (owes_validation_) {
    // Its figures go into a checkpoint of this run, never of another.
    if (checkpoints_.are_written() && !is_saved()) save(data_->save());
    validate();
  }
  if (is_over() && group_.is_first()) {
    report_.note("", fmt::format("nothing is left to do: step {} of {} is the last one; raise "
                                 "--epochs or --max-steps to continue training",
                                 step_, printable(checkpoints_.resumed())));
  }
  while (!is_over() && !is_stopped()) {
    if (train_epoch()) end_of_epoch();
  }
  if (is_past_last_step() && batch_in_epoch_ > 0 && step_ > first_step_ &&
      !options_.val_shards.empty() && !is_stopped()) {
    validate();
  }
  report_losses(step_losses::which::all);
  finish_save();
  const double seconds = seconds_since(start);
  check_losses();
  if (is_over() && control_.training_ends) control_.training_ends();
  report_end(seconds, samples_ - samples_before);
  tell_last_save();
  profile_.end();
  report_.check_written();
  return ending_;
}

}  // namespace

int train(const train_options& given, const engine_options& engine, const train_control& control) {
  const job_place place = job_place::from_environment();
  if (!place.launcher.empty() || !place.remark.empty()) log_notice(text_of(place));
  process_group group(place, std::chrono::seconds(given.timeout_s), control.process_ends);
  const prepared_run run = prepare(given, engine, group);
  const auto exit_code = [](int signal) { return signal == 0 ? 0 : exit_code_of_signal(signal); };
  if (run.options.synthetic) return exit_code(train_synthetic(run, group, control));
  trainer job(run, group, engine, control);
  try {
    return exit_code(job.run());
  } catch (const failure& f) {
    if (f.kind() != errc::peer_lost) throw;
    throw failure(job.checkpoints().with_way_back(f.why()));
  }
}

}  // namespace millrace
