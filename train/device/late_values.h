#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "train/device/stream_calls.h"

namespace millrace {

// A few numbers of each step, such as its loss, brought to memory while the device goes on: the
// host reads them some steps later and does not wait. One thread.
class late_values {
 public:
  // Values of `most` steps at most are on their way.
  static constexpr std::size_t most = 4;

  // `calls`: with `most` times 2 events; null: the values are in memory.
  explicit late_values(std::unique_ptr<stream_calls> calls);
  static late_values of(c10::Device device);

  // Begins to read `values`, float64, as many each time. If is_full(), pop(true) comes first.
  void push(const at::Tensor& values);
  // The oldest that have not been returned; nullopt: there are none, or, unless it `waits`, they
  // have not come.
  std::optional<std::vector<double>> pop(bool waits);
  bool is_full() const { return begun_.size() == most; }

 private:
  struct begun {
    int slot = 0;
    at::Tensor on_device;  // until it was copied
    at::Tensor in_memory;
  };
  // The events of a slot: its values are computed, and are in memory.
  static int computed(int slot) { return 2 * slot; }
  static int come(int slot) { return 2 * slot + 1; }

  std::unique_ptr<stream_calls> calls_;
  std::deque<begun> begun_;
  int next_ = 0;
};

}  // namespace millrace
