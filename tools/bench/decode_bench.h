#pragma once

#include <atomic>
#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "pipeline/run/engine.h"
#include "pipeline/stages/decode.h"

namespace millrace {

// The extent of the decoding.
enum class decode_stage : std::uint8_t { header, decode, resize, all };

struct decode_bench_options {
  std::vector<std::string> urls;
  // Size, train or validation, seed. JPEGs only: other formats have nothing to compare with.
  decode_options decode{.images = "jpg;jpeg"};
  decode_stage stage = decode_stage::all;
  int threads = 1;
  int rounds = 5;
  std::size_t most_bytes = 1 << 30;                   // of images, which are kept in memory
  std::stop_token stop = {};                          // ends it even while it waits for a shard
  std::atomic<std::uint64_t>* rounds_done = nullptr;  // for progress; may be null
};

// Medians of rounds over all images, which alternate with rounds of the limit.
struct decode_bench_report {
  std::uint64_t images = 0;
  std::uint64_t failed = 0;  // not counted among the images
  std::uint64_t others = 0;  // samples without JPEGs, left out
  std::uint64_t bytes = 0;   // of the images
  int threads = 0;
  double seconds = 0;      // of a round
  double cpu_seconds = 0;  // of a round
  double limit_seconds = 0;
  double whole_image_seconds = 0;    // decoding whole images by the fast transform, as FFCV does
  std::vector<view_of_image> views;  // of the images, in their order
  double of_limit = 0;               // median of the rounds' own ratios
  // Microseconds per image on one thread: reading the header, decoding the region's pixels,
  // resampling, and the rest: a difference, which may be slightly negative.
  double header_us = 0;
  double pixels_us = 0;
  double resize_us = 0;
  double other_us = 0;
  bool interrupted = false;

  double images_per_s() const { return static_cast<double>(images) / seconds; }
  double limit_images_per_s() const { return static_cast<double>(images) / limit_seconds; }
  double whole_images_per_s() const { return static_cast<double>(images) / whole_image_seconds; }
};

// Reads the images, then measures. Blocks. Throws `failure`: no_samples if none can be decoded.
decode_bench_report run_decode_bench(const engine_options& how, decode_bench_options what);

}  // namespace millrace
