// The only translation unit that includes Highway, which compiles it once for each instruction set.
#include "pipeline/pixels/kernels.h"

#include <algorithm>
#include <array>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "pipeline/pixels/kernels.cc"
#include <hwy/foreach_target.h>
// foreach_target.h must come first.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millrace::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// A pair of adjacent weights, in each pair of a vector.
template <class D32>
auto weight_pair(D32 d32, const std::int16_t* weights) {
  std::int32_t two = 0;
  std::memcpy(&two, weights, sizeof two);
  return hn::BitCast(hn::Repartition<std::int16_t, D32>(), hn::Set(d32, two));
}

// Shuffles the first or the last two of four RGBX pixels to R0 R1 G0 G1 B0 B1 X0 X1, 16 bits each.
alignas(16) constexpr std::uint8_t first_two[16] = {0, 128, 4, 128, 1, 128, 5, 128,
                                                    2, 128, 6, 128, 3, 128, 7, 128};
alignas(16) constexpr std::uint8_t last_two[16] = {8,  128, 12, 128, 9,  128, 13, 128,
                                                   10, 128, 14, 128, 11, 128, 15, 128};

// The four values of the output whose weights begin at `weights`. `load(q)` returns four pixels;
// each block of 16 bytes is from another row.
template <class D8, class F>
auto weighted_pixel(D8 d8, const std::int16_t* weights, std::size_t quads, F load) {
  const hn::Repartition<std::int16_t, D8> d16;
  const hn::Repartition<std::int32_t, D8> d32;
  constexpr int shift = weight_bits - value_bits;
  auto sum = hn::Set(d32, 1 << (shift - 1));
  auto other = hn::Zero(d32);
  const auto low = hn::LoadDup128(d8, first_two);
  const auto high = hn::LoadDup128(d8, last_two);
  for (std::size_t q = 0; q < quads; ++q) {
    const auto pixels = load(q);
    const auto a = hn::BitCast(d16, hn::TableLookupBytesOr0(pixels, low));
    const auto b = hn::BitCast(d16, hn::TableLookupBytesOr0(pixels, high));
    sum = hn::ReorderWidenMulAccumulate(d32, a, weight_pair(d32, weights + q * 4), sum, other);
    sum = hn::ReorderWidenMulAccumulate(d32, b, weight_pair(d32, weights + q * 4 + 2), sum, other);
  }
  const auto value = hn::ShiftRight<shift>(hn::RearrangeToOddPlusEven(sum, other));
  const auto narrow = hn::ReorderDemote2To(d16, value, value);
  constexpr std::int16_t most = 255 << value_bits;
  return hn::Min(hn::Max(narrow, hn::Zero(d16)), hn::Set(d16, most));
}

void narrow_rows(const std::uint8_t* row0, const std::uint8_t* row1, const axis_weights& axis,
                 std::int16_t* out0, std::int16_t* out1) {
  const hn::Full128<std::uint8_t> block;
  const hn::Full64<std::int16_t> pixel;
  for (std::size_t i = 0; i < axis.outputs; ++i) {
    const std::size_t from = static_cast<std::size_t>(axis.first[i]) * 4;
    const std::int16_t* weights = axis.weights + i * axis.quads * 4;
#if HWY_TARGET <= HWY_AVX2
    const hn::Full256<std::uint8_t> both;
    const auto values = weighted_pixel(both, weights, axis.quads, [&](std::size_t q) {
      return hn::Combine(both, hn::LoadU(block, row1 + from + q * 16),
                         hn::LoadU(block, row0 + from + q * 16));
    });
    const hn::Full128<std::int16_t> half;
    hn::StoreU(hn::LowerHalf(hn::LowerHalf(half, values)), pixel, out0 + i * 3);
    hn::StoreU(hn::LowerHalf(hn::UpperHalf(half, values)), pixel, out1 + i * 3);
#else
    const auto values = [&](const std::uint8_t* row) {
      return weighted_pixel(block, weights, axis.quads,
                            [&](std::size_t q) { return hn::LoadU(block, row + from + q * 16); });
    };
    hn::StoreU(hn::LowerHalf(values(row0)), pixel, out0 + i * 3);
    hn::StoreU(hn::LowerHalf(values(row1)), pixel, out1 + i * 3);
#endif
  }
}

void blend_rows(std::span<const std::int16_t* const> rows, const std::int16_t* weights,
                std::size_t size, std::uint8_t* out) {
  // At most 256 bits: wider vectors slowed the surrounding code by more than they saved.
  const hn::CappedTag<std::int16_t, 16> d16;
  const hn::Repartition<std::int32_t, decltype(d16)> d32;
  const hn::Rebind<std::uint8_t, decltype(d16)> d8;
  const std::size_t lanes = hn::Lanes(d16);
  constexpr int shift = weight_bits + value_bits;
  const auto blended = [&](std::size_t at) {
    auto low = hn::Set(d32, 1 << (shift - 1));
    auto high = low;
    auto low_other = hn::Zero(d32);
    auto high_other = low_other;
    for (std::size_t k = 0; k < rows.size(); k += 2) {
      const auto two = weight_pair(d32, weights + k);
      const auto a = hn::LoadU(d16, rows[k] + at);
      const auto b = hn::LoadU(d16, rows[k + 1] + at);
      low = hn::ReorderWidenMulAccumulate(d32, hn::InterleaveLower(d16, a, b), two, low, low_other);
      high =
          hn::ReorderWidenMulAccumulate(d32, hn::InterleaveUpper(d16, a, b), two, high, high_other);
    }
    const auto l = hn::ShiftRight<shift>(hn::RearrangeToOddPlusEven(low, low_other));
    const auto h = hn::ShiftRight<shift>(hn::RearrangeToOddPlusEven(high, high_other));
    return hn::DemoteTo(d8, hn::ReorderDemote2To(d16, l, h));
  };
  std::size_t at = 0;
  for (; at + lanes <= size; at += lanes) hn::StoreU(blended(at), d8, out + at);
  if (at == size) return;
  std::array<std::uint8_t, writable_behind> rest;
  hn::StoreU(blended(at), d8, rest.data());
  std::memcpy(out + at, rest.data(), size - at);
}

void to_rgb(const std::uint8_t* rgbx, std::size_t pixels, std::uint8_t* rgb) {
  const hn::CappedTag<std::uint8_t, 32> d8;
  const std::size_t lanes = hn::Lanes(d8);
  std::size_t i = 0;
  for (; i + lanes <= pixels; i += lanes) {
    auto red = hn::Zero(d8);
    auto green = red;
    auto blue = red;
    auto unused = red;
    hn::LoadInterleaved4(d8, rgbx + i * 4, red, green, blue, unused);
    hn::StoreInterleaved3(red, green, blue, d8, rgb + i * 3);
  }
  for (; i < pixels; ++i) std::memcpy(rgb + i * 3, rgbx + i * 4, 3);
}

std::size_t find_marker(std::span<const std::byte> data, std::size_t from) {
  const hn::ScalableTag<std::uint8_t> d8;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data.data());
  const auto ones = hn::Set(d8, 0xFF);
  const auto zeros = hn::Zero(d8);
  std::size_t at = from;
  for (const std::size_t lanes = hn::Lanes(d8); at + lanes < data.size(); at += lanes) {
    const auto is_ff = hn::Eq(hn::LoadU(d8, bytes + at), ones);
    if (hn::AllFalse(d8, is_ff)) continue;
    const auto code = hn::LoadU(d8, bytes + at + 1);
    const auto is_none = hn::Or(hn::Eq(code, zeros), hn::Eq(code, ones));
    const auto found = hn::AndNot(is_none, is_ff);
    if (!hn::AllFalse(d8, found)) {
      return at + static_cast<std::size_t>(hn::FindFirstTrue(d8, found));
    }
  }
  for (; at + 1 < data.size(); ++at) {
    if (bytes[at] == 0xFF && bytes[at + 1] != 0 && bytes[at + 1] != 0xFF) return at;
  }
  return data.size();
}

}  // namespace
}  // namespace millrace::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millrace::kernels {

HWY_EXPORT(narrow_rows);
HWY_EXPORT(blend_rows);
HWY_EXPORT(to_rgb);
HWY_EXPORT(find_marker);

void narrow_rows(const std::uint8_t* row0, const std::uint8_t* row1, const axis_weights& axis,
                 std::int16_t* out0, std::int16_t* out1) {
  HWY_DYNAMIC_DISPATCH(narrow_rows)(row0, row1, axis, out0, out1);
}

void blend_rows(std::span<const std::int16_t* const> rows, const std::int16_t* weights,
                std::size_t size, std::uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(blend_rows)(rows, weights, size, out);
}

void to_rgb(const std::uint8_t* rgbx, std::size_t pixels, std::uint8_t* rgb) {
  HWY_DYNAMIC_DISPATCH(to_rgb)(rgbx, pixels, rgb);
}

std::size_t find_marker(std::span<const std::byte> data, std::size_t from) {
  return HWY_DYNAMIC_DISPATCH(find_marker)(data, from);
}

std::vector<std::int64_t> targets() {
  return hwy::SupportedAndGeneratedTargets();
}

void use_target(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
}

}  // namespace millrace::kernels
#endif  // HWY_ONCE
