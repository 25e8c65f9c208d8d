#include "train/device/gpu_decoder.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <array>

#include "engine/base/result.h"
#include "engine/host/log.h"
#include "pipeline/codecs/jpeg.h"

#ifdef MILLRACE_NVJPEG
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <nvjpeg.h>
#endif

namespace millrace {
namespace {

failure unsupported(const std::string& what, std::string_view hint) {
  return failure(error(errc::unsupported, "cannot decode on the device: " + what).hint(hint));
}

}  // namespace

at::Tensor resampled(const at::Tensor& image, const view_of_image& view) {
  const auto crop = image.narrow(1, view.crop.y, view.crop.height)
                        .narrow(2, view.crop.x, view.crop.width)
                        .to(torch::kFloat32)
                        .unsqueeze(0);
  const auto scaled = at::_upsample_bilinear2d_aa(crop, {view.scaled_height, view.scaled_width},
                                                  /*align_corners=*/false)
                          .squeeze(0);
  const auto kept = scaled.narrow(1, view.window.y, view.window.height)
                        .narrow(2, view.window.x, view.window.width);
  return (view.flip ? kept.flip({2}) : kept).round().clamp(0, 255);
}

#ifdef MILLRACE_NVJPEG

namespace {

std::span<const std::byte> file_of(const host_batch& b, std::size_t index, std::size_t bytes) {
  const std::size_t slot = b.payload_bytes() / b.size();
  return {b.pixels->data + index * slot, bytes};
}

// Decodes on the CPU, filling damage; gray if that fails as well.
at::Tensor decoded_by_cpu(jpeg_decoder& decoder, std::span<const std::byte> file,
                          const view_of_image& view, bool& damaged) {
  const auto& w = view.window;
  auto out = torch::full({w.height, w.width, 3}, 128, torch::kUInt8);
  const image_options options{.lenient = true, .fill_truncated = true, .orient = false};
  const auto place = [&](const view_of_image& v) {
    return std::span(out.data_ptr<std::uint8_t>(), output_bytes(v));
  };
  const auto done = decoder.decode(file, options, [&](int, int) { return view; }, place);
  if (!done) out.fill_(128);
  damaged = !done || decoder.warnings() > 0;
  return out.permute({2, 0, 1}).to(torch::kFloat32);
}

// The functions used, loaded at run time: a host without the library can still train.
struct nvjpeg {
  nvjpeg() {
    for (const char* name : {"libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) {
      throw unsupported(fmt::format("libnvjpeg cannot be loaded ({})", dlerror()),
                        "install nvJPEG of the CUDA toolkit, or leave out --gpu-decode");
    }
    find(create, "nvjpegCreateSimple");
    find(destroy, "nvjpegDestroy");
    find(create_state, "nvjpegJpegStateCreate");
    find(destroy_state, "nvjpegJpegStateDestroy");
    find(image_info, "nvjpegGetImageInfo");
    find(begin_batch, "nvjpegDecodeBatchedInitialize");
    find(decode_batch, "nvjpegDecodeBatched");
  }
  ~nvjpeg() { dlclose(library); }
  nvjpeg(const nvjpeg&) = delete;
  nvjpeg& operator=(const nvjpeg&) = delete;

  template <class F>
  void find(F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(library, name));
    if (function == nullptr) {
      throw unsupported(fmt::format("libnvjpeg has no {}", name), "install a newer one");
    }
  }

  void* library = nullptr;
  decltype(nvjpegCreateSimple)* create = nullptr;
  decltype(nvjpegDestroy)* destroy = nullptr;
  decltype(nvjpegJpegStateCreate)* create_state = nullptr;
  decltype(nvjpegJpegStateDestroy)* destroy_state = nullptr;
  decltype(nvjpegGetImageInfo)* image_info = nullptr;
  decltype(nvjpegDecodeBatchedInitialize)* begin_batch = nullptr;
  decltype(nvjpegDecodeBatched)* decode_batch = nullptr;
};

}  // namespace

struct gpu_decoder::impl {
  explicit impl(c10::Device d) : device(d), decoded(d.type()) {
    if (!d.is_cuda()) {
      throw unsupported("there is no GPU", "leave out --gpu-decode, or train with --device cuda");
    }
    library = std::make_unique<nvjpeg>();
    if (library->create(&handle) != NVJPEG_STATUS_SUCCESS ||
        library->create_state(handle, &state) != NVJPEG_STATUS_SUCCESS) {
      throw unsupported("nvJPEG does not start", "check that its version fits the driver");
    }
  }
  ~impl() {
    if (state != nullptr) library->destroy_state(state);
    if (handle != nullptr) library->destroy(handle);
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;

  // Planes of the whole image on the device; undefined if nvJPEG does not accept it.
  at::Tensor room_for(std::span<const std::byte> file) const {
    int components = 0;
    nvjpegChromaSubsampling_t sampling{};
    std::array<int, NVJPEG_MAX_COMPONENT> widths{};
    std::array<int, NVJPEG_MAX_COMPONENT> heights{};
    const auto* data = reinterpret_cast<const unsigned char*>(file.data());
    const auto found = library->image_info(handle, data, file.size(), &components, &sampling,
                                           widths.data(), heights.data());
    if (found != NVJPEG_STATUS_SUCCESS || (components != 1 && components != 3)) return {};
    return torch::empty({3, heights[0], widths[0]},
                        torch::TensorOptions(torch::kUInt8).device(device));
  }

  // Decodes all at once, on torch's default stream. False if nvJPEG gives up.
  bool decode(const std::vector<std::span<const std::byte>>& files,
              const std::vector<at::Tensor>& planes) {
    // nvJPEG's buffers in host memory are those of the batch before until the device is done.
    if (has_decoded) decoded.synchronize();
    std::vector<const unsigned char*> data;
    std::vector<std::size_t> sizes;
    std::vector<nvjpegImage_t> to(files.size());
    for (std::size_t i = 0; i < files.size(); ++i) {
      data.push_back(reinterpret_cast<const unsigned char*>(files[i].data()));
      sizes.push_back(files[i].size());
      for (int c = 0; c < 3; ++c) {
        to[i].channel[c] = planes[i][c].data_ptr<std::uint8_t>();
        to[i].pitch[c] = static_cast<std::size_t>(planes[i].size(2));
      }
    }
    const int count = static_cast<int>(files.size());
    const bool done =
        library->begin_batch(handle, state, count, 1, NVJPEG_OUTPUT_RGB) == NVJPEG_STATUS_SUCCESS &&
        library->decode_batch(handle, state, data.data(), sizes.data(), to.data(), nullptr) ==
            NVJPEG_STATUS_SUCCESS;
    decoded.record(c10::impl::VirtualGuardImpl(device.type()).getDefaultStream(device));
    has_decoded = true;
    return done;
  }

  void by_cpu(const host_batch& b, const std::pair<std::size_t, encoded_image>& e,
              at::Tensor& images) {
    bool is_damaged = false;
    const auto pixels =
        decoded_by_cpu(cpu, file_of(b, e.first, e.second.bytes), e.second.view, is_damaged);
    images[static_cast<std::int64_t>(e.first)].copy_(pixels);
    if (is_damaged && damaged++ == 0) {
      log_notice(fmt::format(
          "the data of image {} are damaged; it was kept, and further ones are only counted",
          b.keys[e.first]));
    }
  }

  c10::Device device;
  std::unique_ptr<nvjpeg> library;
  nvjpegHandle_t handle = nullptr;
  nvjpegJpegState_t state = nullptr;
  c10::Event decoded;  // the newest batch
  bool has_decoded = false;
  jpeg_decoder cpu;
  std::uint64_t damaged = 0;
};

gpu_decoder::gpu_decoder(c10::Device device) : impl_(std::make_unique<impl>(device)) {}

void gpu_decoder::decode(const host_batch& b, at::Tensor& images) {
  std::vector<std::span<const std::byte>> files;
  std::vector<at::Tensor> planes;
  std::vector<const std::pair<std::size_t, encoded_image>*> of;
  for (const auto& e : b.encoded) {
    const auto file = file_of(b, e.first, e.second.bytes);
    auto room = impl_->room_for(file);
    if (!room.defined()) {
      impl_->by_cpu(b, e, images);
      continue;
    }
    files.push_back(file);
    planes.push_back(std::move(room));
    of.push_back(&e);
  }
  const bool decoded = files.empty() || impl_->decode(files, planes);
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (decoded) {
      images[static_cast<std::int64_t>(of[i]->first)].copy_(
          resampled(planes[i], of[i]->second.view));
    } else {
      impl_->by_cpu(b, *of[i], images);
    }
  }
}

std::uint64_t gpu_decoder::damaged() const {
  return impl_->damaged;
}

#else

struct gpu_decoder::impl {};

gpu_decoder::gpu_decoder(c10::Device /*device*/) {
  throw unsupported("this build has no nvJPEG",
                    "configure with -DMILLRACE_NVJPEG=ON, or leave out --gpu-decode");
}
void gpu_decoder::decode(const host_batch& /*batch*/, at::Tensor& /*images*/) {}
std::uint64_t gpu_decoder::damaged() const {
  return 0;
}

#endif

gpu_decoder::~gpu_decoder() = default;

}  // namespace millrace
