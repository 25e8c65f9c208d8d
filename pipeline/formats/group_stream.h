#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "pipeline/lane_cursor.h"
#include "pipeline/plan.h"
#include "pipeline/records.h"
#include "pipeline/sample_name.h"

namespace millrace {

// The samples of a stream of members: group_by_key()'s.
class group_stream final : public stream<sample> {
 public:
  // `before`: what was seen before the first member.
  group_stream(lane_context& lane, std::unique_ptr<stream<tar_member>> members,
               seen_before before = {})
      : lane_(lane),
        cursor_(lane.id(cursor_record::name)),
        id_(lane.id(group_record::name)),
        members_(std::move(members)),
        before_(before),
        told_{.place = {}, .before = std::exchange(before_.told, 0)} {}
  ~group_stream() override { *lane_.held_members -= counted_held_; }
  group_stream(const group_stream&) = delete;
  group_stream& operator=(const group_stream&) = delete;

  awaitable<outcome> next() override;

  // What a state says: the sample being put together and the member behind it are read again.
  struct place {
    std::optional<lane_cursor> held;  // nullopt: the members say where they are
    std::int64_t epoch = 0;
    seen_before before;  // the sample that is held
  };
  place now() const;
  // In front of what failed last, or of the sample that is being left out, where there is one.
  place in_front() const;

  // The `told` of a reader that continues there.
  std::int64_t told_at(std::int64_t epoch, const lane_cursor& at) const;

  // Whether there is an error to be given for what was read already.
  bool has_unread() const { return owed_ || unread_; }

  // What the members failed with may not have been given yet.
  void leave_failed() override {
    leave_error();
    if (!has_unread()) members_->leave_failed();
  }
  void save(state& to) const override;
  void restore(const state& from) override;

 private:
  // Errors of one shard that have been told: those before this byte. Where none has been told here,
  // of the shard that is read first.
  struct told_errors {
    std::optional<std::pair<std::int64_t, std::int64_t>> place = {};  // epoch and draw
    std::int64_t before = 0;
  };
  struct owed_error {
    error why;
    place at;              // before it
    bool goes_on = false;  // as goes_on_after()
  };
  // A sample of which no more is wanted: its error is given when all of it has passed by, so that
  // no state stands in its middle.
  struct left_sample {
    error why;
    place at;  // where it begins
    std::string key;
  };
  // Where the sample that is held begins, or will.
  std::optional<lane_cursor> held() const;
  // As now(), also where nothing is held: what is read next.
  place next_place() const;

  void begin_with(std::pair<tar_member, key_and_extension> first);

  void add(tar_member member, std::string extension);

  awaitable<stream<tar_member>::outcome> next_member();

  // The sample being put together is left out, because of `member`.
  void leave_out(const tar_member& member, errc kind, std::string what);

  error left();

  // What ends the members within the sample that is left out is told instead of why it is: it is
  // one sample, and a state has no place in its middle.
  error cut_short(error why);

  // The extension of a member of the sample being put together, or left out.
  std::optional<std::string_view> belongs(const tar_member& member) const;

  // The first sample behind damage may have begun before it. It is taken for whole where it has the
  // fields of the last one before.
  bool is_half();

  outcome finished();

  // What the members failed with is of one of them alone, or is damage that they pass over: they
  // go on in the same shard.
  bool is_of_member(const error& why) const;
  bool goes_on_after(const error& why) const;
  // Whether such an error, which is about to be given, was told before the state was saved from
  // which this continues: who continues in front of damage meets it again. Else it is told when it
  // is left.
  bool was_told(const error& why);
  void leave_error();
  std::pair<std::int64_t, std::int64_t> place_of_failed() const;
  std::pair<std::int64_t, std::int64_t> place_of_members() const;

  // A member or a shard is broken. The sample being put together is whole when the member that
  // broke has another key, and comes out before the error; else it is left out. Where a member
  // alone is broken, what else there is of its sample is left out as well. Where it is not known
  // which, what follows behind the damage may be the rest of a sample. Nothing: there is more to
  // read first.
  std::optional<outcome> broken_by(error why);

  void drop();

  // Of the lane's memory for members: the sample being put together, and what begins the next one.
  void count_held();

  lane_context& lane_;
  std::string cursor_;
  std::string id_;
  std::unique_ptr<stream<tar_member>> members_;
  bool owes_end_ = false;
  std::optional<owed_error> owed_;
  std::optional<place> failed_;  // as it was before the error that was given last
  std::optional<sample> building_;
  std::size_t names_ = 0;       // bytes of its key and extensions
  std::size_t held_bytes_ = 0;  // of its members that are copies
  std::size_t counted_held_ = 0;
  std::int64_t draw_ = 0;
  std::int64_t number_ = 0;  // of the sample being put together, in its draw
  std::optional<std::pair<tar_member, key_and_extension>> carried_;  // begins the next sample
  std::optional<left_sample> leaving_;
  std::optional<error> unread_;  // what the members gave behind it
  bool after_damage_ = false;    // the sample being put together
  seen_before before_;           // `damage`: before the first one, in the same shard; no `told`
  told_errors told_;
  told_errors telling_;  // told_, when the error that was given last is left
  // Epoch and draw of the last member's.
  std::optional<std::pair<std::int64_t, std::int64_t>> last_shard_;
};

}  // namespace millrace
