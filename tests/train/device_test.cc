#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "pipeline/codecs/jpeg.h"
#include "tools/write/fake.h"
#include "train/device/devices.h"
#include "train/device/gpu_decoder.h"
#include "train/device/late_values.h"
#include "train/device/stream_calls.h"
#include "train/device/tensor_snapshot.h"
#include "train/device/to_device.h"
#include "train/ranks/distributed.h"
#include "train/ranks/torch_error.h"

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

// A launcher tells a failed GPU from other failures by its exit code.
TEST(Device, ItsFailuresAreToldFromOthers) {
  process_group alone{job_place()};
  const auto kind_of = [&](const c10::Error& thrown) {
    try {
      alone.together([&] { throw thrown; });
    } catch (const failure& f) {
      EXPECT_EQ(f.why().what().find('\n'), std::string::npos);
      return f.kind();
    }
    return errc::stopped;
  };
  const c10::SourceLocation here{"f", "a.cc", 1};
  const std::string illegal = "CUDA error: an illegal memory access was encountered\nCompile with";
  EXPECT_EQ(kind_of(c10::Error(here, illegal)), errc::device_failed);
  EXPECT_EQ(kind_of(c10::Error(here, "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")),
            errc::device_failed);
  EXPECT_EQ(error_of_torch(c10::OutOfMemoryError(here, "CUDA out of memory")).kind(),
            errc::no_memory);
  EXPECT_EQ(kind_of(c10::Error(here, "sizes differ")), errc::internal);
  const c10::Error random(
      here, "a_backward_cuda does not have a deterministic implementation, but you set 'torch.use");
  EXPECT_EQ(kind_of(random), errc::unsupported);
  EXPECT_EQ(error_of_torch(random).what(),
            "a_backward_cuda does not have a deterministic implementation");
}

// Records the calls in their order. The test lets events pass.
class recorded_calls final : public stream_calls {
 public:
  explicit recorded_calls(std::vector<std::string>& log) : log_(log) {}

  void copy(at::Tensor& to, const at::Tensor& from) override {
    log_.push_back("copy");
    to.copy_(from);
  }
  void record(int event, device_stream on) override { log_.push_back(text("record", event, on)); }
  void wait(device_stream on, int event) override { log_.push_back(text("wait", event, on)); }
  bool has_passed(int event) override { return passed.contains(event); }
  void wait_on_host(int event) override {
    log_.push_back(fmt::format("host waits for {}", event));
    passed.insert(event);
  }

  std::set<int> passed;

 private:
  static std::string text(const char* what, int event, device_stream on) {
    return fmt::format("{} {} {}", on == device_stream::copy ? "copy" : "compute", what, event);
  }
  std::vector<std::string>& log_;
};

host_batch batch_of(int images, std::int64_t label, bool is_mixed = false) {
  constexpr int side = 4;
  const std::size_t pixels = static_cast<std::size_t>(images) * side * side * 3;
  struct owned {
    std::vector<std::byte> memory;
    block bytes;
  };
  auto own = std::make_shared<owned>();
  own->memory.assign(image_block_bytes(side * side * 3, static_cast<std::size_t>(images)),
                     std::byte{0});
  for (std::size_t i = 0; i < pixels; ++i)
    own->memory[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(label));
  own->bytes = {.data = own->memory.data(), .size = own->memory.size()};
  host_batch b{.pixels = std::shared_ptr<block>(own, &own->bytes), .height = side, .width = side};
  for (int i = 0; i < images; ++i) b.labels.push_back(label + i);
  if (is_mixed) b.other_labels.assign(b.labels.rbegin(), b.labels.rend());
  return b;
}

// On a GPU the order of these calls is what keeps a batch from being overwritten or read too early.
TEST(ToDevice, TheNextBatchIsCopiedWhileTheModelWorksOnThisOne) {
  std::vector<std::string> log;
  auto made = std::make_unique<recorded_calls>(log);
  recorded_calls& calls = *made;
  to_device ring(c10::kCPU, nullptr, std::move(made));
  const auto moved = [&](int batch) {
    log.clear();
    auto b = batch_of(3, batch);
    const std::weak_ptr<block> memory = b.pixels;
    ring(std::move(b));
    return memory;
  };
  const auto first = moved(0);
  // Slot 0: its new memory may be in use by earlier work; then one copy; then the model's work.
  const std::vector<std::string> fresh{"compute record 1", "copy wait 1",    "copy",
                                       "copy record 0",    "compute wait 0", "compute record 1"};
  EXPECT_EQ(log, fresh);
  const auto second = moved(1);
  EXPECT_EQ(log[0], "compute record 3");
  EXPECT_FALSE(first.expired()) << "its copy has not been made";
  calls.passed = {0};
  const auto third = moved(2);
  EXPECT_TRUE(first.expired());
  // The slot again: the copy waits for the model's work on it, and the host for nothing.
  calls.passed = {0};
  moved(3);
  EXPECT_EQ(log, std::vector<std::string>(fresh.begin() + 1, fresh.end()));
  EXPECT_FALSE(second.expired());
  // Three batches ahead of the device: the host waits until the memory may be given back.
  moved(4);
  EXPECT_EQ(log.front(), "host waits for 2");
  EXPECT_TRUE(second.expired());
  EXPECT_FALSE(third.expired());
}

TEST(ToDevice, GivesTheSameByCopiesAndWithout) {
  std::vector<std::string> log;
  to_device ring(c10::kCPU, nullptr, std::make_unique<recorded_calls>(log));
  to_device direct(c10::kCPU);
  for (int i = 0; i < 10; ++i) {
    const int images = 1 + i % 4;
    const device_batch copied = ring(batch_of(images, i, i % 2 == 1));
    const device_batch plain = direct(batch_of(images, i, i % 2 == 1));
    EXPECT_TRUE(copied.images.equal(plain.images)) << i;
    EXPECT_TRUE(copied.images.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(copied.labels.equal(plain.labels)) << i;
    EXPECT_EQ(copied.other_labels.defined(), i % 2 == 1);
    if (i % 2 == 1) EXPECT_TRUE(copied.other_labels.equal(plain.other_labels)) << i;
  }
  EXPECT_EQ(std::ranges::count(log, "copy"), 10) << "one copy a batch";
  // A block of the caller's own, without room for the labels.
  host_batch small = batch_of(2, 5);
  small.pixels->size = small.payload_bytes();
  EXPECT_TRUE(ring(std::move(small)).labels.equal(torch::tensor({5, 6}, torch::kInt64)));
}

TEST(LateValues, AreReadOnceTheyHaveCome) {
  std::vector<std::string> log;
  auto made = std::make_unique<recorded_calls>(log);
  recorded_calls& calls = *made;
  late_values values(std::move(made));
  const auto value = [](double v) { return torch::tensor({v, -v}, torch::kFloat64); };
  EXPECT_FALSE(values.pop(true));
  values.push(value(1));
  EXPECT_EQ(log,
            (std::vector<std::string>{"compute record 0", "copy wait 0", "copy", "copy record 1"}));
  EXPECT_FALSE(values.pop(false));
  values.push(value(2));
  calls.passed = {1};
  EXPECT_EQ(values.pop(false), (std::vector<double>{1, -1}));
  EXPECT_FALSE(values.pop(false));
  log.clear();
  EXPECT_EQ(values.pop(true), (std::vector<double>{2, -2}));
  EXPECT_EQ(log, std::vector<std::string>{"host waits for 3"});
  for (std::size_t i = 0; i < late_values::most; ++i) {
    EXPECT_FALSE(values.is_full());
    values.push(value(static_cast<double>(i)));
  }
  EXPECT_TRUE(values.is_full());
}

TEST(TensorSnapshot, IsOfTheMomentWhenItWasTaken) {
  tensor_dict tensors{{"a", torch::ones({2, 3})}, {"b", torch::tensor({7}, torch::kInt64)}};
  tensor_snapshot then(tensors);
  tensors["a"].zero_();
  tensors["b"].zero_();
  const tensor_dict kept = then.on_host();
  EXPECT_TRUE(kept.at("a").equal(torch::ones({2, 3})));
  EXPECT_TRUE(kept.at("b").equal(torch::tensor({7}, torch::kInt64)));
}

TEST(Gpu, BatchesAreThoseInMemory) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "there is no GPU here";
  to_device ring(c10::Device(c10::kCUDA, 0));
  to_device direct(c10::kCPU);
  std::vector<device_batch> made;
  for (int i = 0; i < 20; ++i) made.push_back(ring(batch_of(4, i, true)));
  for (int i = 0; i < 20; ++i) {
    const device_batch plain = direct(batch_of(4, i, true));
    const device_batch& moved = made[static_cast<std::size_t>(i)];
    EXPECT_TRUE(moved.images.cpu().allclose(plain.images)) << i;
    EXPECT_TRUE(moved.labels.cpu().equal(plain.labels)) << i;
    EXPECT_TRUE(moved.other_labels.cpu().equal(plain.other_labels)) << i;
  }
}

// The same images of a batch as files, and as the pool's pixels. `memory`: of the files.
std::pair<host_batch, host_batch> encoded_and_decoded(int number, int images, int side,
                                                      host_allocator& memory) {
  const std::size_t slot = static_cast<std::size_t>(side) * static_cast<std::size_t>(side) * 3;
  const std::size_t size = image_block_bytes(slot, static_cast<std::size_t>(images));
  host_batch files{.height = side, .width = side};
  files.labels.assign(static_cast<std::size_t>(images), number);
  files.keys.assign(static_cast<std::size_t>(images), "k");
  host_batch pixels = files;
  files.pixels = {new block{.data = memory.allocate(size), .size = size}, [&memory](block* b) {
                    memory.release(b->data, b->size);
                    delete b;
                  }};
  auto plain = std::make_shared<std::vector<std::byte>>(size);
  pixels.pixels = {new block{.data = plain->data(), .size = size}, [plain](block* b) { delete b; }};
  jpeg_decoder decoder;
  for (std::size_t at = 0; at < files.labels.size(); ++at) {
    const int shape = side + 20 + static_cast<int>(at);
    const auto file = encode_jpeg(fake_image({.size = shape}, number, at), shape, shape, 80);
    EXPECT_LE(file.size(), slot);
    const auto view = resize_center_crop(shape, shape, side + 8, side);
    std::ranges::copy(file, files.pixels->data + at * slot);
    files.encoded.emplace_back(at, encoded_image{.bytes = file.size(), .view = view});
    auto* to = reinterpret_cast<std::uint8_t*>(pixels.pixels->data + at * slot);
    decoder
        .decode(
            file, {}, [&](int, int) { return view; },
            [&](const view_of_image&) { return std::span(to, slot); })
        .value();
  }
  return {std::move(files), std::move(pixels)};
}

// Batch after batch, so that one's files and buffers are still in use when the next one comes.
TEST(Gpu, DecodesWhatThePoolDecodes) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "there is no GPU here";
  const c10::Device gpu(c10::kCUDA, 0);
  std::unique_ptr<gpu_decoder> decoder;
  try {
    decoder = std::make_unique<gpu_decoder>(gpu);
  } catch (const failure& f) {
    GTEST_SKIP() << f.what();
  }
  const auto pinned = make_pinned_allocator(gpu);
  std::vector<host_batch> pixels;
  std::vector<at::Tensor> images;
  {
    to_device ring(gpu, std::move(decoder));
    for (int i = 0; i < 60; ++i) {
      auto [files, same] = encoded_and_decoded(i, 16, 128, *pinned);
      images.push_back(ring(std::move(files)).images);
      pixels.push_back(std::move(same));
    }
  }
  to_device direct(c10::kCPU);
  for (std::size_t i = 0; i < images.size(); ++i) {
    // In deviations of a channel: chroma is resampled by another filter. Other images differ by
    // 0.5 and more.
    const auto away = (images[i].cpu() - direct(std::move(pixels[i])).images).abs().mean();
    EXPECT_LT(away.item<float>(), 0.1F) << i;
  }
}

TEST(Gpu, ValuesAndSnapshotsComeToMemory) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "there is no GPU here";
  const auto on_gpu = torch::TensorOptions().dtype(torch::kFloat64).device(torch::kCUDA);
  late_values values = late_values::of(c10::Device(c10::kCUDA, 0));
  for (int i = 0; i < 100; ++i) {
    values.push(torch::full({2}, i, on_gpu));
    EXPECT_EQ(values.pop(true), (std::vector<double>(2, i)));
  }
  const auto t = torch::ones({1000, 1000}, on_gpu);
  tensor_snapshot then({{"t", t}});
  t.zero_();
  EXPECT_TRUE(then.on_host().at("t").equal(torch::ones({1000, 1000}, torch::kFloat64)));
}

}  // namespace
}  // namespace millrace
