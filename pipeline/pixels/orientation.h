#pragma once

#include <cstddef>
#include <span>

namespace millrace {

// Turn that shows a stored image upright, as EXIF numbers it: 1 is unchanged.
struct exif_orientation {
  int number = 1;  // 1 to 8
  // Whether rows and columns are exchanged, before the other changes.
  bool is_transposed() const { return number >= 5; }
  // Whether the columns of the stored image come in reverse.
  bool mirrors_columns() const { return number == 2 || number == 3 || number == 7 || number == 8; }
  // Whether the rows of the stored image come in reverse.
  bool mirrors_rows() const { return number == 3 || number == 4 || number == 6 || number == 7; }
};

// The orientation in EXIF's first directory; 1 if there is none or it is damaged. `exif`: a TIFF
// header and what it points to, with or without "Exif\0\0" before it. Takes any bytes. Source: Exif
// 2.32, 4.5 and 4.6; TIFF 6.0, section 2.
exif_orientation orientation_of(std::span<const std::byte> exif);

}  // namespace millrace
