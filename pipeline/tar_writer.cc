#include "pipeline/tar_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "engine/error.h"

namespace millrace {
namespace {

constexpr std::size_t block = 512;
constexpr std::size_t record = 20 * block;
constexpr std::size_t name_bytes = 100;
constexpr std::uint64_t most_octal = (std::uint64_t{1} << 33) - 1;
constexpr std::size_t buffered = std::size_t{1} << 20;
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
std::array<char, block> header(std::string_view name, std::uint64_t size, char type, bool owned) {
  std::array<char, block> h{};
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

// "LENGTH KEY=VALUE\n", LENGTH counting its own digits.
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

std::size_t padded(std::size_t size) {
  return (size + block - 1) / block * block;
}

}  // namespace

struct tar_writer::impl {
  std::string path;
  std::string temporary;
  int fd = -1;
  std::vector<char> pending;
  std::uint64_t written = 0;

  [[noreturn]] void fail(const std::string& what, int why) const {
    const errc kind = why == EACCES || why == EPERM || why == EROFS ? errc::not_allowed
                      : why == ENOENT                               ? errc::not_found
                                                                    : errc::io_failed;
    throw failure(error(kind, what)
                      .at(path)
                      .cause(why)
                      .hint("check that the folder exists, may be written to, and has room"));
  }
  void write_out(const char* data, std::size_t size) {
    while (size > 0) {
      const ssize_t n = ::write(fd, data, size);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("cannot write the shard", errno);
      data += n;
      size -= static_cast<std::size_t>(n);
    }
  }
  void flush() {
    write_out(pending.data(), pending.size());
    pending.clear();
  }
  void put(const char* data, std::size_t size) {
    written += size;
    if (pending.size() + size > buffered) flush();
    if (size >= buffered) return write_out(data, size);
    pending.insert(pending.end(), data, data + size);
  }
  void put_padding(std::size_t unit) {
    static constexpr std::array<char, record> zeros{};
    put(zeros.data(), static_cast<std::size_t>((unit - written % unit) % unit));
  }
  void put_header(std::string_view name, std::uint64_t size, char type, bool owned) {
    const auto h = header(name, size, type, owned);
    put(h.data(), h.size());
  }
};

std::uint64_t tar_writer::size_of_member(std::string_view name, std::uint64_t size) {
  const std::size_t extension = pax_records(name, size).size();
  return (extension > 0 ? block + padded(extension) : 0) + block +
         (size + block - 1) / block * block;
}

std::uint64_t tar_writer::size_of_archive(std::uint64_t members) {
  return (members + 2 * block + record - 1) / record * record;
}

tar_writer::tar_writer(std::string path) : impl_(std::make_unique<impl>()) {
  impl& w = *impl_;
  w.path = std::move(path);
  w.temporary = w.path + ".partial." + std::to_string(getpid());
  w.fd = open(w.temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (w.fd < 0) w.fail("cannot make the shard", errno);
  w.pending.reserve(buffered);
}

tar_writer::~tar_writer() {
  impl& w = *impl_;
  if (w.fd >= 0) {
    ::close(w.fd);
    unlink(w.temporary.c_str());
  }
}

void tar_writer::begin(std::string_view name, std::uint64_t size) {
  impl& w = *impl_;
  const std::string extension = pax_records(name, size);
  if (!extension.empty()) {
    w.put_header("././@PaxHeader", extension.size(), 'x', false);
    w.put(extension.data(), extension.size());
    w.put_padding(block);
  }
  // What the name cannot hold is in the extension; there is a '?' for what is not ASCII here.
  std::string shown(name.substr(0, name_bytes));
  for (char& c : shown) c = static_cast<unsigned char>(c) < 0x80 ? c : '?';
  w.put_header(shown, size, '0', true);
}

void tar_writer::append(std::span<const std::byte> content) {
  impl_->put(reinterpret_cast<const char*>(content.data()), content.size());
}

void tar_writer::end() {
  impl_->put_padding(block);
}

void tar_writer::add(std::string_view name, std::span<const std::byte> content) {
  begin(name, content.size());
  append(content);
  end();
}

void tar_writer::close() {
  impl& w = *impl_;
  static constexpr std::array<char, 2 * block> zeros{};
  w.put(zeros.data(), zeros.size());
  w.put_padding(record);
  w.flush();
  if (fsync(w.fd) != 0) w.fail("cannot write the shard", errno);
  ::close(std::exchange(w.fd, -1));
  if (std::rename(w.temporary.c_str(), w.path.c_str()) != 0) {
    const int why = errno;
    unlink(w.temporary.c_str());
    w.fail("cannot give the shard its name", why);
  }
}

}  // namespace millrace
