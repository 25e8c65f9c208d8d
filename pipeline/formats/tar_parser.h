#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/result.h"
#include "pipeline/formats/end_blocks.h"

namespace millrace {

// Splits a tar archive that is fed to it in pieces of any size. Sans-io: it neither reads nor keeps
// payload bytes, it says where they are. Formats: v7, ustar (prefix field), GNU (long names,
// base-256 numbers), pax (path and size), and several archives one after the other. Every defect is
// an error with the archive offset and the member before it; nothing is skipped silently, and no
// archive ends early without an error: the zero blocks at its end are required unless the caller
// knows its length. A header cannot cause allocations: extensions are bounded, and the caller holds
// the members.
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
    need_input,   // all of the input is consumed; call finish() at the archive's end
    header,       // a member begins: member() describes it
    data,         // data() are the next bytes of the current member, in the caller's input
    member_end,   // the current member is whole
    archive_end,  // two zero blocks; what follows is not looked at unless another archive begins
  };

  struct member {
    std::string name;
    char type = '0';           // as in the header; '0' and NUL are regular files
    std::uint64_t size = 0;    // of the data
    std::uint64_t offset = 0;  // of the first header block, extension headers included
    // Why the data of this file are not its content (sparse, multi-volume); else empty. They still
    // come as data events.
    std::string refused;
    bool is_file() const {
      return type == '0' || type == '\0' || type == '7' || type == 'S' || type == 'M';
    }
  };

  // `offset`: of the first byte fed, in the archive. It must be a multiple of 512.
  explicit tar_parser(std::uint64_t offset = 0) : offset_(offset) {}

  // Parses up to the next event. Advances `input` past what it consumed.
  result<event> step(std::span<const std::byte>& input);
  // The archive ends here. Fails with truncated in the middle of a header or a member, and, where
  // `at_end` is `required`, between members as well: an archive that was cut there differs from a
  // whole one by its zero blocks alone. One of the two is enough.
  result<void> finish(end_blocks at_end = end_blocks::required) const;
  // After an error of step(): continues at the next block that is a ustar, GNU or pax header with a
  // correct checksum. The bytes before it are lost, and counted. Members of an archive within a
  // lost member may be taken for members of this one.
  void resync();
  // Bytes passed over by resync() so far.
  std::uint64_t lost_bytes() const {
    return lost_bytes_ + (place_ == place::searching ? offset_ - search_from_ : 0);
  }

  const member& current() const { return member_; }
  std::span<const std::byte> data() const { return data_; }
  // Of the next byte to be fed.
  std::uint64_t offset() const { return offset_; }

  static constexpr std::size_t block_size = 512;
  // Names and pax records are kept in memory, so what a header may announce is bounded.
  static constexpr std::uint64_t max_extension_size = 1 << 20;
  static constexpr int max_extensions = 64;  // in front of one member
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
  std::string behind() const;
  bool take(std::span<const std::byte>& input, std::uint64_t& left);
  error bad(errc kind, std::string what) const;

  std::uint64_t offset_;
  place place_ = place::header;
  std::string pieces_;         // of a block, as far as it has come
  std::string last_block_;     // one that came in pieces
  std::uint64_t left_ = 0;     // of data, an extension, or padding
  std::uint64_t padding_ = 0;  // after the data
  char extension_type_ = 0;
  std::string extension_;
  std::string next_name_;  // from extension headers, for the next member
  bool has_next_size_ = false;
  std::uint64_t next_size_ = 0;
  bool next_is_sparse_ = false;
  std::string sparse_name_;
  int extensions_ = 0;  // in front of the next member
  std::uint64_t first_header_ = 0;
  bool in_extensions_ = false;
  int zero_blocks_ = 0;
  std::uint64_t search_from_ = 0;
  std::uint64_t lost_bytes_ = 0;
  member member_;
  std::span<const std::byte> data_;
};

}  // namespace millrace
