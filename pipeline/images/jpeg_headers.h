#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "pipeline/images/orientation.h"
#include "pipeline/images/view.h"

namespace millrace {

// The library upsamples the chroma of images and regions of a few columns in another way: regions
// of wider images are widened to this many columns (of the image as decoded).
inline constexpr int narrowest_region = 32;

// Facts in a JPEG's headers that libjpeg does not give, or not without decoding. `runs` is for
// files whose entropy-coded data restart markers cut into runs, every `interval` MCUs: each can be
// decoded without those before it. Such files are baseline or extended sequential, of one scan, 8
// bits a sample, Huffman-coded.
struct jpeg_headers {
  exif_orientation orientation;
  struct run_layout {
    int width = 0;  // of the image, in pixels
    int height = 0;
    int mcu_width = 0;  // of an MCU, in pixels
    int mcu_height = 0;
    int mcus_across = 0;
    int mcus_down = 0;
    int interval = 0;         // MCUs of a run; divides mcus_across, or is a multiple of it
    std::size_t size_at = 0;  // where SOF has height and width
    std::size_t scan_at = 0;  // where the entropy-coded data begins
  } runs;
  bool has_runs = false;
  // Tables that stand before the first scan: bits 0 to 3 the DC tables of these numbers, 4 to 7 AC
  // tables, 8 to 11 quantisation tables.
  std::uint32_t tables = 0;
  // Bytes that belong to no segment were passed over, as libjpeg does, and behind the image that
  // was found stands another one: where the headers are damaged, what was found is that one's
  // preview.
  bool may_be_preview = false;
  std::vector<std::pair<std::size_t, std::size_t>> kept;  // headers that decoding needs: [from, to)

  // Reads the headers again, into the same memory. Any bytes: what is not well formed ends the
  // reading.
  void read(std::span<const std::byte> file);

 private:
  bool read_runs(std::span<const std::byte> file);

  bool passed_junk_ = false;
};

// A smaller JPEG made of the runs under a region: the same tables, another size.
struct joined_runs {
  std::vector<std::byte> file;
  int x = 0;  // where it lies in the image, in pixels
  int y = 0;
};

// Joins the runs that `region` needs, with the margin that chroma upsampling looks at, so that
// decoding them gives the pixels that decoding the whole image gives. False where markers are
// missing or out of order, and where joining would omit nothing: the file is then decoded as it is.
// Pure; reuses what `into` has allocated.
bool join_runs(std::span<const std::byte> file, const jpeg_headers& headers,
               const pixel_box& region, joined_runs& into);

}  // namespace millrace
