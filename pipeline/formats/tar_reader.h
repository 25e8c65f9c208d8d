#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "pipeline/formats/sample_source.h"
#include "pipeline/formats/shard_reader.h"
#include "pipeline/samples/sample_name.h"
#include "pipeline/state/lane_cursor.h"

namespace millrace {

// The samples of one tar shard: its consecutive files with equal keys.
class tar_reader final : public sample_reader {
 public:
  tar_reader(lane_context& lane, std::shared_ptr<const untar_options> how, const shard_ref& which,
             const lane_cursor& at);
  ~tar_reader() override { *lane_.memory.held_members -= counted_held_; }
  tar_reader(const tar_reader&) = delete;
  tar_reader& operator=(const tar_reader&) = delete;

  awaitable<result<std::optional<sample>>> next() override;
  // Before the sample under construction: it and the file after it are read again on resume.
  std::int64_t offset() const override { return here().offset; }
  std::int64_t given() const override { return here().given; }
  seen_before before() const override;
  // Before what failed last, or before the sample that is being left out, if there is one.
  std::optional<lane_cursor> in_front() const override;
  shard_head head() const override { return members_.head(); }
  void leave_failed() override;
  // False while an error is still to be returned for what was read already.
  bool is_broken() const override { return members_.is_broken() && !owed_ && !unread_; }

 private:
  using outcome = result<std::optional<sample>>;
  struct owed_error {
    error why;
    lane_cursor at;        // before it
    bool goes_on = false;  // as goes_on_after()
  };
  // A sample that is being left out. Its error is returned once all of it has been read, so that no
  // state is in its middle.
  struct left_sample {
    error why;
    lane_cursor at;  // where the sample begins
    std::string key;
  };

  // The position for a saved state, without and with what was seen before it.
  lane_cursor here() const;
  lane_cursor now() const;
  // Returns `at` with the errors that were reported.
  lane_cursor with_told(lane_cursor at) const;

  awaitable<result<std::optional<tar_member>>> next_member();
  void begin_with(std::pair<tar_member, key_and_extension> first);
  void add(tar_member member, std::string extension);
  // Leaves out the sample under construction, because of `member`.
  void leave_out(const tar_member& member, errc kind, std::string what);
  error left();
  // The error for a sample that is left out and then cut: only the cut's, for one sample.
  error cut_short(error why);
  // The extension of a file of the sample under construction, or of the one being left out;
  // nullopt: it belongs to neither.
  std::optional<std::string_view> belongs(const tar_member& member) const;
  // Whether the sample may be incomplete: the first one after damage may have begun before it. It
  // counts as whole if it has the same fields as the last whole one.
  bool is_half();
  outcome finished();

  // Whether an error concerns only one file.
  bool is_of_member(const error& why) const;
  // Whether reading continues in the same shard: after such an error, and after skipped damage.
  bool goes_on_after(const error& why) const;
  // Whether an error after which reading continues, and which is about to be returned, was reported
  // before: this reader resumed before the damage, from a state that was saved after the report. If
  // not, leave_error() will count it as reported.
  bool was_told(const error& why);
  void leave_error();

  // Called if a file or the shard is broken. Returns the sample under construction before the error
  // if the broken file has another key: the sample is whole. Otherwise leaves it out. If only a
  // file is broken, leaves out the rest of its sample as well. If the broken file is unknown, what
  // follows the damage may be the rest of a sample. nullopt: there is more to read first.
  std::optional<outcome> broken_by(error why);

  void drop();
  // Counts what the sample under construction, and the file that begins the next one, hold of the
  // lane's memory for members.
  void count_held();

  lane_context& lane_;
  std::shared_ptr<const untar_options> how_;
  shard_ref which_;
  std::shared_ptr<const std::string> url_;
  shard_reader members_;
  std::optional<owed_error> owed_;
  std::optional<lane_cursor> failed_;  // before the last error
  std::optional<sample> building_;
  std::size_t names_ = 0;       // bytes of its key and extensions
  std::size_t held_bytes_ = 0;  // of its files that are copies
  std::size_t counted_held_ = 0;
  std::int64_t number_ = 0;  // of the sample under construction, in the shard
  std::optional<std::pair<tar_member, key_and_extension>> carried_;  // begins the next sample
  std::optional<left_sample> leaving_;
  std::optional<error> unread_;  // the error that was met after it
  bool ended_ = false;           // the shard
  bool after_damage_ = false;    // the sample under construction
  seen_before before_;           // `damage`: before the next sample; `told`: see told_
  // Errors before this byte were reported; its next value, set once the last error is left.
  std::int64_t told_ = 0;
  std::int64_t telling_ = 0;
};

}  // namespace millrace
