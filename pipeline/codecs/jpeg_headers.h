#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "pipeline/pixels/orientation.h"
#include "pipeline/pixels/view.h"

namespace millrace {

// Columns of the narrowest region that is decoded, in pixels of the image as decoded. The library
// upsamples the chroma of narrower ones differently, so these are widened.
inline constexpr int narrowest_region = 32;

// Facts in a JPEG's headers that libjpeg does not report, or not without decoding.
struct jpeg_headers {
  exif_orientation orientation;  // 1 if there is none
  // Files whose entropy-coded data are cut by restart markers into runs of `interval` MCUs, each of
  // which can be decoded without those before it: baseline or extended sequential, of one scan, 8
  // bits a sample, Huffman-coded.
  struct run_layout {
    int width = 0;            // of the image, in pixels
    int height = 0;           // of the image, in pixels
    int mcu_width = 0;        // of an MCU, in pixels
    int mcu_height = 0;       // of an MCU, in pixels
    int mcus_across = 0;      // MCUs in a row
    int mcus_down = 0;        // rows of MCUs
    int interval = 0;         // MCUs of a run; divides mcus_across, or is a multiple of it
    std::size_t size_at = 0;  // byte at which SOF has height and width
    std::size_t scan_at = 0;  // byte at which the entropy-coded data begin
  } runs;                     // valid if `has_runs`
  bool has_runs = false;      // whether the file can be decoded by runs
  // Tables before the first scan: bits 0 to 3 are the DC tables of these numbers, 4 to 7 AC tables,
  // 8 to 11 quantisation tables.
  std::uint32_t tables = 0;
  // The reader skipped bytes of no segment, as libjpeg does, and another image follows the one that
  // it found: if the headers are damaged, that is only the preview.
  bool may_be_preview = false;
  std::vector<std::pair<std::size_t, std::size_t>> kept;  // headers that decoding needs: [from, to)

  // Reads the headers of another file, into the same memory. Takes any bytes: stops at what is not
  // well formed.
  void read(std::span<const std::byte> file);

 private:
  bool read_runs(std::span<const std::byte> file);

  bool passed_junk_ = false;
};

// A smaller JPEG, made of the runs under a region: the same tables, another size.
struct joined_runs {
  std::vector<std::byte> file;  // complete
  int x = 0;                    // column of its left edge in the image, in pixels
  int y = 0;                    // row of its upper edge
};

// Joins the runs that `region` needs, with the margin that chroma upsampling reads, so that
// decoding them gives the pixels that decoding the whole image gives. False if markers are missing
// or out of order, or if joining would omit nothing: decode the file itself then. Pure; reuses the
// memory of `into`.
bool join_runs(std::span<const std::byte> file, const jpeg_headers& headers,
               const pixel_box& region, joined_runs& into);

}  // namespace millrace
