#include "train/loop/lockstep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <csignal>
#include <string>
#include <utility>

#include "engine/base/fingerprint.h"

namespace millrace {
namespace {

// The fingerprint of a batch; 0 if there is none.
std::uint64_t mark_of(const std::optional<host_batch>& b) {
  if (!b) return 0;
  std::uint64_t mark = fingerprint(fmt::format("{} {}", b->epoch, fmt::join(b->labels, " ")));
  for (const std::string& key : b->keys) mark = fingerprint(key + "\n", mark);
  return mark;
}

}  // namespace

int ending_signal(const train_control& control) {
  if (!control.stop.stop_requested()) return 0;
  const int signal = control.ending_signal ? control.ending_signal() : 0;
  return signal == 0 ? SIGINT : signal;
}

lockstep::lockstep(loader<host_batch>& from, process_group& group, const train_control& control,
                   rest_of_epoch rest, const data_ranks& parts)
    : from_(from),
      group_(group),
      control_(control),
      rest_(rest),
      parts_(parts),
      feed_(from, control.stop) {}

std::optional<host_batch> lockstep::next() {
  if (!is_within_) {
    position_.reset();
    if (rest_ == rest_of_epoch::trained) begin_ = from_.save();
    has_ended_ = false;
    is_within_ = true;
    read();
  }
  agree();
  if (all_.one_failed) {
    group_.together([&] {
      if (failed()) throw failure(*failed());
    });
  }
  if (!goes_on()) {
    is_within_ = false;
    return std::nullopt;
  }
  samples_ = all_.samples;
  // Taken before the next batch is requested.
  if (ready_) position_ = from_.save();
  if (!position_) position_ = begin_;
  auto batch = std::exchange(ready_, std::nullopt);
  if (!batch) batch.emplace();
  read();
  // A rank alone asks after the step: a signal during it then counts.
  if (!group_.alone()) agreeing_.emplace(begin());
  return batch;
}

void lockstep::read() {
  if (!has_ended_) ready_ = feed_.next();
  has_ended_ = !ready_;
  is_agreed_ = false;
}

// Whether all take a step.
bool lockstep::goes_on() const {
  const bool have_batches =
      rest_ == rest_of_epoch::trained ? all_.one_has_batch : all_.all_have_batches;
  return have_batches && !all_.one_failed && all_.ending == 0;
}

void lockstep::agree() {
  if (is_agreed_) return;
  is_agreed_ = true;
  take_in(agreeing_ ? agreeing_->wait() : begin().wait());
  agreeing_.reset();
  if (epoch_is_over()) drop_rest();
}

bool lockstep::epoch_is_over() const {
  return !goes_on() && !all_.one_failed && all_.ending == 0;
}

bool lockstep::take_save_request() {
  return std::exchange(save_asked_, false);
}

step_agreement lockstep::begin() {
  return {group_,
          {.has_batch = ready_.has_value(),
           .samples = rest_ == rest_of_epoch::dropped ? -1
                      : ready_                        ? static_cast<std::int64_t>(ready_->size())
                                                      : 0,
           .mark = parts_.sharers() > 1 ? std::optional(parts_.balanced(mark_of(ready_)))
                                        : std::nullopt,
           .has_failed = failed().has_value(),
           .has_diverged = has_diverged_,
           .asks_to_save = control_.take_save_request && control_.take_save_request(),
           .has_saved = std::exchange(has_saved_, false),
           .ending = ending_signal(control_)}};
}

// Requests are one-time events: each is kept until take_...() returns it.
void lockstep::take_in(const common_word& all) {
  all_ = all;
  save_asked_ = save_asked_ || all.save_asked;
  saved_ = saved_ || all.one_has_saved;
  if (all.are_alike || all.one_failed || all.ending != 0) return;
  throw failure(error(errc::integrity, "ranks of one --data-rank have read other samples")
                    .hint("see that all hosts have the same shards, and that none skips samples "
                          "that another one can read; resume from the newest checkpoint"));
}

// The ranks agree on each batch, so that none waits longer for another than during training. After
// a stop request or a failure the rest is left: it is dropped by the run that is resumed.
void lockstep::drop_rest() {
  std::uint64_t dropped = 0;
  while (all_.one_has_batch) {
    if (ready_) {
      dropped += ready_->size();
      ready_ = feed_.next();
    }
    take_in(begin().wait());
    if (!epoch_is_over()) return;
  }
  dropped_ += dropped;
}

}  // namespace millrace
