#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "engine/base/error.h"
#include "pipeline/pixels/image.h"
#include "pipeline/run/engine.h"
#include "pipeline/state/state.h"
#include "train/loop/batch_feed.h"
#include "train/loop/control.h"
#include "train/ranks/data_ranks.h"
#include "train/ranks/distributed.h"
#include "train/ranks/step_agreement.h"

namespace millrace {

// The fate of the batches that a rank has left when another has none.
enum class rest_of_epoch {
  dropped,  // the epoch is over for all
  trained,  // those without take part in the steps with batches of no samples
};

// The batches of one rank, in step with the other ranks: all of them get the same number of batches
// in each epoch, and end an epoch, or the run, after the same one. While a batch is trained on, the
// ranks agree on whether all have another one, so that it costs no time of its own:
//
//   while (auto b = batches.next()) train(std::move(*b));  // one epoch
//
// All ranks call the same functions in the same order. One thread; refers to its arguments.
class lockstep {
 public:
  // `control`: requests to save or to end, which apply to all ranks. `parts`: where ranks share
  // parts of the data, their batches are compared, and others than alike are a `failure`
  // (integrity) on all ranks.
  lockstep(loader<host_batch>& from, process_group& group, const train_control& control = {},
           rest_of_epoch rest = rest_of_epoch::dropped, const data_ranks& parts = {});

  // The next batch; if the rest is trained, one of no samples where this rank has none left and
  // another has: see samples() and data_parallel::backward(). nullopt on all ranks when the epoch
  // is over, after which the next call begins the next one, or when a rank was asked to end
  // (ending() is not 0). Throws `failure`, on all ranks, if the data of one failed or a rank is
  // gone.
  std::optional<host_batch> next();

  // The first half of next(), to learn the outcome of the agreement before taking the next batch;
  // the functions below then refer to it. When one rank's epoch is over, reads and drops the
  // batches that the other ranks have left. Throws `failure` (peer_lost).
  void agree();

  // Whether the epoch is over on all ranks, after the last batch that next() returned.
  bool epoch_is_over() const;
  // Samples of all ranks in the batches that next() returned last, if the rest is trained; else 0.
  std::int64_t samples() const { return samples_; }
  // The signal by which a rank was asked to end; 0: none.
  int ending() const { return all_.ending; }
  // Whether the data of a rank failed, or another thing that it told: next() throws that failure.
  bool one_failed() const { return all_.one_failed; }
  // The failure of this rank's data, or the one told; nullopt: none.
  const std::optional<error>& failed() const { return told_ ? told_ : feed_.failed(); }
  // Whether a rank was asked to save since the last call.
  bool take_save_request();
  // The position after the last batch that next() returned, for a checkpoint of the state that
  // follows it; nullopt: it has returned none in this epoch.
  const std::optional<state>& position() const { return position_; }
  // Samples of this rank that were dropped in epochs of unequal length, so far.
  std::uint64_t dropped() const { return dropped_; }
  // Seconds spent waiting for data since the last call of this function.
  double take_waited() { return feed_.take_waited(); }

  // Tells the other ranks, with the next agreement, that this rank has failed: all end by `why`.
  void tell_failed(error why) { told_ = std::move(why); }
  // Tells the other ranks, with the next agreement, that this rank has written a checkpoint.
  void tell_saved() { has_saved_ = true; }
  // Whether a rank has since the last call.
  bool take_saved() { return std::exchange(saved_, false); }
  // Tells the other ranks, with the next agreement, that this rank's loss is not finite.
  void tell_diverged() { has_diverged_ = true; }
  // Whether a rank has.
  bool one_diverged() const { return all_.one_diverged; }

 private:
  step_agreement begin();
  void read();
  bool goes_on() const;
  void take_in(const common_word& all);
  void drop_rest();

  loader<host_batch>& from_;
  process_group& group_;
  train_control control_;
  rest_of_epoch rest_;
  data_ranks parts_;
  batch_feed feed_;
  std::optional<host_batch> ready_;  // which next() returns next, once the ranks have agreed
  bool is_within_ = false;           // an epoch: ready_ has been read
  bool has_ended_ = false;           // this rank's epoch: nothing more is read
  bool is_agreed_ = false;           // on ready_
  std::optional<step_agreement> agreeing_;
  common_word all_;  // the last agreement
  std::int64_t samples_ = 0;
  std::optional<state> position_;
  std::optional<state> begin_;  // of this epoch, if the rest is trained
  std::uint64_t dropped_ = 0;
  std::optional<error> told_;
  bool has_diverged_ = false;
  bool has_saved_ = false;
  bool save_asked_ = false;
  bool saved_ = false;  // by any rank
};

// The signal of a stop request; 0: there is none.
int ending_signal(const train_control& control);

}  // namespace millrace
