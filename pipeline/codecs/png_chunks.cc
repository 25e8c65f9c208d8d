#include "pipeline/codecs/png_chunks.h"

#include <zlib.h>

#include <cstdint>

namespace millrace {
namespace {

// Source: PNG specification, third edition, sections 5.3 and 5.6.
constexpr std::size_t signature_bytes = 8;
constexpr std::size_t length_bytes = 4;
constexpr std::size_t chunk_header_bytes = 8;  // length and name
constexpr std::size_t checksum_bytes = 4;

std::size_t number_in(std::span<const std::byte> bytes) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < 4; ++i) n = n << 8 | std::to_integer<unsigned>(bytes[i]);
  return n;
}

// Whether the checksum is right. `chunk` is name, content and checksum.
bool is_well(std::span<const std::byte> chunk) {
  const auto content = chunk.first(chunk.size() - checksum_bytes);
  const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size());
  return crc == number_in(chunk.last(checksum_bytes));
}

// Whether a file truncated within this chunk still shows that it is the last one.
bool begins_last_chunk(std::string_view rest) {
  using namespace std::string_view_literals;
  constexpr auto last = "\0\0\0\0IEND"sv;
  return rest.size() > length_bytes && last.starts_with(rest.substr(0, last.size()));
}

}  // namespace

png_chunks chunks_of_png(std::span<const std::byte> file, bool orient) {
  png_chunks found;
  bool is_turned = false;
  bool is_in_pixels = false;
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  for (std::size_t at = signature_bytes; at < file.size();) {
    found.has_end = begins_last_chunk(text.substr(at));
    if (found.has_end || file.size() - at < chunk_header_bytes + checksum_bytes) break;
    const std::size_t size = number_in(file.subspan(at));
    const std::string_view name = text.substr(at + length_bytes, 4);
    if (size > file.size() - at - chunk_header_bytes - checksum_bytes) break;
    if (orient && !is_turned && name == "eXIf") {
      found.orientation = orientation_of(file.subspan(at + chunk_header_bytes, size));
      is_turned = true;
    }
    // Checks chunks of any name: a damaged name may stand for pixels or for an orientation.
    is_in_pixels = is_in_pixels || name == "IDAT";
    if (is_in_pixels && !is_well(file.subspan(at + length_bytes, 4 + size + checksum_bytes))) {
      if (found.damaged++ == 0) found.damaged_name = name;
    }
    at += chunk_header_bytes + size + checksum_bytes;
  }
  return found;
}

}  // namespace millrace
