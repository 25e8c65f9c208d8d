#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace millrace::kernels {

// Inner loops in the vector instructions of the CPU they run on (chosen once, at run time). All use
// integer arithmetic: results are the same on every CPU. Any thread.

// Fraction bits of weights, and of values between the two passes.
inline constexpr int weight_bits = 14;
inline constexpr int value_bits = 6;

// The weights of one axis: output i is the sum over k < 4 quads of weights[i * 4 quads + k] times
// input first[i] + k. Inputs after an output's last one have weight 0.
struct axis_weights {
  const std::int32_t* first;
  const std::int16_t* weights;
  std::size_t quads;
  std::size_t outputs;
};

// Values that must be writable after a row's last: values are written in fours, or a vector at a
// time.
inline constexpr std::size_t writable_behind = 64;

// Scales two rows of RGBX pixels in width, to three values of [0, 255 << value_bits] a pixel. Reads
// all 4 quads inputs of each output.
void narrow_rows(const std::uint8_t* row0, const std::uint8_t* row1, const axis_weights& axis,
                 std::int16_t* out0, std::int16_t* out1);

// Sums `rows`, weighted, of `size` values each, and rounds to bytes. The number of rows must be
// even; unused ones have weight 0. Reads up to writable_behind values after each row's last.
void blend_rows(std::span<const std::int16_t* const> rows, const std::int16_t* weights,
                std::size_t size, std::uint8_t* out);

// Copies RGBX pixels to RGB.
void to_rgb(const std::uint8_t* rgbx, std::size_t pixels, std::uint8_t* rgb);

// The position of the first marker in JPEG data at or after `from`: 0xFF followed by neither 0 nor
// 0xFF; the data's size if there is none.
std::size_t find_marker(std::span<const std::byte> data, std::size_t from);

// For tests: the instruction sets of this CPU, as arguments to use_target(). 0 selects the best.
std::vector<std::int64_t> targets();
void use_target(std::int64_t target);

}  // namespace millrace::kernels
