#include "pipeline/images/image_decoder.h"

#include <fmt/format.h>

#include <algorithm>

#include "pipeline/codecs/jpeg.h"
#include "pipeline/codecs/png.h"
#include "pipeline/codecs/raw_pixels.h"
#include "pipeline/codecs/webp.h"
#include "pipeline/samples/fields.h"
#include "pipeline/samples/npy.h"

namespace millrace {

struct image_codecs {
  jpeg_decoder jpeg;
  png_decoder png;
  webp_decoder webp;
  raw_pixels raw;
  int warnings = 0;  // of the codec that decoded the last image
};

namespace {

using namespace std::string_view_literals;

bool starts_like(std::string_view file, std::string_view start) {
  return file.size() >= start.size() &&
         std::ranges::equal(start, file.substr(0, start.size()),
                            [](char a, char b) { return a == '.' || a == b; });
}

// The length of leading white space and UTF-8 byte order marks, which scripts that print images
// leave. Nothing else is skipped: in a file with damaged first bytes, the next JPEG is its preview.
std::size_t blank_bytes(std::string_view file) {
  constexpr auto utf8_mark = "\xEF\xBB\xBF"sv;
  std::size_t at = 0;
  while (at < file.size()) {
    if (file.substr(at).starts_with(utf8_mark)) {
      at += utf8_mark.size();
    } else if (" \t\r\n"sv.find(file[at]) != std::string_view::npos) {
      ++at;
    } else {
      break;
    }
  }
  return file.substr(at).starts_with("\xFF\xD8\xFF"sv) ? at : 0;
}

std::string_view text_of(std::span<const std::byte> file) {
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

// Decodes by this member of image_codecs.
template <auto Codec>
result<void> decode_with(image_codecs& codecs, std::span<const std::byte> file,
                         const image_options& options, const view_chooser& choose,
                         const pixel_place& place) {
  auto& codec = codecs.*Codec;
  auto decoded = codec.decode(file, options, choose, place);
  if constexpr (requires { codec.warnings(); }) codecs.warnings = codec.warnings();
  return decoded;
}

result<void> decode_jpeg_file(image_codecs& codecs, std::span<const std::byte> file,
                              const image_options& options, const view_chooser& choose,
                              const pixel_place& place) {
  return decode_with<&image_codecs::jpeg>(codecs, file.subspan(blank_bytes(text_of(file))), options,
                                          choose, place);
}

// A format, and how it is decoded; null: it is refused.
struct known_format {
  image_format format;
  result<void> (*decode)(image_codecs& codecs, std::span<const std::byte> file,
                         const image_options& options, const view_chooser& choose,
                         const pixel_place& place) = nullptr;
};

// A file is of the first format of which it has a start: "ftyp" is after those that begin with it.
// The order of the formats that are decoded is the order in which a sample's fields are looked for.
constexpr std::array known_formats = {
    // Also what is of no format: libjpeg reports what it finds.
    known_format{.format = {.name = "JPEG", .extensions = "jpg;jpeg"}, .decode = decode_jpeg_file},
    known_format{.format = {.name = "PNG", .extensions = "png", .starts = {"\x89PNG\r\n\x1A\n"sv}},
                 .decode = decode_with<&image_codecs::png>},
    known_format{.format = {.name = "WebP", .extensions = "webp", .starts = {"RIFF....WEBP"sv}},
                 .decode = decode_with<&image_codecs::webp>},
    known_format{
        .format = {.name = "PGM, PPM", .extensions = "ppm;pgm;pnm", .starts = {"P5"sv, "P6"sv}},
        .decode = decode_with<&image_codecs::raw>},
    // No extension: most fields npy are not images.
    known_format{.format = {.name = ".npy", .starts = {npy_magic}},
                 .decode = decode_with<&image_codecs::raw>},
    known_format{.format = {.name = "a GIF", .extensions = "gif", .starts = {"GIF8"sv}}},
    known_format{.format = {.name = "a BMP", .extensions = "bmp", .starts = {"BM"sv}}},
    known_format{
        .format = {.name = "a TIFF", .extensions = "tif;tiff", .starts = {"II*\0"sv, "MM\0*"sv}}},
    known_format{.format = {.name = "a JPEG 2000 file",
                            .extensions = "jp2",
                            .starts = {"\0\0\0\x0CjP  "sv}}},
    known_format{.format = {.name = "a JPEG 2000 codestream", .starts = {"\xFF\x4F\xFF\x51"sv}}},
    known_format{
        .format = {.name = "a JPEG XL file", .extensions = "jxl", .starts = {"\0\0\0\x0CJXL "sv}}},
    known_format{.format = {.name = "a JPEG XL codestream", .starts = {"\xFF\x0A"sv}}},
    known_format{.format = {.name = "a JPEG-LS file", .starts = {"\xFF\xD8\xFF\xF7"sv}}},
    known_format{.format = {.name = "an AVIF", .extensions = "avif", .starts = {"....ftypavi"sv}}},
    known_format{.format = {.name = "a HEIC",
                            .extensions = "heic",
                            .starts = {"....ftyphei"sv, "....ftypmif1"sv}}},
    known_format{.format = {.name = "a video", .starts = {"....ftyp"sv}}},
    known_format{.format = {.name = "a Photoshop file", .starts = {"8BPS"sv}}},
    known_format{.format = {.name = "an OpenEXR file", .starts = {"v/1\x01"sv}}},
    known_format{.format = {.name = "a QOI file", .starts = {"qoif"sv}}},
    known_format{.format = {.name = "a PNM file of another kind than P5 and P6",
                            .starts = {"P1"sv, "P2"sv, "P3"sv, "P4"sv}}},
    known_format{.format = {.name = "a PDF", .starts = {"%PDF"sv}}},
    known_format{.format = {.name = "an SVG", .starts = {"<svg"sv}}},
    known_format{.format = {.name = "XML or SVG", .starts = {"<?xml"sv}}},
    known_format{.format = {.name = "HTML", .starts = {"<!DOCTYPE"sv, "<html"sv}}},
    known_format{.format = {.name = "gzip-compressed", .starts = {"\x1F\x8B"sv}}},
};

constexpr auto formats = [] {
  std::array<image_format, known_formats.size()> out;
  for (std::size_t i = 0; i < known_formats.size(); ++i) {
    out[i] = known_formats[i].format;
    out[i].is_decoded = known_formats[i].decode != nullptr;
  }
  return out;
}();

// The format of a file; the first one, JPEG, for files of no known format.
const known_format& format_of(std::string_view file) {
  const auto found = std::ranges::find_if(known_formats, [&](const known_format& f) {
    return std::ranges::any_of(f.format.starts, [&](std::string_view start) {
      return !start.empty() && starts_like(file, start);
    });
  });
  return found == known_formats.end() ? known_formats.front() : *found;
}

// "JPEG, PNG and .npy".
std::string decoded_names() {
  std::string out;
  for (const image_format& format : formats) {
    if (format.is_decoded) out += fmt::format("{}{}", out.empty() ? "" : ", ", format.name);
  }
  constexpr auto comma = ", "sv;
  return out.replace(out.rfind(comma), comma.size(), " and ");
}

}  // namespace

std::span<const image_format> image_formats() {
  return formats;
}

std::string decoded_extensions() {
  std::string out;
  for (const image_format& format : formats) {
    if (!format.is_decoded || format.extensions.empty()) continue;
    out += fmt::format("{}{}", out.empty() ? "" : ";", format.extensions);
  }
  return out;
}

bool is_image_extension(std::string_view extension) {
  return std::ranges::any_of(formats, [&](const image_format& format) {
    return !format.extensions.empty() && matches_any(format.extensions, extension);
  });
}

bool is_jpeg_extension(std::string_view extension) {
  return matches_any(known_formats.front().format.extensions, extension);
}

image_decoder::image_decoder() : codecs_(std::make_unique<image_codecs>()) {}
image_decoder::~image_decoder() = default;

int image_decoder::warnings() const {
  return codecs_->warnings;
}

result<void> image_decoder::decode(std::span<const std::byte> file, const image_options& options,
                                   const view_chooser& choose, const pixel_place& place) {
  codecs_->warnings = 0;
  if (options.raw_width > 0) {
    return decode_with<&image_codecs::raw>(*codecs_, file, options, choose, place);
  }
  const known_format& found = format_of(text_of(file));
  if (found.decode != nullptr) return found.decode(*codecs_, file, options, choose, place);
  return error(errc::bad_image, fmt::format("the image is {}; {} are decoded: convert it, or have "
                                            "it skipped",
                                            found.format.name, decoded_names()))
      .skippable();
}

}  // namespace millrace
