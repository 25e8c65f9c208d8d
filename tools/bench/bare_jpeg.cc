#include "tools/bench/bare_jpeg.h"

#include <cstdio>
// libjpeg's header needs size_t and FILE before it.
#include <jpeglib.h>

#include <csetjmp>
#include <vector>

namespace millrace {
namespace {

struct error_handler {
  jpeg_error_mgr base;  // first: libjpeg hands back a pointer to it
  std::jmp_buf escape;
};

void give_up(j_common_ptr c) {
  std::longjmp(reinterpret_cast<error_handler*>(c->err)->escape, 1);
}

}  // namespace

struct bare_jpeg::impl {
  jpeg_decompress_struct c{};
  error_handler handler{};
  std::vector<unsigned char> line;
};

bare_jpeg::bare_jpeg() : impl_(std::make_unique<impl>()) {
  impl_->c.err = jpeg_std_error(&impl_->handler.base);
  impl_->handler.base.error_exit = give_up;
  impl_->handler.base.emit_message = [](j_common_ptr, int) {};
  jpeg_create_decompress(&impl_->c);
}

bare_jpeg::~bare_jpeg() {
  jpeg_destroy_decompress(&impl_->c);
}

namespace {

// Call after setjmp().
void begin(jpeg_decompress_struct& c, std::span<const std::byte> file, J_COLOR_SPACE wanted) {
  jpeg_mem_src(&c, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&c, TRUE);
  const bool is_cmyk = c.jpeg_color_space == JCS_CMYK || c.jpeg_color_space == JCS_YCCK;
  c.out_color_space = is_cmyk ? JCS_CMYK : wanted;
}

}  // namespace

bool bare_jpeg::decode_region(std::span<const std::byte> file, const pixel_box& crop) {
  jpeg_decompress_struct& c = impl_->c;
  if (setjmp(impl_->handler.escape) != 0) {
    jpeg_abort_decompress(&c);
    return false;
  }
  begin(c, file, JCS_RGB);
  c.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&c);
  auto x = static_cast<JDIMENSION>(crop.x);
  auto width = static_cast<JDIMENSION>(crop.width);
  if (width < c.image_width) jpeg_crop_scanline(&c, &x, &width);
  impl_->line.resize(std::size_t{c.output_width} * static_cast<unsigned>(c.output_components));
  if (crop.y > 0) jpeg_skip_scanlines(&c, static_cast<JDIMENSION>(crop.y));
  JSAMPROW row = impl_->line.data();
  for (int y = 0; y < crop.height; ++y) jpeg_read_scanlines(&c, &row, 1);
  jpeg_abort_decompress(&c);
  return true;
}

bool bare_jpeg::decode_whole(std::span<const std::byte> file, bool fast,
                             std::vector<unsigned char>& out) {
  jpeg_decompress_struct& c = impl_->c;
  if (setjmp(impl_->handler.escape) != 0) {
    jpeg_abort_decompress(&c);
    return false;
  }
  begin(c, file, JCS_EXT_RGBX);
  c.dct_method = fast ? JDCT_IFAST : JDCT_ISLOW;
  jpeg_start_decompress(&c);
  const std::size_t stride = std::size_t{c.output_width} * 4;
  out.resize(stride * c.output_height);
  while (c.output_scanline < c.output_height) {
    JSAMPROW row = out.data() + stride * c.output_scanline;
    jpeg_read_scanlines(&c, &row, 1);
  }
  jpeg_finish_decompress(&c);
  return true;
}

}  // namespace millrace
