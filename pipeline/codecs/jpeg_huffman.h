#pragma once

#include <memory>

struct jpeg_decompress_struct;

namespace millrace {

// Decodes the Huffman-coded data of baseline JPEGs in place of libjpeg's own decoder, in two thirds
// of its time: one look-up gives a code and its value, and coefficients that no pixel needs are
// skipped two codes at a time. At full size the coefficients, and so the pixels, are identical. At
// a reduced size, only those of the lowest frequencies are kept; libjpeg's 4 x 4 and 2 x 2
// transforms read a few more, so pixels differ slightly. libjpeg does everything else: headers,
// transform, upsampling, colours.
//
// Handles only complete data. On any irregularity (an invalid code, a misplaced marker, the end of
// the file) it gives up by a jump to the guarded() call around it; decode the file by libjpeg alone
// then, which reports what is wrong. One thread at a time; reusable from image to image.
class jpeg_huffman {
 public:
  jpeg_huffman();
  ~jpeg_huffman();
  jpeg_huffman(const jpeg_huffman&) = delete;
  jpeg_huffman& operator=(const jpeg_huffman&) = delete;

  // Takes over an image that jpeg_start_decompress() has begun, if only output columns [x, x +
  // width) will be read, as jpeg_crop_scanline() returned them. Keeps no coefficients of other
  // columns, nor those that a reduced scale drops. False if it does not support the file: libjpeg
  // decodes it then. `c` and the file must outlive the decoding; c.err must be an error_handler.
  // Uses c.client_data.
  bool take_over(jpeg_decompress_struct& c, unsigned x, unsigned width);

  // Whether the decoder gave up on the image that it took over. Reset by forget().
  bool gave_up() const;
  void forget();

  struct impl;

 private:
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
