#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/host/job_place.h"

namespace c10 {
class Error;
}

namespace millrace {

// The process group of a job: NCCL for tensors on GPUs, Gloo for those in memory and for what the
// ranks have to agree on. With one rank everything is a no-op. One thread. A rank that is gone, or
// silent for `timeout`, is a `failure` (peer_lost). If this process does not notice within seconds,
// for example because it waits for a device or for data, it reports the loss and exits with
// peer_lost's code.
class process_group {
 public:
  // Joins the job; returns when all ranks have joined. Torch cannot cancel its connecting, so a
  // process that has not joined within `timeout` reports it and exits with the code of peer_lost;
  // before that it calls `before_end`, on a separate thread. So it does for a rank that is gone.
  explicit process_group(const job_place& place,
                         std::chrono::seconds timeout = std::chrono::minutes(5),
                         const std::function<void(const error&)>& before_end = {});
  ~process_group();
  process_group(const process_group&) = delete;
  process_group& operator=(const process_group&) = delete;

  // Called by all ranks, once, before tensors of `device` are broadcast, summed or reduced.
  void connect(c10::Device device);

  // The place that it was made with.
  const job_place& place() const { return place_; }
  // Whether the job has one rank: nothing has to be agreed on.
  bool alone() const { return place_.world_size == 1; }
  // Whether this is rank 0.
  bool is_first() const { return place_.rank == 0; }

  // Rank `root`'s text, on every rank. A collective call, as all that follow: all ranks make them
  // at the same point, with no other call of the group in between.
  std::string shared(std::string text, int root = 0);
  // Every rank's text in the order of ranks, on rank 0; empty on the others.
  std::vector<std::string> gathered(const std::string& text);
  // Runs `f` on every rank; if it throws on some of them, throws the lowest rank's failure on all,
  // so that no rank continues alone. `f` must not call the group.
  void together(const std::function<void()>& f);

  void broadcast(at::Tensor& t);  // from rank 0
  void sum(at::Tensor& t);        // in place, over all ranks
  // Returns when all ranks have called it.
  void barrier();

  // While held, a rank that is gone ends this process only by what fails here: for work that is to
  // be finished, such as writing a file.
  void hold(bool is_held);

  // Values that were begun to be agreed on; smallest() returns it.
  class agreement {
   public:
    // The minimum of each value, then the sum of each addend. Blocks until all ranks have begun;
    // throws `failure` (peer_lost).
    std::vector<std::int64_t> wait();

   private:
    friend class process_group;
    struct impl;
    std::shared_ptr<impl> impl_;
  };
  // The minimum of each value over all ranks, and the sum of each addend, begun now and read later,
  // so that it overlaps other work. As many of both on every rank.
  agreement smallest(std::vector<std::int64_t> values, std::vector<std::int64_t> addends = {});

 private:
  friend class data_parallel;
  struct impl;
  void agree_on(const std::optional<error>& mine);

  job_place place_;
  std::chrono::seconds timeout_;
  std::unique_ptr<impl> impl_;
};

// Holds a group while it lives.
class held_group {
 public:
  // Refers to the group.
  explicit held_group(process_group& group) : group_(group) { group_.hold(true); }
  ~held_group() { group_.hold(false); }
  held_group(const held_group&) = delete;
  held_group& operator=(const held_group&) = delete;

 private:
  process_group& group_;
};

// Where the gradients are that data_parallel averages: in tensors of their own, to which averages
// are copied back, or in the buckets in which they are averaged, as views, which saves that copy.
// Views can only be reset (mutable_grad().reset()): zero_grad() of torch::optim throws.
enum class gradients_in { own_tensors, buckets };

// One model on all ranks: it begins with rank 0's weights, and its gradients are averaged over the
// ranks while they are computed (the reducer of torch's DistributedDataParallel). Every parameter
// has to take part in every loss. One thread; refers to the group, and shares the model's tensors.
class data_parallel {
 public:
  // Called by all ranks, after process_group::connect(), with the model on its device: copies rank
  // 0's parameters and buffers to all.
  data_parallel(process_group& group, const torch::nn::Module& model,
                gradients_in where = gradients_in::own_tensors);
  ~data_parallel();
  data_parallel(const data_parallel&) = delete;
  data_parallel& operator=(const data_parallel&) = delete;

  // In place of loss.backward(): adds the gradients of `loss`; if it is the last loss of a step,
  // then averages their sum over the ranks. Throws `failure`: peer_lost; usage, naming it, if a
  // parameter took no part in the losses of the step.
  void backward(const at::Tensor& loss, bool is_last = true);
  // The factor for this rank's loss, a mean over its `samples`, that gives each of the
  // `all_samples` samples of all ranks the same weight; 1 if all ranks have the same number. As
  // torch's Join does where batches are alike (divide_by_initial_world_size=False).
  double weight(std::int64_t samples, std::int64_t all_samples) const;
  // In place of backward() in a step of which this rank has no sample: its gradients are those of
  // the others. Throws `failure` (peer_lost).
  void backward_without_samples();
  // Called by all ranks: copies rank 0's buffers, such as running statistics, to all.
  void share_buffers();

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
