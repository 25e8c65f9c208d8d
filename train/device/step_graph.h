#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace millrace {

// Work on a GPU that is the same in every step: it is recorded once as a CUDA graph, and then
// replayed as one launch, which costs the host as much as one kernel. Source: PyTorch's notes on
// CUDA graphs ("CUDA semantics"). One thread.
class step_graph {
 public:
  // Throws `failure`: usage for a device that is not a GPU, unsupported in a build without CUDA.
  explicit step_graph(c10::Device device);
  ~step_graph();
  step_graph(const step_graph&) = delete;
  step_graph& operator=(const step_graph&) = delete;

  // Does `work`, which reads and writes the same tensors each time and does not make the host wait:
  // by calling it the first times, in which libraries choose their kernels and memory is allocated;
  // then by recording and replaying it.
  void run(const std::function<void()>& work);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
