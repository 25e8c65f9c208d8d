#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/pixels/image.h"
#include "train/checkpoints/checkpoint.h"
#include "train/command_line/options.h"
#include "train/device/to_device.h"
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

  // Called by all ranks, once, before the first step: see data_parallel. `part`: of the data, which
  // this rank reads.
  void join(process_group& group, int part);

  // The arguments of a step other than its batch.
  struct step_terms {
    // Steps of the run so far, including those before a resume. The numbers that a model draws from
    // torch's generators depend on it, the rank's part of the data and the seed alone.
    std::int64_t step = 0;
    double rate = 0;                // of learning
    std::int64_t of_all_ranks = 0;  // samples: each counts alike, whichever rank has it
  };
  // One step on a batch of any number of samples. The tensors are on the device, and undefined for
  // a batch of none.
  struct outcome {
    at::Tensor loss;  // the mean over this batch
    at::Tensor scores;
    at::Tensor labels;
    at::Tensor accuracy() const;  // float32
  };
  // The batch on its device; of no samples: nothing.
  device_batch bring(host_batch b);
  outcome train(const device_batch& b, const step_terms& terms);

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
