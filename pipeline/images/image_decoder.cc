#include "pipeline/images/image_decoder.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "pipeline/npy.h"

namespace millrace {
namespace {

using namespace std::string_view_literals;

struct signature {
  std::string_view name;
  std::size_t at;
  std::string_view bytes;
};

// Formats that are recognised but not decoded.
constexpr std::array refused = {
    signature{"a GIF", 0, "GIF8"sv},
    signature{"a BMP", 0, "BM"sv},
    signature{"a TIFF", 0, "II*\0"sv},
    signature{"a TIFF", 0, "MM\0*"sv},
    signature{"a JPEG 2000 file", 0, "\0\0\0\x0CjP  "sv},
    signature{"a JPEG 2000 codestream", 0, "\xFF\x4F\xFF\x51"sv},
    signature{"a JPEG XL file", 0, "\0\0\0\x0CJXL "sv},
    signature{"a JPEG XL codestream", 0, "\xFF\x0A"sv},
    signature{"a JPEG-LS file", 0, "\xFF\xD8\xFF\xF7"sv},
    signature{"an AVIF", 4, "ftypavi"sv},
    signature{"a HEIC", 4, "ftyphei"sv},
    signature{"a HEIC", 4, "ftypmif1"sv},
    signature{"a video", 4, "ftyp"sv},
    signature{"a Photoshop file", 0, "8BPS"sv},
    signature{"an OpenEXR file", 0, "v/1\x01"sv},
    signature{"a QOI file", 0, "qoif"sv},
    signature{"a PNM file of another kind than P5 and P6", 0, "P1"sv},
    signature{"a PNM file of another kind than P5 and P6", 0, "P2"sv},
    signature{"a PNM file of another kind than P5 and P6", 0, "P3"sv},
    signature{"a PNM file of another kind than P5 and P6", 0, "P4"sv},
    signature{"a PDF", 0, "%PDF"sv},
    signature{"an SVG", 0, "<svg"sv},
    signature{"XML or SVG", 0, "<?xml"sv},
    signature{"HTML", 0, "<!DOCTYPE"sv},
    signature{"HTML", 0, "<html"sv},
    signature{"gzip-compressed", 0, "\x1F\x8B"sv},
};

bool is_at(std::string_view file, std::size_t at, std::string_view bytes) {
  return file.size() >= at && file.substr(at).starts_with(bytes);
}

// The length of leading white space and UTF-8 byte order marks, which scripts that print images
// leave. Nothing else is skipped: in a file with damaged first bytes, the next JPEG is its preview.
std::size_t blank_bytes(std::string_view file) {
  constexpr auto utf8_mark = "\xEF\xBB\xBF"sv;
  std::size_t at = 0;
  while (at < file.size()) {
    if (is_at(file, at, utf8_mark)) {
      at += utf8_mark.size();
    } else if (" \t\r\n"sv.find(file[at]) != std::string_view::npos) {
      ++at;
    } else {
      break;
    }
  }
  return is_at(file, at, "\xFF\xD8\xFF"sv) ? at : 0;
}

}  // namespace

result<void> image_decoder::decode(std::span<const std::byte> file, const image_options& options,
                                   const view_chooser& choose, const pixel_place& place) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  const auto by = [&](auto& decoder) {
    auto decoded = decoder.decode(file, options, choose, place);
    if constexpr (requires { decoder.warnings(); }) warnings_ = decoder.warnings();
    return decoded;
  };
  warnings_ = 0;
  const bool is_raw = is_at(text, 0, "P5"sv) || is_at(text, 0, "P6"sv) || is_at(text, 0, npy_magic);
  if (options.raw_width > 0 || is_raw) return by(raw_);
  if (is_at(text, 0, "\x89PNG\r\n\x1A\n"sv)) return by(png_);
  if (is_at(text, 0, "RIFF"sv) && is_at(text, 8, "WEBP"sv)) return by(webp_);
  for (const signature& s : refused) {
    if (!is_at(text, s.at, s.bytes)) continue;
    return error(errc::bad_image,
                 fmt::format("the image is {}; JPEG, PNG, WebP, PGM, PPM and .npy are decoded: "
                             "convert it, or have it skipped",
                             s.name))
        .skippable();
  }
  // If there is no image, libjpeg reports what it finds.
  file = file.subspan(blank_bytes(text));
  return by(jpeg_);
}

}  // namespace millrace
