#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>

namespace millrace {

// The streams of a device: what is queued on one is done in that order.
enum class device_stream {
  compute,  // of the model: the current stream
  copy,     // of copies between memory and the device
};

// What moves data to a device and back, as calls: tests record their order, so that it is known
// where there is no GPU. One thread.
class stream_calls {
 public:
  virtual ~stream_calls() = default;
  // Queues a copy on the copy stream. One side is pinned memory, which must live until then.
  virtual void copy(at::Tensor& to, const at::Tensor& from) = 0;
  // Event number `event` passes when what has been queued on `on` is done.
  virtual void record(int event, device_stream on) = 0;
  // What is queued on `on` from now on begins after the event.
  virtual void wait(device_stream on, int event) = 0;
  // Whether the event has passed.
  virtual bool has_passed(int event) = 0;
  // Waits for the event on the host.
  virtual void wait_on_host(int event) = 0;
};

// Those of a GPU, with events 0 to `events` - 1; null for other devices, whose data are in memory.
std::unique_ptr<stream_calls> make_stream_calls(c10::Device device, int events);

}  // namespace millrace
