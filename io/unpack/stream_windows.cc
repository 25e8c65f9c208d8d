#include "io/unpack/stream_windows.h"

#include <algorithm>
#include <utility>

#include "io/unpack/unpacker.h"

namespace millrace {

void stream_windows::expect(std::size_t size, std::uint64_t skipped) {
  expected_ = size;
  to_skip_ = skipped;
  is_between_ = may_end_ = false;
}

void stream_windows::expect_stream(std::size_t size, std::uint64_t skipped) {
  expect(size, skipped);
  is_between_ = may_end_ = true;
}

void stream_windows::need(std::uint64_t bytes) {
  needed_ = std::max(needed_, bytes - std::min(bytes, free_bytes));
}

void stream_windows::fail(std::string what) {
  fail(error(errc::bad_archive, "the compressed stream is damaged: " + std::move(what)));
}

void stream_windows::fail(error why) {
  failed_ = std::move(why);
}

void stream_windows::end(std::string_view rest) {
  const bool is_whole = may_end_ && to_skip_ == 0 && rest.empty();
  if (failed_ || is_whole || expected_ == 0) return;
  const std::size_t size = std::min(rest.size(), magic_.size());
  if (is_between_ && to_skip_ == 0 && rest.substr(0, size) != magic_.substr(0, size)) {
    return fail("no stream begins here");
  }
  fail(error(errc::truncated, "the compressed stream is damaged: it ends too early")
           .hint(cut_stream_hint));
}

std::size_t stream_windows::feed(std::span<const std::byte> input) {
  padding_ = lacks_ = 0;
  std::size_t at = std::exchange(looked_at_, 0);
  while (at < input.size() && expected_ > 0 && !failed_) {
    if (to_skip_ > 0) {
      const auto n = std::min<std::uint64_t>(to_skip_, input.size() - at);
      to_skip_ -= n;
      at += static_cast<std::size_t>(n);
      continue;
    }
    if (is_between_ && input[at] == std::byte{0}) {
      const std::string_view rest(reinterpret_cast<const char*>(input.data()), input.size());
      if (at == 0) padding_ = std::min(rest.find_first_not_of('\0'), rest.size());
      return at;
    }
    const std::size_t size = expected_;
    if (input.size() - at < size) {
      lacks_ = at == 0 ? size : 0;
      return at;
    }
    const std::uint64_t before = needed_;
    expected_ = 0;
    on_bytes({reinterpret_cast<const char*>(input.data()) + at, size});
    if (failed_) return at;
    if (needed_ > before) {
      looked_at_ = size;
      return at;
    }
    at += size;
  }
  return failed_ ? 0 : input.size();
}

}  // namespace millrace
