#include <gtest/gtest.h>
#include <torch/torch.h>

#include "pipeline/images/jpeg.h"
#include "tools/fake.h"
#include "train/device/gpu_decoder.h"

namespace millrace {
namespace {

// What a device makes of an image's pixels, beside what the pool makes of its file.
TEST(Device, ResamplesAsThePoolDoes) {
  constexpr int side = 300;
  const auto file = encode_jpeg(fake_image({.size = side}, 3, 1), side, side, 90);
  jpeg_decoder decoder;
  const auto pixels_of = [&](const view_of_image& view) {
    auto out = torch::empty({view.window.height, view.window.width, 3}, torch::kUInt8);
    decoder
        .decode(
            file, {}, [&](int, int) { return view; },
            [&](const view_of_image& v) {
              return std::span(out.data_ptr<std::uint8_t>(), output_bytes(v));
            })
        .value();
    return out.permute({2, 0, 1});
  };
  const auto whole = pixels_of(whole_image(side, side));
  for (std::uint64_t i = 0; i < 40; ++i) {
    const auto view = i % 4 == 0 ? resize_center_crop(side, side, 100, 80)
                                 : random_resized_crop(side, side, 64, {},
                                                       random_stream(1, purpose::augment, 0, i));
    const auto away = (resampled(whole, view) - pixels_of(view).to(torch::kFloat32)).abs();
    EXPECT_LE(away.max().item<float>(), 1) << i;
  }
}

TEST(Device, WhereThereIsNoGpuItSaysSo) {
  try {
    const gpu_decoder none{c10::Device(c10::kCPU)};
    FAIL();
  } catch (const failure& f) {
    EXPECT_EQ(f.why().kind(), errc::unsupported);
    EXPECT_NE(f.why().what_to_do().find("leave out --gpu-decode"), std::string::npos);
  }
}

}  // namespace
}  // namespace millrace
