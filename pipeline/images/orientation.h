#pragma once

#include <cstddef>
#include <span>

namespace millrace {

// How a stored image is to be turned to be looked at, as EXIF numbers it: 1 is as it is.
struct exif_orientation {
  int number = 1;
  // Rows and columns change places, before the others.
  bool is_transposed() const { return number >= 5; }
  // Of the stored image, whether columns (rows) come last first.
  bool mirrors_columns() const { return number == 2 || number == 3 || number == 7 || number == 8; }
  bool mirrors_rows() const { return number == 3 || number == 4 || number == 6 || number == 7; }
};

// What EXIF's first directory says; 1 where it does not, or is damaged. `exif`: a TIFF header and
// what it points to, with or without "Exif\0\0" before it. Any bytes.
// Source: Exif 2.32, 4.5 and 4.6; TIFF 6.0, section 2.
exif_orientation orientation_of(std::span<const std::byte> exif);

}  // namespace millrace
