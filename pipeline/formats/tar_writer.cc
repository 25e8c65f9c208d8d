#include "pipeline/formats/tar_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/words.h"
#include "engine/files/file_system.h"
#include "engine/files/folders.h"
#include "engine/files/written_file.h"
#include "io/hashes.h"
#include "pipeline/formats/tar_parser.h"
#include "pipeline/samples/sample_name.h"

namespace millrace {
namespace {

constexpr std::size_t block_size = 512;
constexpr std::size_t record_size = 20 * block_size;
constexpr std::size_t name_bytes = 100;
constexpr std::uint64_t most_octal = (std::uint64_t{1} << 33) - 1;
constexpr const char* owner = "bigdata";

bool fits_ustar(std::string_view name) {
  const bool is_ascii =
      std::ranges::none_of(name, [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
  return is_ascii && name.size() <= name_bytes;
}

void put(std::span<char> field, std::string_view text) {
  std::ranges::copy(text.substr(0, field.size()), field.begin());
}

// A header block as Python's tarfile writes it in its pax format.
std::array<char, block_size> header_of_member(std::string_view name, std::uint64_t size, char type,
                                              bool owned) {
  std::array<char, block_size> h{};
  const std::span<char> all(h);
  put(all.subspan(0, name_bytes), name);
  put(all.subspan(100, 8), owned ? "0000444" : "0000000");
  put(all.subspan(108, 8), "0000000");
  put(all.subspan(116, 8), "0000000");
  put(all.subspan(124, 12), fmt::format("{:011o}", size <= most_octal ? size : 0));
  put(all.subspan(136, 12), "00000000000");
  put(all.subspan(148, 8), "        ");
  h[156] = type;
  put(all.subspan(257, 6), "ustar");
  put(all.subspan(263, 2), "00");
  if (owned) {
    put(all.subspan(265, 32), owner);
    put(all.subspan(297, 32), owner);
  }
  unsigned sum = 0;
  for (const char c : h) sum += static_cast<unsigned char>(c);
  put(all.subspan(148, 7), fmt::format("{:06o}", sum) + '\0');
  return h;
}

// "LENGTH KEY=VALUE\n", where LENGTH includes its own digits.
std::string pax_record(std::string_view key, std::string_view value) {
  const std::size_t rest = key.size() + value.size() + 3;
  std::size_t length = rest;
  while (length != rest + std::to_string(length).size()) {
    length = rest + std::to_string(length).size();
  }
  return fmt::format("{} {}={}\n", length, key, value);
}

std::string pax_records(std::string_view name, std::uint64_t size) {
  std::string out;
  if (!fits_ustar(name)) out += pax_record("path", name);
  if (size > most_octal) out += pax_record("size", std::to_string(size));
  return out;
}

// Whether a file begins with a header with a correct checksum, or with the zeros of an empty
// archive.
bool is_archive(std::string_view head) {
  if (head.size() < block_size) return false;
  const std::string_view first = head.substr(0, block_size);
  if (first.find_first_not_of('\0') == first.npos) return true;
  unsigned sum = 0;
  for (std::size_t i = 0; i < block_size; ++i) {
    sum += i >= 148 && i < 156 ? unsigned{' '} : static_cast<unsigned char>(first[i]);
  }
  unsigned said = 0;
  for (const char c : first.substr(148, 8)) {
    if (c >= '0' && c <= '7') said = said * 8 + static_cast<unsigned>(c - '0');
  }
  return sum == said;
}

constexpr file_kind archive_kind{"a tar archive", is_archive};

}  // namespace

struct tar_writer::impl {
  explicit impl(const std::string& p) : path(p), file(p, "shard") {}

  std::string path;
  written_file file;
  std::uint64_t written = 0;
  std::uint32_t crc = 0;
  std::string member;  // the one begun last
  std::uint64_t size = 0;
  std::optional<std::uint64_t> missing;  // bytes of the member; nullopt: the member has ended
  std::optional<error> overrun;          // set once the shard is not the one asked for
  std::optional<archive_bytes> finished;

  [[noreturn]] void refuse(std::string what, std::string_view hint) const {
    throw failure(error(errc::usage, std::move(what)).at(path).key(member).hint(hint));
  }
  void check_whole() const {
    if (overrun) throw failure(*overrun);
  }
  // `now`: the action that an open member prevents.
  void check_none_is_open(std::string_view now) const {
    check_whole();
    if (!missing) return;
    refuse(*missing > 0 ? fmt::format("{} of the {} of this member are missing, and {}", *missing,
                                      counted(size, "byte"), now)
                        : fmt::format("this member was not ended, and {}", now),
           *missing > 0 ? "append() the rest, then end(); or write the shard again"
                        : "call end() first");
  }
  void check_one_is_open() const {
    check_whole();
    if (!missing) refuse("no member has been begun", "call begin() first");
  }
  void put(const char* data, std::size_t bytes) {
    const auto from = std::as_bytes(std::span(data, bytes));
    written += bytes;
    crc = crc32c(from, crc);
    file.append(from);
  }
  void put_padding(std::size_t unit) {
    static constexpr std::array<char, record_size> zeros{};
    put(zeros.data(), static_cast<std::size_t>((unit - written % unit) % unit));
  }
  void put_header(std::string_view name, std::uint64_t bytes, char type, bool owned) {
    const auto h = header_of_member(name, bytes, type, owned);
    put(h.data(), h.size());
  }
};

tar_writer::tar_writer(std::string path) : impl_(std::make_unique<impl>(path)) {}
tar_writer::~tar_writer() = default;

void tar_writer::check_member(const std::string& path, std::string_view name, std::uint64_t size) {
  const auto refused = [&](std::string_view why) {
    throw failure(error(errc::usage, fmt::format("readers find no sample under this name: {}", why))
                      .at(path)
                      .key(name)
                      .hint("name the member KEY.EXTENSION"));
  };
  if (name.empty()) refused("it is empty");
  if (name.find('\0') != name.npos) refused("it has a zero byte");
  if (name.ends_with('/')) refused("it ends with '/', as a folder's does");
  if (is_meta_name(name)) refused("it is __x__, or below such a folder");
  if (!split_name(name)) refused("it has no extension after a key");
  if (name.size() > tar_parser::max_name_size) {
    refused(fmt::format("it has {} bytes (at most {})", name.size(), tar_parser::max_name_size));
  }
  if (size <= tar_parser::max_member_size) return;
  throw failure(error(errc::usage, fmt::format("a member of {} bytes (at most {})", size,
                                               tar_parser::max_member_size))
                    .at(path)
                    .key(name)
                    .hint("divide it"));
}

void tar_writer::begin(std::string_view name, std::uint64_t size) {
  impl& w = *impl_;
  w.check_none_is_open("another one is begun");
  if (w.finished) w.refuse("a member is added after finish()", "add all members first");
  check_member(w.path, name, size);
  w.member = name;
  w.size = size;
  w.missing = size;
  const std::string extension = pax_records(name, size);
  if (!extension.empty()) {
    w.put_header("././@PaxHeader", extension.size(), 'x', false);
    w.put(extension.data(), extension.size());
    w.put_padding(block_size);
  }
  // The extension header holds the full name; this one holds its beginning, with '?' for what is
  // not ASCII.
  std::string shown(name.substr(0, name_bytes));
  for (char& c : shown) c = static_cast<unsigned char>(c) < 0x80 ? c : '?';
  w.put_header(shown, size, '0', true);
}

void tar_writer::append(std::span<const std::byte> content) {
  impl& w = *impl_;
  w.check_one_is_open();
  if (content.size() > *w.missing) {
    w.overrun = error(errc::usage, fmt::format("this member got more than the {} announced to "
                                               "begin()",
                                               counted(w.size, "byte")))
                    .at(w.path)
                    .key(w.member)
                    .hint("write the shard again, with the member's actual size");
    throw failure(*w.overrun);
  }
  w.put(reinterpret_cast<const char*>(content.data()), content.size());
  *w.missing -= content.size();
}

void tar_writer::end() {
  impl& w = *impl_;
  w.check_one_is_open();
  if (*w.missing > 0) w.check_none_is_open("it was to end");
  w.put_padding(block_size);
  w.missing.reset();
}

void tar_writer::add(std::string_view name, std::span<const std::byte> content) {
  begin(name, content.size());
  append(content);
  end();
}

archive_bytes tar_writer::finish() {
  impl& w = *impl_;
  w.check_none_is_open("the shard was to end");
  if (w.finished) return *w.finished;
  static constexpr std::array<char, 2 * block_size> zeros{};
  w.put(zeros.data(), zeros.size());
  w.put_padding(record_size);
  w.finished = {w.written, w.crc, w.file.flush()};
  return *w.finished;
}

void tar_writer::close(bool replaces) {
  finish();
  impl_->file.commit(replaces);
}

void tar_writer::close_over(const std::optional<file_stamp>& before) {
  finish();
  impl_->file.commit_over(before);
}

void check_shard_output(const std::string& path, bool overwrite,
                        std::span<const std::string> inputs) {
  struct stat there{};
  const bool is_file = host_files().stat(path, there) == 0 && !S_ISDIR(there.st_mode);
  if (is_file && !overwrite) {
    throw failure(error(errc::usage, "a file of that name exists")
                      .at(path)
                      .hint("choose another name, or set pack_options.overwrite"));
  }
  check_output(path, archive_kind, inputs);
}

}  // namespace millrace
