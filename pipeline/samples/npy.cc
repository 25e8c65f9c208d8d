#include "pipeline/samples/npy.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "engine/coroutines/scope.h"

namespace millrace {
namespace {

error bad_npy(std::string what) {
  return error(errc::bad_field, std::move(what)).skippable();
}

// Returns the value after 'KEY': in the header of a .npy file, up to the next key.
std::optional<std::string_view> part_of(std::string_view header, std::string_view key) {
  const auto at = header.find(fmt::format("'{}':", key));
  if (at == header.npos) return std::nullopt;
  auto rest = header.substr(at + key.size() + 3);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  const auto end = rest.starts_with('(') ? rest.find(')') : rest.find_first_of(",}");
  return end == rest.npos ? std::nullopt : std::optional(rest.substr(0, end));
}

}  // namespace

// Format: NumPy, "NEP 1 -- A Simple File Format for NumPy Arrays".
result<npy_header> read_npy_header(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  constexpr std::size_t preamble = 10;
  if (text.size() < preamble || !text.starts_with(npy_magic)) return bad_npy("not a .npy array");
  const bool wide = text[6] >= 2;
  if (wide && text.size() < preamble + 2) return bad_npy("the .npy header is cut");
  std::size_t length = 0;
  for (std::size_t i = 0; i < (wide ? 4U : 2U); ++i) {
    length |= static_cast<std::size_t>(static_cast<unsigned char>(text[8 + i])) << (8 * i);
  }
  const std::size_t begin = preamble + (wide ? 2 : 0);
  if (length > text.size() - begin) return bad_npy("the .npy header is cut");
  const auto header = text.substr(begin, length);
  const auto type = part_of(header, "descr");
  const auto order = part_of(header, "fortran_order");
  const auto shape = part_of(header, "shape");
  if (!type || !order || !shape || type->size() < 4 || !shape->starts_with('(')) {
    return bad_npy("the .npy header is not well formed");
  }
  if (*order != "False") return bad_npy("an array in Fortran order");
  const char endian = (*type)[1];
  if (endian != '<' && endian != '|') return bad_npy("an array that is not little-endian");
  npy_header out{.type = std::string(type->substr(2, type->size() - 3)), .size = begin + length};
  for (auto rest = shape->substr(1); !rest.empty();) {
    const auto first = rest.find_first_of("0123456789");
    if (first == rest.npos) break;
    std::int64_t n = 0;
    const auto parsed = std::from_chars(rest.data() + first, rest.data() + rest.size(), n);
    if (parsed.ec != std::errc{} || out.shape.size() == npy_header::most_dimensions) {
      return bad_npy("its shape is not valid");
    }
    out.shape.push_back(n);
    rest.remove_prefix(static_cast<std::size_t>(parsed.ptr - rest.data()));
  }
  return out;
}

}  // namespace millrace
