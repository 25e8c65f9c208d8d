#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "pipeline/formats/sample_source.h"
#include "pipeline/formats/shard_reader.h"
#include "pipeline/lane_cursor.h"
#include "pipeline/sample_name.h"

namespace millrace {

// The samples of one tar shard: its consecutive files with equal keys.
class tar_reader final : public sample_reader {
 public:
  tar_reader(lane_context& lane, std::shared_ptr<const untar_options> how, const shard_ref& which,
             const lane_cursor& at);
  ~tar_reader() override { *lane_.held_members -= counted_held_; }
  tar_reader(const tar_reader&) = delete;
  tar_reader& operator=(const tar_reader&) = delete;

  awaitable<result<std::optional<sample>>> next() override;
  // The sample under construction, and the file after it, are read again.
  std::int64_t offset() const override { return here().offset; }
  std::int64_t given() const override { return here().given; }
  seen_before before() const override;
  // In front of what failed last, or of the sample that is being left out, if there is one.
  std::optional<lane_cursor> in_front() const override;
  shard_head head() const override { return members_.head(); }
  void leave_failed() override;
  // While there is an error to be given for what was read already, it is not.
  bool is_broken() const override { return members_.is_broken() && !owed_ && !unread_; }

 private:
  using outcome = result<std::optional<sample>>;
  struct owed_error {
    error why;
    lane_cursor at;        // before it
    bool goes_on = false;  // as goes_on_after()
  };
  // A sample of which no more is wanted: its error is given once all of it has been passed, so that
  // no state is in its middle.
  struct left_sample {
    error why;
    lane_cursor at;  // where it begins
    std::string key;
  };

  // What a saved state says, without and with what was seen before.
  lane_cursor here() const;
  lane_cursor now() const;
  // With the errors that were reported.
  lane_cursor with_told(lane_cursor at) const;

  awaitable<result<std::optional<tar_member>>> next_member();
  void begin_with(std::pair<tar_member, key_and_extension> first);
  void add(tar_member member, std::string extension);
  // Leaves out the sample under construction, because of `member`.
  void leave_out(const tar_member& member, errc kind, std::string what);
  error left();
  // The error for a sample that is left out and then cut: that of the cut, since it is one sample.
  error cut_short(error why);
  // The extension of a file of the sample under construction, or of the one being left out.
  std::optional<std::string_view> belongs(const tar_member& member) const;
  // Whether the sample may be half a sample: the first one after damage may have begun before it.
  // It is taken as whole if it has the fields of the last whole one.
  bool is_half();
  outcome finished();

  // Whether an error concerns one file alone, or is damage that is skipped: reading continues in
  // the same shard.
  bool is_of_member(const error& why) const;
  bool goes_on_after(const error& why) const;
  // Whether such an error, which is about to be given, was reported before the state was saved from
  // which this reader continues in front of the damage. If not, it is once it is left.
  bool was_told(const error& why);
  void leave_error();

  // A file or the shard is broken. The sample under construction is whole if the broken file has
  // another key, and is given before the error; else it is left out. If a file alone is broken, the
  // rest of its sample is left out as well. If the broken file is not known, what follows the
  // damage may be the rest of a sample. nullopt: there is more to read first.
  std::optional<outcome> broken_by(error why);

  void drop();
  // Of the lane's memory for members: the sample under construction, and what begins the next one.
  void count_held();

  lane_context& lane_;
  std::shared_ptr<const untar_options> how_;
  shard_ref which_;
  std::shared_ptr<const std::string> url_;
  shard_reader members_;
  std::optional<owed_error> owed_;
  std::optional<lane_cursor> failed_;  // before the error that was given last
  std::optional<sample> building_;
  std::size_t names_ = 0;       // bytes of its key and extensions
  std::size_t held_bytes_ = 0;  // of its files that are copies
  std::size_t counted_held_ = 0;
  std::int64_t number_ = 0;  // of the sample under construction, in the shard
  std::optional<std::pair<tar_member, key_and_extension>> carried_;  // begins the next sample
  std::optional<left_sample> leaving_;
  std::optional<error> unread_;  // what reading failed with after it
  bool ended_ = false;           // the shard
  bool after_damage_ = false;    // the sample under construction
  seen_before before_;           // `damage`: before the next sample; `told` is below
  // The errors before this byte were reported; the same, once the error given last is left.
  std::int64_t told_ = 0;
  std::int64_t telling_ = 0;
};

}  // namespace millrace
