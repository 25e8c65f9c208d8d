#include "pipeline/formats/tar_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "engine/base/parsed_number.h"

namespace millrace {
namespace {

constexpr std::size_t header_block = tar_parser::block_size;

struct extent {
  std::size_t at;
  std::size_t size;
};
constexpr extent name_field{0, 100};
constexpr extent size_field{124, 12};
constexpr extent checksum_field{148, 8};
constexpr std::size_t type_at = 156;
constexpr extent magic_field{257, 6};
constexpr extent prefix_field{345, 155};
// GNU sparse members: flags in the header, and in blocks of the map, that another block of the map
// follows.
constexpr std::size_t sparse_more_at = 482;
constexpr std::size_t sparse_map_more_at = 504;

std::string_view in(std::string_view header, extent e) {
  return header.substr(e.at, e.size);
}

// The field up to the first NUL.
std::string_view text(std::string_view header, extent e) {
  const auto field = in(header, e);
  return field.substr(0, field.find('\0'));
}

// Parses an octal number with leading blanks and a trailing blank or NUL, or a base-256 one (GNU,
// first bit set). nullopt for anything else, including negative numbers.
std::optional<std::uint64_t> number(std::string_view field) {
  const auto first = static_cast<unsigned char>(field[0]);
  if ((first & 0x80) != 0) {
    if ((first & 0x40) != 0) return std::nullopt;
    std::uint64_t value = first & 0x3f;
    for (const char c : field.substr(1)) {
      if (value >> 56 != 0) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(c);
    }
    return value;
  }
  while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
  std::uint64_t value = 0;
  std::size_t digits = 0;
  while (digits < field.size() && field[digits] >= '0' && field[digits] <= '7') {
    value = value * 8 + static_cast<std::uint64_t>(field[digits++] - '0');
  }
  while (digits < field.size()) {
    const char c = field[digits++];
    if (c != ' ' && c != '\0') return std::nullopt;
  }
  return value;
}

template <class Byte>
std::int32_t sum_of(std::string_view bytes) {
  std::int32_t sum = 0;
  for (const char c : bytes) sum += static_cast<Byte>(c);
  return sum;
}

// The sum of all bytes, with the checksum field counted as blanks.
template <class Byte>
std::int64_t checksum_of(std::string_view header) {
  constexpr auto blanks = static_cast<std::int32_t>(checksum_field.size * ' ');
  return sum_of<Byte>(header.substr(0, header_block)) - sum_of<Byte>(in(header, checksum_field)) +
         blanks;
}

// Old tar programs summed signed bytes.
bool checksum_matches(std::string_view header) {
  const auto stored = number(in(header, checksum_field));
  if (!stored) return false;
  const auto sum = static_cast<std::int64_t>(*stored);
  return sum == checksum_of<unsigned char>(header) || sum == checksum_of<signed char>(header);
}

// Prefetches the next header, `distance` bytes further on, while the member before it is processed.
void fetch_ahead(std::span<const std::byte> input, std::uint64_t distance) {
  constexpr std::size_t line = 64;
  if (input.size() < header_block || distance > input.size() - header_block) return;
  const std::byte* header = input.data() + distance;
  for (std::size_t at = 0; at < header_block; at += line) __builtin_prefetch(header + at);
}

std::uint64_t padding_of(std::uint64_t size) {
  return (header_block - size % header_block) % header_block;
}

std::string hex_of(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

// Describes a file that begins with `begin` and is not an archive, with what to do.
std::string seen_instead(std::string_view begin) {
  if (begin.starts_with("version https://git-lfs")) {
    return "this is a git-LFS pointer, not the shard: `git lfs pull` fetches it";
  }
  const auto first = begin.find_first_not_of(" \t\r\n");
  if (first != begin.npos && begin[first] == '<') {
    return "this is an HTML or XML page, such as a login or an error page: open its URL";
  }
  const std::string_view shown = begin.substr(0, std::min<std::size_t>(begin.find('\n'), 40));
  const bool is_text = !shown.empty() && std::ranges::all_of(shown, [](char c) {
    return c == '\t' || c == '\r' || (c >= ' ' && c <= '~');
  });
  if (is_text) return fmt::format("this is a text file that begins with \"{}\"", shown);
  return fmt::format("the file begins with {}", hex_of(begin.substr(0, 8)));
}

}  // namespace

error tar_parser::bad(errc kind, std::string what) const {
  return error(kind, std::move(what)).offset(first_header_).skippable();
}

// Consumes up to `left` bytes; true if none are left.
bool tar_parser::take(std::span<const std::byte>& input, std::uint64_t& left) {
  const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(left, input.size()));
  data_ = input.first(n);
  input = input.subspan(n);
  left -= n;
  offset_ += n;
  return left == 0;
}

result<tar_parser::event> tar_parser::step(std::span<const std::byte>& input) {
  for (;;) {
    switch (place_) {
      case place::header: {
        auto found = read_header(input);
        if (found && *found == event::header) fetch_ahead(input, left_ + padding_);
        if (!found || *found != event::need_input) return found;
        if (input.empty() && place_ == place::header) return event::need_input;
        break;
      }
      case place::extension: {
        const bool whole = take(input, left_);
        extension_.append(reinterpret_cast<const char*>(data_.data()), data_.size());
        if (!whole) return event::need_input;
        left_ = padding_;
        place_ = place::extension_padding;
        break;
      }
      case place::extension_padding: {
        if (!take(input, left_)) return event::need_input;
        if (auto ended = end_extension(); !ended) return ended.error();
        place_ = place::header;
        break;
      }
      case place::sparse_map: {
        read_sparse_map(input);
        if (place_ == place::sparse_map) return event::need_input;
        return event::header;
      }
      case place::searching: {
        const auto header = search(input);
        if (!header) return event::need_input;
        const auto found = on_header_block(*header);
        if (!found || *found != event::need_input) return found;
        break;
      }
      case place::data: {
        if (left_ > 0) {
          if (input.empty()) return event::need_input;
          take(input, left_);
          return event::data;
        }
        left_ = padding_;
        place_ = place::padding;
        return event::member_end;
      }
      case place::padding: {
        if (!take(input, left_)) return event::need_input;
        place_ = place::header;
        break;
      }
      case place::after_end: {
        pass_zeros(input);
        if (input.empty()) return event::need_input;
        if (offset_ % header_block != 0) {
          first_header_ = offset_;
          return bad(errc::bad_archive, "bytes after the end of the archive");
        }
        zero_blocks_ = 0;
        place_ = place::header;
        break;
      }
    }
  }
}

// Returns the next block, which is in the input, or in last_block_ if it came in pieces; nullopt
// while some of it is missing.
std::optional<std::string_view> tar_parser::take_block(std::span<const std::byte>& input) {
  const bool begun = !pieces_.empty();
  std::uint64_t missing = header_block - pieces_.size();
  const bool whole = take(input, missing);
  const std::string_view piece(reinterpret_cast<const char*>(data_.data()), data_.size());
  if (whole && !begun) return piece;
  pieces_ += piece;
  if (!whole) return std::nullopt;
  last_block_ = std::exchange(pieces_, {});
  return last_block_;
}

// Skips the zeros that pad an archive to its record size; another archive may follow.
void tar_parser::pass_zeros(std::span<const std::byte>& input) {
  const auto zeros = std::ranges::find_if(input, [](std::byte b) { return b != std::byte{0}; });
  const auto count = static_cast<std::size_t>(zeros - input.begin());
  offset_ += count;
  input = input.subspan(count);
}

void tar_parser::resync() {
  search_from_ = first_header_;
  place_ = place::searching;
  pieces_.clear();
  next_name_.clear();
  sparse_name_.clear();
  has_next_size_ = next_is_sparse_ = in_extensions_ = false;
  extensions_ = zero_blocks_ = 0;
  left_ = padding_ = 0;
}

// Returns the next block that is a header.
std::optional<std::string_view> tar_parser::search(std::span<const std::byte>& input) {
  while (!input.empty()) {
    if (offset_ % header_block != 0 && pieces_.empty()) {  // bytes after an archive's end
      std::uint64_t to_boundary = padding_of(offset_);
      if (!take(input, to_boundary)) break;
    }
    const auto candidate = take_block(input);
    if (!candidate) break;
    const bool has_magic = in(*candidate, magic_field).starts_with("ustar");
    if (!has_magic || !checksum_matches(*candidate)) continue;
    first_header_ = offset_ - header_block;
    lost_bytes_ += first_header_ - search_from_;
    place_ = place::header;
    return candidate;
  }
  return std::nullopt;
}

void tar_parser::read_sparse_map(std::span<const std::byte>& input) {
  while (const auto map = take_block(input)) {
    if ((*map)[sparse_map_more_at] != 0) continue;
    place_ = place::data;
    return;
  }
}

result<tar_parser::event> tar_parser::read_header(std::span<const std::byte>& input) {
  const auto header = take_block(input);
  return header ? on_block(*header) : event::need_input;
}

result<tar_parser::event> tar_parser::on_block(std::string_view header) {
  const bool is_zero = header.find_first_not_of('\0') == header.npos;
  if (!in_extensions_) first_header_ = offset_ - header_block;
  if (is_zero) {
    if (in_extensions_) return bad(errc::truncated, "an extension header without its member");
    if (++zero_blocks_ < 2) return event::need_input;
    place_ = place::after_end;
    return event::archive_end;
  }
  if (zero_blocks_ == 1) {
    first_header_ -= header_block;
    return bad(errc::bad_archive, "a single zero block between members" + after_member())
        .hint("the shard was overwritten or pieced together; write it again");
  }
  return on_header_block(header);
}

result<tar_parser::event> tar_parser::on_header_block(std::string_view header) {
  if (!checksum_matches(header)) {
    const bool first = first_header_ == 0;
    return bad(errc::bad_archive, first ? "not a tar archive: the first header's checksum is wrong"
                                        : "the header's checksum is wrong" + after_member())
        .hint(first ? seen_instead(header)
                    : "the shard is damaged from here on; fetch or write it again");
  }
  const auto size = number(in(header, size_field));
  if (!size || *size > max_member_size) {
    return bad(errc::bad_archive, fmt::format("the size field is not a size ({}){}",
                                              hex_of(in(header, size_field)), after_member()));
  }
  const char type = header[type_at];
  if (type == 'x' || type == 'X' || type == 'g' || type == 'L' || type == 'K') {
    return begin_extension(type, *size);
  }
  return begin_member(header, *size);
}

result<tar_parser::event> tar_parser::begin_extension(char type, std::uint64_t size) {
  if (size > max_extension_size) {
    return bad(errc::too_large, fmt::format("an extension header of {} bytes (at most {})", size,
                                            max_extension_size));
  }
  if (++extensions_ > max_extensions) {
    return bad(errc::too_large, fmt::format("more than {} extension headers before one member{}",
                                            max_extensions, after_member()));
  }
  in_extensions_ = true;
  extension_type_ = type == 'X' ? 'x' : type;  // Sun's, older than the pax standard
  extension_.clear();
  left_ = size;
  padding_ = padding_of(size);
  place_ = place::extension;
  return event::need_input;
}

result<tar_parser::event> tar_parser::begin_member(std::string_view header, std::uint64_t size) {
  member_.type = header[type_at];
  member_.offset = first_header_;
  member_.name = text(header, name_field);
  const bool is_posix = in(header, magic_field) == std::string_view("ustar\0", 6);
  if (is_posix && !text(header, prefix_field).empty()) {
    member_.name = fmt::format("{}/{}", text(header, prefix_field), member_.name);
  }
  // In the v7 format a folder has no type of its own.
  if (member_.type == '\0' && member_.name.ends_with('/')) member_.type = '5';
  if (!next_name_.empty()) member_.name = std::move(next_name_);
  if (!sparse_name_.empty()) member_.name = std::move(sparse_name_);
  if (has_next_size_) size = next_size_;
  if (member_.name.size() > max_name_size) {
    return bad(errc::too_large,
               fmt::format("a name of {} bytes (at most {})", member_.name.size(), max_name_size));
  }
  const bool gnu_sparse = member_.type == 'S';
  member_.refused.clear();
  if (gnu_sparse || next_is_sparse_) member_.refused = "a sparse file";
  if (member_.type == 'M') member_.refused = "the rest of a file that began on another volume";
  next_name_.clear();
  sparse_name_.clear();
  has_next_size_ = next_is_sparse_ = in_extensions_ = false;
  extensions_ = 0;
  // Links, folders and devices have no data, whatever their size field.
  const bool has_data = member_.is_file() || member_.type < '1' || member_.type > '6';
  member_.size = has_data ? size : 0;
  left_ = member_.size;
  padding_ = padding_of(member_.size);
  place_ = gnu_sparse && header[sparse_more_at] != 0 ? place::sparse_map : place::data;
  return place_ == place::data ? event::header : event::need_input;
}

result<void> tar_parser::end_extension() {
  const std::string_view whole = extension_;
  if (extension_type_ == 'K') return {};  // a long link name
  if (extension_type_ == 'L') {
    next_name_ = whole.substr(0, whole.find('\0'));
    return {};
  }
  // pax: records "LENGTH KEY=VALUE\n", where LENGTH is that of the whole record.
  for (std::string_view rest = whole; !rest.empty();) {
    std::size_t length = 0;
    const auto [end, failed] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
    const auto digits = static_cast<std::size_t>(end - rest.data());
    const bool fits = failed == std::errc{} && length > digits + 2 && length <= rest.size() &&
                      rest[digits] == ' ' && rest[length - 1] == '\n';
    if (!fits) return bad(errc::bad_archive, "a pax record that is not well formed");
    const auto record = rest.substr(digits + 1, length - digits - 2);
    rest.remove_prefix(length);
    const auto equals = record.find('=');
    if (equals == record.npos) return bad(errc::bad_archive, "a pax record without '='");
    const auto key = record.substr(0, equals);
    auto ok = extension_type_ == 'g' ? refuse_global(key)
                                     : apply_pax_record(key, record.substr(equals + 1));
    if (!ok) return ok;
  }
  return {};
}

// Global records hold defaults for times and owners, which are not used here. A name or a size for
// all following members makes no sense, and readers interpret it differently.
result<void> tar_parser::refuse_global(std::string_view key) const {
  if (key != "path" && key != "size" && !key.starts_with("GNU.sparse.")) return {};
  return bad(errc::bad_archive, fmt::format("a global pax header that sets '{}'", key));
}

std::string tar_parser::after_member() const {
  return member_.name.empty() ? "" : fmt::format(", after the member '{}'", member_.name);
}

result<void> tar_parser::apply_pax_record(std::string_view key, std::string_view value) {
  if (key == "path") {
    next_name_ = value;
    if (next_name_.find('\0') != std::string::npos) {
      return bad(errc::bad_archive, "a pax path with a zero byte");
    }
  } else if (key == "size") {
    const auto size = parsed_number<std::uint64_t>(value);
    if (!size || *size > max_member_size) {
      return bad(errc::bad_archive, fmt::format("a pax size that is not a size ('{}')", value));
    }
    next_size_ = *size;
    has_next_size_ = true;
  } else if (key.starts_with("GNU.sparse.")) {
    next_is_sparse_ = true;
    if (key == "GNU.sparse.name") sparse_name_ = value;
  }
  return {};
}

result<void> tar_parser::finish(end_blocks at_end) const {
  const auto cut = [this](std::string what) {
    return error(errc::truncated, std::move(what))
        .offset(offset_)
        .skippable()
        .hint("the shard was cut; fetch or write it again");
  };
  if (place_ == place::data && left_ > 0) {
    return cut(fmt::format("the archive ends within a member, {} of {} bytes are missing", left_,
                           member_.size))
        .key(member_.name);
  }
  if (place_ == place::padding && left_ > 0) {
    return cut("the archive ends within the padding of a member").key(member_.name);
  }
  if (in_extensions_ || place_ == place::extension || place_ == place::extension_padding) {
    return cut("the archive ends within an extension header");
  }
  if (place_ == place::searching) return {};  // the error was already returned
  if (place_ == place::sparse_map || !pieces_.empty()) {
    if (offset_ < block_size) {
      return cut("not a tar archive: it is shorter than a header")
          .hint(seen_instead({pieces_.data(), pieces_.size()}));
    }
    return cut("the archive ends within a header");
  }
  if (offset_ == 0) return cut("the archive is empty");
  const bool has_ended = place_ == place::after_end || zero_blocks_ > 0;
  if (has_ended || at_end == end_blocks::optional) return {};
  return cut("the archive ends without its end blocks" + after_member())
      .hint(
          "the shard was cut; fetch or write it again. Where its writer leaves end blocks out, "
          "append "
          "1024 zero bytes");
}

}  // namespace millrace
