#include "pipeline/pixels/resample.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/random.h"
#include "pipeline/pixels/kernels.h"

namespace millrace {
namespace {

using bytes_of_image = std::vector<std::uint8_t>;

constexpr auto all_filters = {resample_filter::box, resample_filter::bilinear,
                              resample_filter::bicubic, resample_filter::lanczos};

class Resample : public ::testing::Test {
 protected:
  // Later tests must not stay on the last instruction set.
  ~Resample() override { kernels::use_target(0); }

  int below(int n) { return static_cast<int>(random_.below(static_cast<std::uint32_t>(n))); }
  // Between `least` and `most`, inclusive.
  int between(int least, int most) { return least + below(most - least + 1); }

  bytes_of_image noise(int width, int height) {
    bytes_of_image out(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 4);
    // Mostly extremes, which overshoot.
    for (auto& b : out) {
      b = static_cast<std::uint8_t>(below(3) == 0 ? below(256) : below(2) * 255);
    }
    return out;
  }

  view_of_image random_view(int width, int height) {
    view_of_image v;
    v.crop.width = between(1, width);
    v.crop.height = between(1, height);
    v.crop.x = below(width - v.crop.width + 1);
    v.crop.y = below(height - v.crop.height + 1);
    // Every third keeps its size: then rows are copied.
    const bool keeps_size = below(3) == 0;
    v.scaled_width = keeps_size ? v.crop.width : between(1, 70);
    v.scaled_height = keeps_size ? v.crop.height : between(1, 70);
    v.window.width = between(1, v.scaled_width);
    v.window.height = between(1, v.scaled_height);
    v.window.x = below(v.scaled_width - v.window.width + 1);
    v.window.y = below(v.scaled_height - v.window.height + 1);
    v.flip = below(2) == 0;
    return v;
  }

  random_stream random_{5, purpose::augment, 0, 0};
};

bytes_of_image resampled(const bytes_of_image& image, int width, const view_of_image& v,
                         resample_filter filter) {
  resampler r;
  bytes_of_image out(static_cast<std::size_t>(v.window.width * v.window.height) * 3);
  r.begin(resample_job::of(v, filter), out.data());
  const auto wide = static_cast<std::size_t>(r.end_column() - r.first_column()) * 4;
  std::array<bytes_of_image, 2> lines;
  for (auto& line : lines) line.resize(wide + r.readable_behind(), 77);
  for (int y = r.first_row(); y < r.end_row(); ++y) {
    auto& line = lines[static_cast<std::size_t>(y % 2)];
    const auto from = (static_cast<std::size_t>(v.crop.y + y) * static_cast<std::size_t>(width) +
                       static_cast<std::size_t>(v.crop.x + r.first_column())) *
                      4;
    std::copy_n(image.begin() + static_cast<std::ptrdiff_t>(from), wide, line.begin());
    r.add_row(line.data());
  }
  return out;
}

// The same by definition, one value at a time.
bytes_of_image by_definition(const bytes_of_image& image, int width, const view_of_image& v,
                             resample_filter filter) {
  constexpr int first_shift = kernels::weight_bits - kernels::value_bits;
  constexpr int second_shift = kernels::weight_bits + kernels::value_bits;
  filter_axis columns;
  filter_axis rows;
  columns.assign(filter, filter_axis::inputs::all(v.crop.width), v.scaled_width, v.window.x,
                 v.window.width, v.flip);
  rows.assign(filter, filter_axis::inputs::all(v.crop.height), v.scaled_height, v.window.y,
              v.window.height);
  const auto narrow = [&](int y, std::size_t i, int channel) {
    std::int32_t sum = 1 << (first_shift - 1);
    for (int k = 0; k < columns.count[i]; ++k) {
      const int x = v.crop.x + columns.first[i] + k;
      const auto at = (static_cast<std::size_t>((v.crop.y + y) * width + x)) * 4;
      sum += columns.weight[i * columns.stride + static_cast<std::size_t>(k)] *
             image[at + static_cast<std::size_t>(channel)];
    }
    return std::clamp(sum >> first_shift, 0, 255 << kernels::value_bits);
  };
  bytes_of_image out;
  for (std::size_t j = 0; j < rows.first.size(); ++j) {
    for (std::size_t i = 0; i < columns.first.size(); ++i) {
      for (int channel = 0; channel < 3; ++channel) {
        std::int32_t sum = 1 << (second_shift - 1);
        for (int k = 0; k < rows.count[j]; ++k) {
          sum += rows.weight[j * rows.stride + static_cast<std::size_t>(k)] *
                 narrow(rows.first[j] + k, i, channel);
        }
        out.push_back(static_cast<std::uint8_t>(std::clamp(sum >> second_shift, 0, 255)));
      }
    }
  }
  return out;
}

TEST_F(Resample, IsItsDefinitionToTheLastBitOnEveryInstructionSet) {
  const auto targets = kernels::targets();
  ASSERT_FALSE(targets.empty());
  for (int round = 0; round < 60; ++round) {
    const int width = between(1, 90);
    const int height = between(1, 90);
    const auto image = noise(width, height);
    const view_of_image v = random_view(width, height);
    for (const resample_filter filter : all_filters) {
      const auto expected = by_definition(image, width, v, filter);
      for (const std::int64_t target : targets) {
        kernels::use_target(target);
        ASSERT_EQ(resampled(image, width, v, filter), expected)
            << "round " << round << ", instruction set " << target;
      }
    }
  }
}

TEST_F(Resample, MarkersAreFoundWhereTheyAreOnEveryInstructionSet) {
  for (int round = 0; round < 200; ++round) {
    std::vector<std::byte> data(static_cast<std::size_t>(between(0, 300)));
    for (auto& b : data) {
      const int kind = below(8);
      b = static_cast<std::byte>(kind < 2 ? 0xFF : kind < 6 ? 0 : below(256));
    }
    for (std::size_t from = 0; from <= data.size(); from += 7) {
      std::size_t expected = data.size();
      for (std::size_t i = from; i + 1 < data.size() && expected == data.size(); ++i) {
        const bool is_marker = data[i] == std::byte{0xFF} && data[i + 1] != std::byte{0} &&
                               data[i + 1] != std::byte{0xFF};
        if (is_marker) expected = i;
      }
      for (const std::int64_t target : kernels::targets()) {
        kernels::use_target(target);
        ASSERT_EQ(kernels::find_marker(data, from), expected);
      }
    }
  }
}

TEST_F(Resample, FlatAreasStayAsTheyAre) {
  for (const int level : {0, 1, 127, 254, 255}) {
    const bytes_of_image image(60 * 50 * 4, static_cast<std::uint8_t>(level));
    for (const resample_filter filter : all_filters) {
      const auto out = resampled(image, 60, random_view(60, 50), filter);
      EXPECT_TRUE(std::ranges::all_of(out, [&](std::uint8_t b) { return b == level; })) << level;
    }
  }
}

TEST_F(Resample, AnImageOfItsOwnSizeIsItself) {
  const auto image = noise(40, 30);
  const view_of_image whole{.crop = {0, 0, 40, 30},
                            .scaled_width = 40,
                            .scaled_height = 30,
                            .window = {0, 0, 40, 30},
                            .flip = false};
  for (const resample_filter filter : all_filters) {
    const auto out = resampled(image, 40, whole, filter);
    for (std::size_t i = 0; i < 40 * 30; ++i) {
      ASSERT_TRUE(std::equal(out.begin() + static_cast<std::ptrdiff_t>(i * 3),
                             out.begin() + static_cast<std::ptrdiff_t>(i * 3 + 3),
                             image.begin() + static_cast<std::ptrdiff_t>(i * 4)))
          << i;
    }
  }
}

TEST(FilterAxis, WeightsSumToOne) {
  filter_axis axis;
  for (const resample_filter filter : all_filters) {
    for (const auto& [in, out] : {std::pair{375, 224}, {100, 224}, {224, 224}, {1, 5}, {999, 1}}) {
      axis.assign(filter, filter_axis::inputs::all(in), out, 0, out);
      for (std::size_t i = 0; i < static_cast<std::size_t>(out); ++i) {
        int sum = 0;
        for (std::size_t k = 0; k < axis.stride; ++k) sum += axis.weight[i * axis.stride + k];
        ASSERT_EQ(sum, 1 << kernels::weight_bits);
        ASSERT_GE(axis.first[i], 0);
        ASSERT_LE(axis.first[i] + axis.count[i], in);
        ASSERT_LE(static_cast<std::size_t>(axis.count[i]), axis.stride);
      }
    }
  }
}

}  // namespace
}  // namespace millrace
