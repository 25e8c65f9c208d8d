#include "train/run_checkpoints.h"

#include <fmt/format.h>

#include <filesystem>

#include "engine/log.h"
#include "train/checkpoint_folder.h"
#include "train/inputs.h"
#include "train/job.h"

namespace millrace {

run_checkpoints::run_checkpoints(const train_options& options, process_group& group,
                                 std::size_t state_bytes)
    : options_(options), group_(group), state_bytes_(state_bytes), run_(new_run_name()) {}

std::optional<checkpoint> run_checkpoints::load(std::int64_t lanes) {
  const auto choose = [this] {
    if (are_written()) lock_.emplace(options_.checkpoint_dir);
    return choose_start(options_);
  };
  auto loaded = load_checkpoint(
      choose, group_,
      {.lanes = lanes, .batch_size = options_.batch_size, .state_bytes = state_bytes_});
  if (!loaded) return std::nullopt;
  resumed_ = newest_ = loaded->first;
  run_ = loaded->second.run;
  const std::int64_t step = loaded->second.step;
  const bool is_own = group_.is_first() && are_written() &&
                      is_checkpoint_in(options_.checkpoint_dir, resumed_, step);
  if (group_.shared(is_own ? "own" : "") == "own") in_folder_ = step;
  return std::move(loaded->second);
}

void run_checkpoints::save(const checkpoint_record& record, const learner& from) {
  checkpoint c{record, {}, {}};
  c.run = run_;
  c.said = options_.said;
  c.classes = options_.raw_classes;
  group_.together([&] {
    if (!group_.is_first()) return;
    const std::string bad = from.not_finite();
    if (!bad.empty()) {
      throw failure(diverged(fmt::format("'{}' is not finite after step {}", bad, c.step)));
    }
    from.save(c);
  });
  save_checkpoint(options_.checkpoint_dir, c, group_);
  newest_ = (std::filesystem::path(options_.checkpoint_dir) / step_name(c.step)).string();
  in_folder_ = c.step;
  if (!group_.is_first()) return;
  remove_old(options_.checkpoint_dir, run_, static_cast<std::size_t>(options_.keep), resumed_);
}

void run_checkpoints::set_aside() {
  if (!are_written()) return;
  const std::string aside = set_aside_newer(options_.checkpoint_dir, resumed_);
  if (!aside.empty()) log_notice("checkpoints that were in the way have been moved to " + aside);
}

bool run_checkpoints::is_validated(const std::string& fingerprint) const {
  return group_.shared(group_.is_first() ? validation_fingerprint(options_) : "") == fingerprint;
}

std::string run_checkpoints::figures_of_resumed() const {
  return (std::filesystem::path(resumed_) / validation_name).string();
}

void run_checkpoints::add_validation(const std::string& line, const std::string& fingerprint) {
  try {
    const std::string with = fmt::format(R"({},"{}":"{}"}})", line.substr(0, line.rfind('}')),
                                         validated_key, fingerprint);
    add_to_checkpoint(newest_, validation_name, with + "\n");
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

error run_checkpoints::with_way_back(const error& peer_lost) const {
  error with = peer_lost;
  const bool is_found = newest_ != resumed_ || options_.resume == "auto";
  std::string way =
      fmt::format("resume with --resume {}: the newest is {}", is_found ? "auto" : "PATH", newest_);
  if (newest_.empty()) {
    way = are_written() ? "no checkpoint was saved yet: start again"
                        : "there is no checkpoint to resume from";
  }
  return with.hint(fmt::format("{}; {}", peer_lost.what_to_do(), way));
}

}  // namespace millrace
