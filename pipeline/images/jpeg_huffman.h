#pragma once

#include <memory>

struct jpeg_decompress_struct;

namespace millrace {

// Decodes the Huffman-coded data of baseline JPEGs in the place of libjpeg's own decoder, to the
// same pixels, in two thirds of its time: a look-up gives a code and its value together, and what
// no pixel needs is passed over by two codes at once. The coefficients are the same at full size;
// at a reduced size only those of the lowest frequencies are kept, where libjpeg's own transforms
// of 4 x 4 and 2 x 2 read a few more: pixels then differ a little. All else stays libjpeg's:
// headers, transform, upsampling, colours.
//
// It handles only complete data. Any irregularity (a code that does not exist, a marker out of
// place, the end of the file) makes it give up, by a jump to the guarded() call around it; decode
// the file by libjpeg alone then, which reports what is wrong with it. One thread at a time; it is
// reused from image to image.
class jpeg_huffman {
 public:
  jpeg_huffman();
  ~jpeg_huffman();
  jpeg_huffman(const jpeg_huffman&) = delete;
  jpeg_huffman& operator=(const jpeg_huffman&) = delete;

  // For an image that jpeg_start_decompress() has begun, and of which the output's columns
  // [x, x + width) will be asked for, as jpeg_crop_scanline() gives them. Of all other columns,
  // and of what a reduced scale drops, nothing is kept. False where it does not serve that kind of
  // file: it is then libjpeg's. `c` and the file outlive the decoding; c.err is an error_handler.
  // Uses c.client_data.
  bool take_over(jpeg_decompress_struct& c, unsigned x, unsigned width);

  // Whether the image that it took over was left to libjpeg. Not so again after forget().
  bool gave_up() const;
  void forget();

  struct impl;

 private:
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
