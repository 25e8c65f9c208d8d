#include "train/device/to_device.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <map>
#include <mutex>

#include "engine/error.h"

namespace millrace {
namespace {

// The usual ImageNet statistics, for pixels in 0..255.
at::Tensor per_channel(const std::vector<float>& values, c10::Device device) {
  return torch::tensor(values).view({1, 3, 1, 1}).to(device);
}

class pinned_allocator final : public host_allocator {
 public:
  std::byte* allocate(std::size_t size) override {
    auto memory = at::detail::getCUDAHooks().getPinnedMemoryAllocator()->allocate(size);
    auto* data = static_cast<std::byte*>(memory.get());
    const std::scoped_lock lock(mutex_);
    held_.emplace(data, std::move(memory));
    return data;
  }
  void release(std::byte* data, std::size_t /*size*/) noexcept override {
    const std::scoped_lock lock(mutex_);
    held_.erase(data);
  }

 private:
  std::mutex mutex_;
  std::map<std::byte*, at::DataPtr> held_;  // guarded by mutex_
};

}  // namespace

std::int64_t device_batch::size() const {
  return images.size(0);
}

struct to_device::in_flight {
  host_batch host;
  c10::Event copied;
};

to_device::to_device(c10::Device device, std::unique_ptr<gpu_decoder> decoder)
    : device_(device),
      decoder_(std::move(decoder)),
      scale_(per_channel({1 / (0.229F * 255), 1 / (0.224F * 255), 1 / (0.225F * 255)}, device)),
      shift_(per_channel({-0.485F / 0.229F, -0.456F / 0.224F, -0.406F / 0.225F}, device)) {}

to_device::~to_device() {
  for (auto& c : copying_) c->copied.synchronize();
}

device_batch to_device::operator()(host_batch b) {
  const torch::InferenceMode none(false);
  const auto n = static_cast<std::int64_t>(b.size());
  auto pixels = torch::from_blob(b.pixels->data, {n, b.height, b.width, 3}, torch::kUInt8);
  device_batch out;
  out.epoch = b.epoch;
  // NHWC in memory seen as NCHW is channels_last.
  auto on_device = pixels.to(device_, /*non_blocking=*/true).permute({0, 3, 1, 2});
  out.images = on_device.to(torch::kFloat32);
  if (!b.encoded.empty()) decoder_->decode(b, out.images);
  out.images.mul_(scale_).add_(shift_);
  out.labels = torch::tensor(b.labels, torch::kInt64).to(device_);
  out.share = b.share;
  if (!b.other_labels.empty()) {
    out.other_labels = torch::tensor(b.other_labels, torch::kInt64).to(device_);
  }
  if (device_.is_cuda()) {
    while (!copying_.empty() && copying_.front()->copied.query()) copying_.pop_front();
    auto kept = std::make_unique<in_flight>(in_flight{std::move(b), c10::Event(device_.type())});
    kept->copied.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    copying_.push_back(std::move(kept));
  }
  return out;
}

c10::Device pick_device(const std::string& name, int local_rank) {
  const bool has_gpu = torch::cuda::is_available();
  if (name == "cuda" && !has_gpu) {
    throw failure(error(errc::unsupported, "--device cuda, but torch finds no GPU")
                      .hint("check nvidia-smi and the driver, or train with --device cpu"));
  }
  if (name == "cpu" || !has_gpu) return {c10::kCPU};
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(
                          gpu_of(local_rank, static_cast<int>(torch::cuda::device_count())))};
}

int gpu_of(int local_rank, int gpus) {
  if (gpus == 1) return 0;
  if (local_rank < gpus) return local_rank;
  throw failure(error(errc::usage, fmt::format("local rank {} has no GPU: torch finds {} here",
                                               local_rank, gpus))
                    .hint("start as many ranks on a host as it has GPUs, or train with --device "
                          "cpu"));
}

std::unique_ptr<host_allocator> make_pinned_allocator(c10::Device device) {
  if (!device.is_cuda()) return nullptr;
  return std::make_unique<pinned_allocator>();
}

}  // namespace millrace
