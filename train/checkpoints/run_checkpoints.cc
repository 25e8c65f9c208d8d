#include "train/checkpoints/run_checkpoints.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <new>
#include <utility>

#include "engine/host/log.h"
#include "train/checkpoints/checkpoint_places.h"
#include "train/device/tensor_snapshot.h"
#include "train/files.h"
#include "train/models/weights.h"

namespace millrace {
namespace {

// The name of a tensor that is not finite; empty: all are. The host waits for the device.
std::string not_finite(const checkpoint& c) {
  for (const auto& [name, tensor] : c.model) {
    if (!is_finite(tensor)) return fmt::format("'{}'", name);
  }
  for (const auto& [name, tensor] : c.optimizer) {
    if (!is_finite(tensor)) return fmt::format("the optimizer's '{}'", name);
  }
  for (const auto& [name, tensor] : c.ema) {
    if (!is_finite(tensor)) return fmt::format("the average's '{}'", name);
  }
  return "";
}

}  // namespace

run_checkpoints::run_checkpoints(checkpoint_options where, process_group& group,
                                 std::size_t state_bytes)
    : where_(std::move(where)), group_(group), state_bytes_(state_bytes), run_(unique_name()) {
  if (are_written()) place_ = checkpoint_place_at(where_.folder, where_.reach);
}

// On rank 0: the checkpoint that the run is resumed from, verified; nullopt: none. Throws `failure`
// if the run may not write to the folder.
std::optional<chosen_checkpoint> run_checkpoints::choose() const {
  std::optional<chosen_checkpoint> chosen;
  if (where_.resume == "auto" && place_) {
    chosen = place_->newest(check_sound, [](const std::string& what) { log_notice(what); });
  } else if (!where_.resume.empty() && where_.resume != "auto") {
    chosen = {where_.resume, read_checkpoint_at(where_.resume, where_.reach)};
  }
  if (are_written()) {
    place_->check(chosen ? chosen->path : "", where_.resume == "auto" || where_.overwrite);
  }
  if (!where_.resume.empty() && !chosen) {
    log_notice(fmt::format("no checkpoint in {} yet: starting from scratch", where_.folder));
  }
  return chosen;
}

std::optional<checkpoint> run_checkpoints::load(std::int64_t lanes, int batch_size) {
  const auto choose_locked = [this] {
    if (are_written()) place_->lock();
    return choose();
  };
  auto loaded = load_checkpoint(choose_locked, group_,
                                {.lanes = lanes,
                                 .batch_size = batch_size,
                                 .state_bytes = state_bytes_,
                                 .place = where_.parts ? where_.parts->place() : group_.place()});
  if (!loaded) {
    run_ = group_.shared(run_);
    return std::nullopt;
  }
  resumed_ = newest_ = loaded->first;
  run_ = loaded->second.run;
  const std::int64_t step = loaded->second.step;
  const bool is_own = group_.is_first() && are_written() && place_->holds(resumed_, step);
  if (group_.shared(is_own ? "own" : "") == "own") in_folder_ = step;
  return std::move(loaded->second);
}

void run_checkpoints::save(checkpoint c) {
  begin_save(std::move(c));
  finish();
}

void run_checkpoints::begin_save(checkpoint c) {
  c.run = run_;
  auto states = group_.gathered(c.data.to_json());
  if (where_.parts) states = where_.parts->of_parts(std::move(states));
  const std::int64_t step = c.step;
  if (finish() && where_.saved) where_.saved();
  writing_ = place_->path_of(step);
  group_.together([&] {
    if (!group_.is_first()) return;
    const auto copied = [](tensor_dict& of) {
      return std::make_shared<tensor_snapshot>(std::exchange(of, {}));
    };
    c.data = {};  // `states` has it
    work_.begin([this, model = copied(c.model), optimizer = copied(c.optimizer),
                 ema = copied(c.ema), c, states = std::move(states)]() mutable {
      const held_group finishing(group_);
      c.model = model->on_host();
      c.optimizer = optimizer->on_host();
      c.ema = ema->on_host();
      const std::string bad = not_finite(c);
      if (!bad.empty()) {
        throw failure(diverged(fmt::format("{} is not finite after step {}", bad, c.step)));
      }
      written_ = place_->write(c.step, files_to_save(c, states));
      if (where_.saved) where_.saved();
      place_->remove_old(run_, static_cast<std::size_t>(where_.keep), resumed_);
    });
  });
  in_folder_ = step;
}

bool run_checkpoints::finish() {
  if (writing_.empty()) return false;
  group_.together([&] {
    settle();
    if (failed_) throw failure(*failed_);
  });
  newest_ = group_.is_first() ? written_ : writing_;
  writing_.clear();
  return !std::exchange(is_told_, false);
}

bool run_checkpoints::has_saved() {
  if (!work_.is_begun() || !work_.has_ended()) return false;
  settle();
  if (failed_) throw failure(*failed_);
  return is_told_ = true;
}

void run_checkpoints::settle() {
  if (!work_.is_begun()) return;
  try {
    work_.wait();
    newest_ = written_;
  } catch (const failure& f) {
    failed_ = f.why();
  } catch (const std::bad_alloc&) {
    failed_ = out_of_memory();
  } catch (const std::exception& e) {
    failed_ = error(errc::internal, fmt::format("the checkpoint was not written: {}", e.what()));
  }
}

void run_checkpoints::set_aside() {
  if (!are_written()) return;
  const std::string aside = place_->set_aside_newer(resumed_);
  if (!aside.empty()) log_notice(aside);
}

std::string run_checkpoints::figures_of_resumed() const {
  return (std::filesystem::path(resumed_) / validation_name).string();
}

void run_checkpoints::add_validation(const std::string& line, const std::string& fingerprint) {
  try {
    const std::string with = fmt::format(R"({},"{}":"{}"}})", line.substr(0, line.rfind('}')),
                                         validated_key, fingerprint);
    place_->add(newest_, validation_name, with + "\n");
  } catch (const failure& f) {
    log_notice(f.what());  // harmless: a run resumed from here validates again
  }
}

error run_checkpoints::diverged(const std::string& what) const {
  const char* remedy = "lower --lr, or add --warmup-epochs or --clip-norm";
  return error(errc::bad_state, what)
      .hint(newest_.empty()
                ? fmt::format("{}, and start again: there is no earlier checkpoint", remedy)
                : fmt::format(
                      "{}, and resume from {}, the last checkpoint before that, or an older one",
                      remedy, newest_));
}

error run_checkpoints::with_way_back(const error& peer_lost) {
  settle();
  if (failed_) log_notice(failure(*failed_).what());
  const bool is_found = newest_ != resumed_ || where_.resume == "auto";
  // Rank 0 alone knows what it has written since.
  const bool may_be_newer = !group_.is_first() && !writing_.empty();
  const std::string way = may_be_newer ? fmt::format(
                                             "resume with --resume auto, which takes the newest in "
                                             "{}, if there is one",
                                             where_.folder)
                          : !newest_.empty()
                              ? fmt::format("resume with --resume {}: the newest is {}",
                                            is_found ? "auto" : "PATH", newest_)
                          : are_written() ? "no checkpoint was saved yet: start again"
                                          : "there is no checkpoint to resume from";
  return error(peer_lost).hint(fmt::format("{}; {}", peer_lost.what_to_do(), way));
}

}  // namespace millrace
