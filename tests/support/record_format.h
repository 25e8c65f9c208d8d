#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "pipeline/formats/sample_source.h"

namespace millrace::testing {

// The format that docs/formats.md shows: records, each preceded by the length of its text, 8 bytes
// in the host's order. A record "KEY TEXT" is a sample with the field txt.
class record_reader final : public sample_reader {
 public:
  record_reader(lane_context& lane, const shard_ref& which, const lane_cursor& at)
      : lane_(lane),
        url_((*lane.shards)[static_cast<std::size_t>(which.shard)]),
        offset_(at.offset),
        given_(at.given) {}

  awaitable<result<std::optional<sample>>> next() override {
    if (!source_) {
      const byte_range rest{.begin = static_cast<std::uint64_t>(offset_), .end = {}};
      auto opened = co_await lane_.run.sources.open(lane_.source(), url_, rest);
      if (!opened) co_return broken(opened.error());
      source_ = std::move(*opened);
    }
    std::array<std::byte, length_bytes> head{};
    const auto got = co_await fill(head);
    if (!got) co_return broken(got.error());
    if (*got == 0) co_return std::optional<sample>();
    if (*got < head.size()) co_return broken(ends_within());
    const auto length = static_cast<std::size_t>(std::bit_cast<std::uint64_t>(head));
    if (length > lane_.memory.members->limit())
      co_return broken(error(errc::too_large, "a long record"));
    auto memory = co_await lane_.memory.members->acquire(length);
    if (!memory) co_return broken(memory.error());
    const auto filled = co_await fill(memory->span());
    if (!filled) co_return broken(filled.error());
    if (*filled < length) co_return broken(ends_within());
    const bytes text = std::move(*memory).freeze(length);
    sample out;
    out.key = text.text().substr(0, text.text().find(' '));
    out.fields.push_back({"txt", text});
    out.where.offset = offset_;
    offset_ += static_cast<std::int64_t>(length_bytes + length);
    ++given_;
    co_return std::optional(std::move(out));
  }
  std::int64_t offset() const override { return offset_; }
  std::int64_t given() const override { return given_; }
  bool is_broken() const override { return broken_; }

  static constexpr std::size_t length_bytes = 8;

 private:
  error broken(error why) {
    broken_ = true;
    return why.at(url_).offset(static_cast<std::uint64_t>(offset_)).skippable();
  }

  static error ends_within() { return {errc::truncated, "the file ends within a record"}; }

  // Returns the number of bytes read: fewer only at the file's end.
  awaitable<result<std::size_t>> fill(std::span<std::byte> to) {
    std::size_t filled = 0;
    while (filled < to.size()) {
      if (rest_.empty()) {
        auto more = co_await source_->read();
        if (!more) co_return more.error();
        if (more->empty()) break;
        rest_ = std::move(*more);
      }
      const auto n = std::min(to.size() - filled, rest_.size());
      std::memcpy(to.data() + filled, rest_.data(), n);
      filled += n;
      rest_ = rest_.slice(n);
    }
    co_return filled;
  }

  lane_context& lane_;
  std::string url_;
  std::int64_t offset_;
  std::int64_t given_;
  bool broken_ = false;
  std::unique_ptr<byte_source> source_;
  bytes rest_;
};

class record_source final : public sample_source {
 public:
  std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                      const lane_cursor& at) const override {
    return std::make_unique<record_reader>(lane, which, at);
  }
};

// A file of such records.
inline std::string record_file(const std::vector<std::string>& keys, std::size_t payload) {
  std::string out;
  for (const std::string& key : keys) {
    const std::string text = key + " " + std::string(payload, 'r');
    const std::uint64_t length = text.size();
    out.append(reinterpret_cast<const char*>(&length), record_reader::length_bytes);
    out += text;
  }
  return out;
}

}  // namespace millrace::testing
