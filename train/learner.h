#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/images/image.h"
#include "train/checkpoints/checkpoint.h"
#include "train/options.h"
#include "train/ranks/distributed.h"

namespace millrace {

// The model, its optimizer, the average of its weights, and the hand-off of batches to their
// device. One thread.
class learner {
 public:
  // Creates the model, with initial weights from the seed or from a file. Throws `failure`.
  learner(const train_options& options, c10::Device device);
  ~learner();
  learner(const learner&) = delete;
  learner& operator=(const learner&) = delete;

  // Called by all ranks, once, before the first step: see data_parallel.
  void join(process_group& group);

  // One step on a batch. The tensors are on the device.
  struct outcome {
    at::Tensor loss;
    at::Tensor scores;
    at::Tensor labels;
    double accuracy() const;  // the host waits for the device
  };
  // `step`: how many steps of the run have been taken, also before it was resumed: what a model
  // draws from torch's generators depends on it, the rank and the seed alone.
  outcome train(host_batch b, double rate, std::int64_t step);

  // Called by all ranks: copies rank 0's running statistics to all, and sets evaluation mode, with
  // the average of the weights if there is one.
  void begin_evaluation();
  // Adds a batch's loss, top-1 hits, top-5 hits and images to `sums`, four float64 on the device.
  void evaluate(host_batch b, at::Tensor& sums);
  void end_evaluation();

  // Weights, their average and the optimizer's state. restore() throws `failure` (bad_state), for
  // example if they are not finite; `path` names the checkpoint.
  void save(checkpoint& to) const;
  void restore(const checkpoint& from, const std::string& path);

  std::int64_t parameters() const;
  c10::Device device() const;
  // Images whose data the device's decoder found damaged.
  std::uint64_t damaged() const;

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
