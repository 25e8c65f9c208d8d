#include "train/device/stream_calls.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <vector>

namespace millrace {
namespace {

class gpu_calls final : public stream_calls {
 public:
  gpu_calls(c10::Device device, int events)
      : device_(device),
        guard_(device.type()),
        copying_(guard_.getStreamFromGlobalPool(device, /*isHighPriority=*/true)) {
    for (int i = 0; i < events; ++i) events_.emplace_back(device.type());
  }

  void copy(at::Tensor& to, const at::Tensor& from) override {
    const c10::StreamGuard on_it(copying_);
    to.copy_(from, /*non_blocking=*/true);
  }
  void record(int event, device_stream on) override { at(event).record(stream(on)); }
  void wait(device_stream on, int event) override { at(event).block(stream(on)); }
  bool has_passed(int event) override { return at(event).query(); }
  void wait_on_host(int event) override { at(event).synchronize(); }

 private:
  c10::Event& at(int event) { return events_[static_cast<std::size_t>(event)]; }
  c10::Stream stream(device_stream which) const {
    return which == device_stream::copy ? copying_ : guard_.getStream(device_);
  }

  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream copying_;
  std::vector<c10::Event> events_;
};

}  // namespace

std::unique_ptr<stream_calls> make_stream_calls(c10::Device device, int events) {
  if (!device.is_cuda()) return nullptr;
  return std::make_unique<gpu_calls>(device, events);
}

}  // namespace millrace
