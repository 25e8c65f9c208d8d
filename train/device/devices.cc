#include "train/device/devices.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <map>
#include <mutex>
#include <utility>

#include "engine/base/error.h"

#ifdef MILLRACE_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#endif

namespace millrace {
namespace {

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

std::string gpu_identity(c10::Device device) {
#ifdef MILLRACE_CUDA
  if (!device.is_cuda()) return "";
  const cudaUUID_t& id = at::cuda::getDeviceProperties(device.index())->uuid;
  std::string out;
  for (const char byte : id.bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return out;
#else
  return device.is_cuda() ? device.str() : "";
#endif
}

std::unique_ptr<host_allocator> make_pinned_allocator(c10::Device device) {
  if (!device.is_cuda()) return nullptr;
  return std::make_unique<pinned_allocator>();
}

}  // namespace millrace
