#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "pipeline/formats/end_blocks.h"

namespace millrace {

// Splits a tar archive that is passed to it in pieces of any size. Sans-io: it neither reads nor
// keeps payload bytes, but returns where they are. Formats: v7, ustar (prefix field), GNU (long
// names, base-256 numbers), pax (path and size), and several archives in succession. Every defect
// is an error with the archive offset and the member before it. Nothing is skipped silently, and no
// archive ends early without an error: the zero blocks at its end are required unless the caller
// knows its length. A header cannot cause unbounded allocations: extensions are bounded, and
// members are kept by the caller.
//
// Source of the formats: POSIX.1-2001 pax, and the GNU tar manual, "Basic Tar Format".
//
//   tar_parser parser;
//   for (;;) {
//     auto step = parser.step(input);        // consumes from the front of `input`
//     if (!step) ...                         // step.error()
//     switch (*step) ...
//   }
//
// Single-threaded.
class tar_parser {
 public:
  enum class event {
    need_input,   // all input is consumed; call finish() at the archive's end
    header,       // a member begins: current() describes it
    data,         // data() is the next bytes of the current member, in the caller's input
    member_end,   // the current member is complete
    archive_end,  // two zero blocks; what follows is ignored unless it is another archive
  };

  struct member {
    std::string name;
    char type = '0';           // as in the header; '0' and NUL are regular files
    std::uint64_t size = 0;    // of the data
    std::uint64_t offset = 0;  // of the first header block, including extension headers
    // The reason why this file's data is not its content (sparse, multi-volume); otherwise empty.
    // The data still comes as data events.
    std::string refused;
    bool is_file() const {
      return type == '0' || type == '\0' || type == '7' || type == 'S' || type == 'M';
    }
  };

  // `offset`: of the first byte passed, within the archive. Must be a multiple of 512.
  explicit tar_parser(std::uint64_t offset = 0) : offset_(offset) {}

  // Parses up to the next event. Advances `input` past the bytes consumed.
  result<event> step(std::span<const std::byte>& input);
  // Ends the archive. Fails with truncated within a header or a member and, if `at_end` is
  // `required`, also between members: only its zero blocks distinguish a complete archive from one
  // cut there. One of the two blocks is enough.
  result<void> finish(end_blocks at_end = end_blocks::required) const;
  // After an error of step(): continues at the next block that is a ustar, GNU or pax header with a
  // correct checksum. The bytes before it are lost, and counted. Members of an archive within a
  // lost member may be taken for members of this archive.
  void resync();
  // Bytes skipped by resync() so far.
  std::uint64_t lost_bytes() const {
    return lost_bytes_ + (place_ == place::searching ? offset_ - search_from_ : 0);
  }

  const member& current() const { return member_; }
  std::span<const std::byte> data() const { return data_; }
  // Offset of the next byte to be passed.
  std::uint64_t offset() const { return offset_; }

  static constexpr std::size_t block_size = 512;
  // Names and pax records are kept in memory, so their announced sizes are bounded.
  static constexpr std::uint64_t max_extension_size = 1 << 20;
  static constexpr int max_extensions = 64;  // before one member
  static constexpr std::size_t max_name_size = 32 << 10;
  static constexpr std::uint64_t max_member_size = std::uint64_t{1} << 50;

 private:
  enum class place {
    header,
    extension,
    extension_padding,
    sparse_map,
    data,
    padding,
    after_end,
    searching,
  };

  std::optional<std::string_view> search(std::span<const std::byte>& input);
  void read_sparse_map(std::span<const std::byte>& input);
  void pass_zeros(std::span<const std::byte>& input);
  std::optional<std::string_view> take_block(std::span<const std::byte>& input);
  result<event> read_header(std::span<const std::byte>& input);
  result<event> on_block(std::string_view header);
  result<event> on_header_block(std::string_view header);
  result<event> begin_member(std::string_view block, std::uint64_t size);
  result<event> begin_extension(char type, std::uint64_t size);
  result<void> end_extension();
  result<void> apply_pax_record(std::string_view key, std::string_view value);
  result<void> refuse_global(std::string_view key) const;
  std::string after_member() const;
  bool take(std::span<const std::byte>& input, std::uint64_t& left);
  error bad(errc kind, std::string what) const;

  std::uint64_t offset_;
  place place_ = place::header;
  std::string pieces_;         // of an incomplete block
  std::string last_block_;     // the last block that came in pieces
  std::uint64_t left_ = 0;     // bytes left of data, an extension, or padding
  std::uint64_t padding_ = 0;  // after the data
  char extension_type_ = 0;
  std::string extension_;
  std::string next_name_;  // from extension headers, for the next member
  bool has_next_size_ = false;
  std::uint64_t next_size_ = 0;
  bool next_is_sparse_ = false;
  std::string sparse_name_;
  int extensions_ = 0;  // before the next member
  std::uint64_t first_header_ = 0;
  bool in_extensions_ = false;
  int zero_blocks_ = 0;
  std::uint64_t search_from_ = 0;
  std::uint64_t lost_bytes_ = 0;
  member member_;
  std::span<const std::byte> data_;
};

}  // namespace millrace
