#include "train/device/to_device.h"

#include <torch/torch.h>

#include <cstring>
#include <utility>
#include <vector>

namespace millrace {
namespace {

// The usual ImageNet statistics, for pixels in 0..255.
at::Tensor per_channel(const std::vector<float>& values, c10::Device device) {
  return torch::tensor(values).view({1, 3, 1, 1}).to(device);
}

constexpr std::int64_t label_bytes = sizeof(std::int64_t);

std::vector<std::int64_t> shape_of(const host_batch& b) {
  return {static_cast<std::int64_t>(b.size()), b.height, b.width, 3};
}

at::Tensor labels_of(const std::vector<std::int64_t>& labels) {
  return torch::tensor(labels, torch::kInt64);
}

// Puts the labels, and then the other labels, to the end of the batch's block. Where; nullopt: the
// block, which is none of image_block_bytes(), has no room.
std::optional<std::int64_t> put_labels(const host_batch& b) {
  const std::size_t each = b.size() * sizeof(std::int64_t);
  if (b.pixels->size < b.payload_bytes() + 2 * each) return std::nullopt;
  const std::size_t at =
      (b.pixels->size - 2 * each) / alignof(std::int64_t) * alignof(std::int64_t);
  if (at < b.payload_bytes()) return std::nullopt;
  std::memcpy(b.pixels->data + at, b.labels.data(), each);
  if (!b.other_labels.empty()) {
    std::memcpy(b.pixels->data + at + each, b.other_labels.data(), each);
  }
  return static_cast<std::int64_t>(at);
}

// The events of a slot: its batch is on the device, and is no longer needed there.
constexpr int copied(int slot) {
  return 2 * slot;
}
constexpr int used(int slot) {
  return 2 * slot + 1;
}
// After which a batch's memory may be given back: the device's decoder reads files from it.
int after_reading(int slot, const host_batch& b) {
  return b.encoded.empty() ? copied(slot) : used(slot);
}

}  // namespace

std::int64_t device_batch::size() const {
  return images.defined() ? images.size(0) : 0;
}

to_device::to_device(c10::Device device, std::unique_ptr<gpu_decoder> decoder)
    : to_device(device, std::move(decoder), make_stream_calls(device, 2 * slots)) {}

to_device::to_device(c10::Device device, std::unique_ptr<gpu_decoder> decoder,
                     std::unique_ptr<stream_calls> calls)
    : device_(device),
      decoder_(std::move(decoder)),
      calls_(std::move(calls)),
      scale_(per_channel({1 / (0.229F * 255), 1 / (0.224F * 255), 1 / (0.225F * 255)}, device)),
      shift_(per_channel({-0.485F / 0.229F, -0.456F / 0.224F, -0.406F / 0.225F}, device)) {}

to_device::~to_device() {
  for (int i = 0; i < slots; ++i) {
    const auto& host = slots_[static_cast<std::size_t>(i)].host;
    if (host) calls_->wait_on_host(after_reading(i, *host));
  }
}

device_batch to_device::operator()(host_batch b) {
  const torch::InferenceMode none(false);
  if (calls_) return moved(std::move(b));
  device_batch out;
  out.images = images_of(torch::from_blob(b.pixels->data, shape_of(b), torch::kUInt8), b);
  out.labels = labels_of(b.labels);
  if (!b.other_labels.empty()) out.other_labels = labels_of(b.other_labels);
  out.share = b.share;
  out.epoch = b.epoch;
  return out;
}

device_batch to_device::moved(host_batch b) {
  free_copied();
  const int number = std::exchange(next_, (next_ + 1) % slots);
  slot& to = slots_[static_cast<std::size_t>(number)];
  if (to.host) {
    calls_->wait_on_host(after_reading(number, *to.host));
    to.host.reset();
  }
  const auto labels_at = put_labels(b);
  const at::Tensor bytes = bytes_on_device(to, number, b);
  const auto count = static_cast<std::int64_t>(b.size());
  const auto pixels = static_cast<std::int64_t>(b.payload_bytes());
  device_batch out;
  out.images = images_of(bytes.narrow(0, 0, pixels).view(shape_of(b)), b);
  if (labels_at) {
    // Copies: the slot is another batch's soon.
    const auto both = bytes.narrow(0, *labels_at, 2 * count * label_bytes).view(torch::kInt64);
    out.labels = both.narrow(0, 0, count).clone();
    if (!b.other_labels.empty()) out.other_labels = both.narrow(0, count, count).clone();
  } else {
    out.labels = labels_of(b.labels).to(device_);
    if (!b.other_labels.empty()) out.other_labels = labels_of(b.other_labels).to(device_);
  }
  calls_->record(used(number), device_stream::compute);
  out.share = b.share;
  out.epoch = b.epoch;
  to.host = std::move(b);
  return out;
}

// Lets go of the memory of batches that have been copied.
void to_device::free_copied() {
  for (int i = 0; i < slots; ++i) {
    auto& host = slots_[static_cast<std::size_t>(i)].host;
    if (host && calls_->has_passed(after_reading(i, *host))) host.reset();
  }
}

// The block of the batch, in the slot, for what is queued on the compute stream from now on.
at::Tensor to_device::bytes_on_device(slot& to, int number, const host_batch& b) {
  const auto size = static_cast<std::int64_t>(b.pixels->size);
  if (!to.bytes.defined() || to.bytes.numel() < size) {
    to.bytes = torch::empty(size, torch::TensorOptions().dtype(torch::kUInt8).device(device_));
    // The memory may have been that of tensors whose work is still queued.
    calls_->record(used(number), device_stream::compute);
  }
  calls_->wait(device_stream::copy, used(number));
  at::Tensor bytes = to.bytes.narrow(0, 0, size);
  calls_->copy(bytes, torch::from_blob(b.pixels->data, {size}, torch::kUInt8));
  calls_->record(copied(number), device_stream::copy);
  calls_->wait(device_stream::compute, copied(number));
  return bytes;
}

// The batch's pixels, N x H x W x 3 uint8, and the images among them that the device decodes, in
// the model's format.
at::Tensor to_device::images_of(const at::Tensor& pixels, const host_batch& b) {
  // NHWC in memory seen as NCHW is channels_last.
  at::Tensor images = pixels.permute({0, 3, 1, 2}).to(torch::kFloat32);
  if (!b.encoded.empty()) decoder_->decode(b, images);
  return images.mul_(scale_).add_(shift_);
}

}  // namespace millrace
