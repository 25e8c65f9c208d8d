// Every image of every batch has the pixels it has when decoded alone, whatever stages are between
// the decoder and the batch, and in whatever order they yield images.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/threads/worker_pool.h"
#include "millrace/millrace.h"
#include "pipeline/images/sample_decoder.h"
#include "pipeline/stages/batched.h"
#include "tests/support/image_shards.h"
#include "tests/support/seeds.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::bounded;
using testing::image_shards;
using testing::with_memory_store;

// Holds up to `most` images and yields them in any order; each `times` times, as copies of one
// another.
class disordered final : public stream<image> {
 public:
  disordered(std::unique_ptr<stream<image>> images, std::size_t most, int times, std::uint64_t seed)
      : images_(std::move(images)), most_(most), times_(times), random_(seed, purpose::stage) {}

  awaitable<outcome> next() override {
    while (held_.size() < most_ && !ended_) {
      auto one = co_await images_->next();
      if (!one) co_return one.error();
      ended_ = !*one;
      if (*one) held_.insert(held_.end(), static_cast<std::size_t>(times_), **one);
    }
    if (held_.empty()) {
      ended_ = false;
      co_return std::optional<image>();
    }
    std::swap(held_[random_.below(static_cast<std::uint32_t>(held_.size()))], held_.back());
    image out = std::move(held_.back());
    held_.pop_back();
    co_return std::optional(std::move(out));
  }
  void save(state& to) const override { images_->save(to); }
  void restore(const state& from) override { images_->restore(from); }

 private:
  std::unique_ptr<stream<image>> images_;
  std::size_t most_;
  int times_;
  random_stream random_;
  std::vector<image> held_;
  bool ended_ = false;
};

stage<image, image> in_disorder(std::size_t most, int times, std::uint64_t seed) {
  return {
      "disordered",
      [=](run_context&, std::unique_ptr<stream<image>> images) -> std::unique_ptr<stream<image>> {
        return std::make_unique<disordered>(std::move(images), most, times, seed);
      },
      [=](downstream_needs& needs) {
        needs.images_held += most + static_cast<std::size_t>(times);
      }};
}

// Takes a time that varies from image to image.
image computed(image i) {
  volatile std::uint64_t sum = 0;
  const std::size_t rounds = std::hash<std::string>()(i.key) % 30'000;
  for (std::size_t k = 0; k < rounds; ++k) sum = sum + k;
  return i;
}

group_of<image> reversed(group_of<image> g) {
  std::ranges::reverse(g.items);
  return g;
}

class Pixels : public ::testing::TestWithParam<int> {
 protected:
  int pick(int least, int most) {
    return least + static_cast<int>(random_.below(static_cast<std::uint32_t>(most - least + 1)));
  }
  // Adds one more stage, and its name.
  std::pair<plan<image>, std::string> with_stage(plan<image> p) {
    const int n = pick(1, 12);
    switch (pick(0, 11)) {
      case 0:
        return {p | map(computed, {.threads = 3}), "map"};
      case 1:
        return {p | map(computed, {.threads = 3, .ordered = false}), "map unordered"};
      case 2:
        return {p | batched(static_cast<std::size_t>(n)) | map(reversed) | unbatched(),
                fmt::format("groups of {} reversed", n)};
      case 3:
        return {p | in_disorder(static_cast<std::size_t>(n), 1, random_.next_u32()),
                fmt::format("{} shuffled", n)};
      case 4:
        return {p | in_disorder(1, 3, random_.next_u32()), "each three times"};
      case 5:
        return {p | in_disorder(static_cast<std::size_t>(n), 2, random_.next_u32()),
                fmt::format("each twice, {} shuffled", n)};
      case 6:
        return {p | slice(pick(0, 3), 200, pick(1, 3)), "slice"};
      case 7:
        return {p | prefetch(n), fmt::format("prefetch {}", n)};
      case 8:
        return {p | map([](image i) {
                  const bool kept = std::hash<std::string>()(i.key) % 10 == 0;
                  return kept ? std::optional(std::move(i)) : std::nullopt;
                }),
                "one in ten"};
      case 9:
        return {p | epochs_of(pick(5, 60)), "epochs_of"};
      case 10:
        return {p | map([last = std::make_shared<std::vector<image>>()](image i) {
                  last->push_back(i);  // keeps the last five: copies that share their slots
                  if (last->size() > 5) last->erase(last->begin());
                  return i;
                }),
                "five kept"};
      default:
        return {p |
                    bucketed([](const image& i) { return i.label % 3; },
                             {{.up_to = 0, .size = 3}, {.up_to = 2, .size = 5}}) |
                    unbatched(),
                "buckets"};
    }
  }

  random_stream random_{static_cast<std::uint64_t>(GetParam()), purpose::stage, 5};
};

TEST_P(Pixels, AreThoseOfTheImageDecodedAlone) {
  constexpr double parts[] = {0, 0.02, 0.1, 0.5, 0.9};
  const image_shards data(pick(1, 5), pick(1, 40), parts[pick(0, 4)], random_.next_u32());
  engine eng(with_memory_store(data.store(), pick(1, 4), 1_GiB));
  const decode_options how = checked({.size = pick(1, 24),
                                      .resize = 32,
                                      .seed = 3,
                                      .augment = {.policy = augment_policy::none},
                                      .in_flight = pick(0, 20)});
  const auto samples = interleaved(shards(data.urls(), {.seed = 3, .lanes = 4, .epochs = 2}) |
                                   untar() | group_by_key());
  // Each image of both epochs, decoded alone.
  const auto bytes = static_cast<std::size_t>(how.size * how.size * 3);
  std::map<std::pair<std::int64_t, std::string>, std::vector<std::uint8_t>> alone;
  auto all = eng.run(samples);
  sample_decoder decoder;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const sample& s : all) {
      auto& pixels = alone[{epoch, s.key}];
      pixels.resize(bytes);
      if (!decoder.decode(s, how, pixels.data())) alone.erase({epoch, s.key});
    }
  }
  for (int chain = 0; chain < 4; ++chain) {
    plan<image> images = samples | decode_jpeg(how);
    if (pick(0, 1) == 0) images = images | on_error(skip_errors());
    std::string name;
    const int stages = pick(0, 3);
    for (int i = 0; i < stages; ++i) {
      auto [longer, what] = with_stage(images);
      images = longer;
      name += " | " + what;
    }
    const batch_options together{
        .size = pick(1, 40), .drop_last = pick(0, 3) == 0, .held = pick(1, 3)};
    plan<host_batch> batches = images | on_error(skip_errors()) | batch(together);
    if (pick(0, 1) == 0) batches = batches | prefetch(pick(1, 3));
    name = fmt::format("decode {} threads {}{} | batch {}", how.size, eng.threads().cpu().threads(),
                       name, together.size);
    bounded(name, [&] {
      auto run = eng.run(batches);
      std::size_t seen = 0;
      std::size_t wrong = 0;
      for (int ends = 0; ends < 2;) {
        const auto b = run.next();
        ends = b ? 0 : ends + 1;
        for (std::size_t i = 0; b && i < b->size(); ++i, ++seen) {
          const auto& right = alone.at({b->origins[i].epoch, b->keys[i]});
          wrong += std::equal(right.begin(), right.end(), b->data() + i * bytes) ? 0 : 1;
          EXPECT_EQ(fmt::format("k{:05}", b->labels[i]), b->keys[i]) << name;
        }
      }
      EXPECT_EQ(wrong, 0U) << "of " << seen << ": " << name;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Random, Pixels, ::testing::Range(0, 60, testing::one_of_as_many));

// A user's own images, in their own memory: one slot each.
TEST(OwnImages, AreCopiedIntoBatches) {
  const image_shards data(1, 20, 0, 1);
  engine eng(with_memory_store(data.store()));
  const auto own = [](sample s) {
    image i;
    i.height = i.width = 4;
    auto bytes = std::make_shared<std::vector<std::byte>>(
        48, static_cast<std::byte>(std::stoi(std::string(s.key.substr(1)))));
    i.pixels =
        std::shared_ptr<block>(new block{bytes->data(), 48}, [bytes](block* b) { delete b; });
    i.key = s.key;
    i.where = s.where;
    return i;
  };
  std::size_t seen = 0;
  for (const auto& b : eng.run(interleaved(shards(data.urls()) | untar() | group_by_key()) |
                               map(own) | batch({.size = 8}))) {
    for (std::size_t i = 0; i < b.size(); ++i, ++seen) {
      EXPECT_EQ(b.data()[i * 48 + 47], std::stoi(b.keys[i].substr(1)));
    }
  }
  EXPECT_EQ(seen, 20U);
}

}  // namespace
}  // namespace millrace
