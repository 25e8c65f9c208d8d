// Images that grow from epoch to epoch of the data, in random chains of stages that end epochs
// elsewhere, or never: each image of a batch equals its sample decoded alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "pipeline/images/sample_decoder.h"
#include "tests/support/image_shards.h"
#include "tests/support/seeds.h"

namespace millrace {
namespace {

using testing::image_shards;
using testing::with_memory_store;

using image_place = std::pair<std::int64_t, std::int64_t>;
using pixels = std::vector<std::uint8_t>;

class drawn_plan {
 public:
  explicit drawn_plan(std::uint64_t seed)
      : random_(seed, purpose::fake_data),
        shards_(pick(1, 4), pick(2, 7), chance(2) ? 0 : 0.2, seed) {
    const std::int64_t epochs = pick(2, 4);
    options_ = {.size = pick(2, 5) * 8, .seed = seed};
    options_.growing = {
        .from = 8, .epochs = pick(1, static_cast<int>(epochs)), .multiple = pick(1, 8)};
    const int lanes = pick(1, 3);
    samples_ =
        interleaved(shards(shards_.urls(), {.seed = seed, .lanes = lanes, .epochs = epochs}) |
                    untar() | group_by_key());
    text_ = fmt::format("{} epochs of {} shards in {} lanes, {} pixels after {}", epochs,
                        shards_.urls().size(), lanes, options_.size, options_.growing.epochs);
    for (int left = pick(0, 3); left > 0; --left) samples_ = with_stage(std::move(samples_));
    text_ += " | decode_jpeg";
    plan<image> images = samples_ | decode_jpeg(options_) | on_error(skip_errors());
    for (int left = pick(0, 2); left > 0; --left) images = with_stage(std::move(images));
    const int size = pick(1, 12);
    text_ += fmt::format(" | batch {}", size);
    batches_ = std::move(images) | batch({.size = size});
    if (!chance(3)) return;
    text_ += " | prefetch";
    batches_ = std::move(batches_) | prefetch(pick(1, 2));
  }

  int pick(int least, int most) {
    return least + static_cast<int>(random_.below(static_cast<std::uint32_t>(most - least + 1)));
  }
  bool chance(int of) { return pick(1, of) == 1; }

  const image_shards& data() const { return shards_; }
  const decode_options& options() const { return options_; }
  const plan<sample>& samples() const { return samples_; }
  const plan<host_batch>& batches() const { return batches_; }
  const std::string& text() const { return text_; }

 private:
  template <class T>
  plan<T> with_stage(plan<T> front) {
    const int n = pick(1, 30);
    const int times = pick(2, 4);
    switch (pick(0, 4)) {
      case 0:
        text_ += fmt::format(" | repeated {}", times);
        return std::move(front) | repeated(times);
      case 1:
        text_ += fmt::format(" | epochs_of {}", n);
        return std::move(front) | epochs_of(n);
      case 2:
        text_ += fmt::format(" | slice {}", n);
        return std::move(front) | slice(n / 8, n);
      case 3:
        text_ += " | map";
        return std::move(front) | map([](T item) { return item; }, {.threads = times - 1});
      default:
        text_ += " | prefetch";
        return std::move(front) | prefetch(times);
    }
  }

  random_stream random_;
  image_shards shards_;
  decode_options options_;
  plan<sample> samples_;
  plan<host_batch> batches_;
  std::string text_;
};

// All items, until only ends follow.
template <class T, class F>
void for_all(loader<T>& data, F f) {
  constexpr int enough_ends = 5;
  for (int ends = 0; ends < enough_ends;) {
    auto item = data.next();
    ends = item ? 0 : ends + 1;
    f(std::move(item));
  }
}

std::map<image_place, pixels> decoded_alone(engine& eng, const drawn_plan& drawn) {
  const decode_options o = checked(drawn.options());
  std::map<image_place, pixels> out;
  sample_decoder decoder;
  auto data = eng.run(drawn.samples());
  for_all(data, [&](std::optional<sample> s) {
    if (!s) return;
    const auto side = static_cast<std::size_t>(size_in(o, s->where.epoch));
    pixels rgb(side * side * 3);
    if (decoder.decode(*s, o, rgb.data())) out[s->where.place()] = std::move(rgb);
  });
  return out;
}

std::string name_of(const host_batch& b) {
  return fmt::format("{} of {}: {}", b.size(), b.height, fmt::join(b.keys, " "));
}

// The batches by name; checks their images against `expected`.
std::vector<std::string> batches_of(loader<host_batch>& data,
                                    const std::map<image_place, pixels>& expected) {
  std::vector<std::string> out;
  for_all(data, [&](const std::optional<host_batch>& b) {
    out.push_back(b ? name_of(*b) : "end");
    for (std::size_t i = 0; b && i < b->size(); ++i) {
      const auto alone = expected.find(b->origins[i].place());
      ASSERT_NE(alone, expected.end()) << b->keys[i];
      ASSERT_EQ(b->payload_bytes(), alone->second.size() * b->size()) << b->keys[i];
      const std::uint8_t* image = b->data() + i * alone->second.size();
      ASSERT_TRUE(std::equal(alone->second.begin(), alone->second.end(), image)) << b->keys[i];
    }
  });
  while (!out.empty() && out.back() == "end") out.pop_back();
  return out;
}

class Growing : public ::testing::Test {
 protected:
  Growing() { set_log_level(log_level::quiet); }
  ~Growing() override { set_log_level(log_level::notice); }
};

TEST_F(Growing, ImagesAreThoseOfTheirSamplesWhereverEpochsEnd) {
  constexpr std::size_t quick = 24;
  std::size_t sizes_joined = 0;
  for (const std::uint64_t seed : testing::seeds(quick)) {
    drawn_plan drawn(seed);
    SCOPED_TRACE(fmt::format("replay: TEST_SEED={}\n{}", seed, drawn.text()));
    engine eng(with_memory_store(drawn.data().store()));
    const auto expected = decoded_alone(eng, drawn);
    auto data = eng.run(drawn.batches());
    const auto whole = batches_of(data, expected);
    if (HasFailure()) return;

    const auto length = static_cast<int>(whole.size());
    const auto cut = static_cast<std::size_t>(drawn.pick(0, length));
    auto first = eng.run(drawn.batches());
    for (std::size_t i = 0; i < cut; ++i) first.next();
    auto second = eng.run(drawn.batches());
    second.restore(state::from_json(first.save().to_json()).value());
    const auto rest = batches_of(second, expected);
    EXPECT_EQ(rest, std::vector(whole.begin() + static_cast<std::ptrdiff_t>(cut), whole.end()))
        << "cut after " << cut;
    if (HasFailure()) return;
    const bool moves_ends = drawn.text().find("repeated") != std::string::npos ||
                            drawn.text().find("epochs_of") != std::string::npos;
    sizes_joined += moves_ends ? 1 : 0;
  }
  if (testing::seeds(quick).size() == quick) EXPECT_GT(sizes_joined, quick / 3);
}

}  // namespace
}  // namespace millrace
