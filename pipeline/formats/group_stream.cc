#include "pipeline/formats/group_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "engine/fingerprint.h"
#include "engine/words.h"
#include "pipeline/formats/untar_options.h"
#include "pipeline/records.h"
#include "pipeline/sample_name.h"

namespace millrace {

awaitable<group_stream::outcome> group_stream::next() {
  for (;;) {
    leave_error();
    if (std::exchange(owes_end_, false)) co_return std::optional<sample>();
    if (owed_) {
      failed_ = owed_->at;
      const owed_error owed = *std::exchange(owed_, std::nullopt);
      if (owed.goes_on && was_told(owed.why)) continue;
      co_return owed.why;
    }
    if (carried_) begin_with(*std::exchange(carried_, std::nullopt));
    auto member = co_await next_member();
    if (!member && member.error().kind() == errc::stopped) co_return member.error();
    if (!member) {
      const bool goes_on = goes_on_after(member.error());
      auto out = broken_by(member.error());
      if (!out || (!*out && goes_on && was_told(out->error()))) continue;
      co_return std::move(*out);
    }
    const bool is_last = !*member;
    if (is_last || (*member)->ends_archive) {
      before_.damage = false;
      if (!is_last && !building_ && !leaving_) continue;
      owes_end_ = is_last && (building_ || leaving_);  // the epoch ends behind its last sample
      co_return leaving_ ? outcome(left()) : finished();
    }
    if (const auto extension = belongs(**member)) {
      if (!leaving_) add(std::move(**member), lowered(*extension));
      continue;
    }
    auto name = split_name((*member)->name);
    if (!name) {
      before_.damage |= (*member)->after_damage;  // what follows may still be half a sample
      ++lane_.run.counts.without_key;
      continue;
    }
    carried_.emplace(std::move(**member), std::move(*name));
    count_held();
    if (leaving_) co_return left();
    if (building_) co_return finished();
  }
}

std::optional<lane_cursor> group_stream::held() const {
  if (building_) {
    return lane_cursor{.draw = draw_, .offset = building_->where.offset, .given = number_};
  }
  if (!carried_) return std::nullopt;
  const tar_member& m = carried_->first;
  return lane_cursor{.draw = m.draw, .offset = m.offset, .given = m.number};
}

void group_stream::save(state& to) const {
  members_->save(to);
  const place at = in_front();
  if (at.held) to.put(cursor_, cursor_record::of(at.epoch, *at.held));
  seen_before before = at.before;
  const auto [epoch, cursor] = cursor_record::in(to, cursor_);
  if (at.held || !lane_.before_part) before.told = told_at(epoch, cursor);
  group_record{.owes_end = owes_end_ && !failed_, .before = before}.put(to, id_);
}

void group_stream::restore(const state& from) {
  members_->restore(from);
  const group_record r = group_record::in(from, id_);
  owes_end_ = r.owes_end;
  before_ = r.before;
  const auto [epoch, at] = cursor_record::in(from, cursor_);
  last_shard_ = {epoch, at.draw};
  told_ = {.place = last_shard_, .before = std::exchange(before_.told, 0)};
  if (at.offset == 0) before_.damage = false;  // of the shard before, or seen again
}

group_stream::place group_stream::now() const {
  place out{.held = held(), .epoch = 0, .before = before_};
  if (lane_.before_part) out.before = *lane_.before_part;
  if (out.held) out.epoch = building_ ? building_->where.epoch : carried_->first.epoch;
  if (building_) out.before.damage = after_damage_;
  if (!building_ && carried_) out.before.damage |= carried_->first.after_damage;
  if (!out.held) out.before.damage |= lane_.after_damage;
  return out;
}

std::pair<std::int64_t, std::int64_t> group_stream::place_of_failed() const {
  if (failed_->held) return {failed_->epoch, failed_->held->draw};
  return place_of_members();
}

std::pair<std::int64_t, std::int64_t> group_stream::place_of_members() const {
  state s;
  members_->save(s);
  const auto [epoch, at] = cursor_record::in(s, cursor_);
  return {epoch, at.draw};
}

std::int64_t group_stream::told_at(std::int64_t epoch, const lane_cursor& at) const {
  const bool is_there = !told_.place || *told_.place == std::pair(epoch, at.draw);
  return is_there && told_.before > at.offset ? told_.before : 0;
}

bool group_stream::was_told(const error& why) {
  if (!why.byte_offset()) return false;
  const auto at = place_of_failed();
  const auto end = static_cast<std::int64_t>(*why.byte_offset()) + 1;
  const bool is_there = !told_.place || *told_.place == at;
  if (is_there && end <= told_.before) return true;
  telling_ = {.place = at, .before = end};
  return false;
}

void group_stream::leave_error() {
  if (failed_ && telling_.before > 0) told_ = std::exchange(telling_, {});
  failed_.reset();
}

group_stream::place group_stream::in_front() const {
  return failed_ ? *failed_ : leaving_ ? leaving_->at : owed_ ? owed_->at : now();
}

group_stream::place group_stream::next_place() const {
  place out = now();
  if (out.held) return out;
  state s;
  members_->save(s);
  std::tie(out.epoch, out.held) = cursor_record::in(s, cursor_);
  return out;
}

void group_stream::begin_with(std::pair<tar_member, key_and_extension> first) {
  auto& [member, name] = first;
  building_.emplace();
  building_->key = std::move(name.key);
  names_ = building_->key.size();
  building_->url = member.url;
  building_->where = {
      .lane = lane_.lane, .shard = member.shard, .offset = member.offset, .epoch = member.epoch};
  draw_ = member.draw;
  number_ = member.number;
  after_damage_ = std::exchange(before_.damage, false) || member.after_damage;
  add(std::move(member), std::move(name.extension));
}

void group_stream::add(tar_member member, std::string extension) {
  names_ += extension.size();
  if (building_->fields.size() == most_fields || names_ > most_name_bytes) {
    return leave_out(
        member, errc::too_large,
        building_->fields.size() == most_fields
            ? fmt::format("a sample of more than {} fields", most_fields)
            : fmt::format("a sample with names of more than {} bytes", most_name_bytes));
  }
  if (building_->find(extension) != nullptr) {
    return leave_out(member, errc::duplicate_field,
                     fmt::format("two members with the extension '{}'", extension));
  }
  if (member.copied) held_bytes_ += charge_of(member.data.size());
  count_held();
  building_->fields.push_back({std::move(extension), std::move(member.data)});
}

awaitable<stream<tar_member>::outcome> group_stream::next_member() {
  if (unread_) co_return *std::exchange(unread_, std::nullopt);
  auto member = co_await members_->next();
  if (member && *member && (*member)->url) {
    const std::pair of((*member)->epoch, (*member)->draw);
    if (std::exchange(last_shard_, of).value_or(of) != of) before_.damage = false;
  }
  if (lane_.before_part) {
    before_ = *std::exchange(lane_.before_part, std::nullopt);
    told_ = {.place = place_of_members(), .before = std::exchange(before_.told, 0)};
  }
  co_return member;
}

void group_stream::leave_out(const tar_member& member, errc kind, std::string what) {
  const error why = error(kind, std::move(what))
                        .at(*member.url)
                        .offset(static_cast<std::uint64_t>(member.offset))
                        .key(building_->key)
                        .skippable();
  leaving_ = {why, now(), building_->key};
  drop();
}

error group_stream::left() {
  failed_ = leaving_->at;
  return std::exchange(leaving_, std::nullopt)->why;
}

error group_stream::cut_short(error why) {
  failed_ = leaving_->at;
  if (why.sample_key().empty()) why.key(leaving_->key);
  leaving_.reset();
  return why;
}

std::optional<std::string_view> group_stream::belongs(const tar_member& member) const {
  if (leaving_) return extension_behind(leaving_->key, member.name);
  if (!building_ || member.draw != draw_ || member.epoch != building_->where.epoch) return {};
  return extension_behind(building_->key, member.name);
}

bool group_stream::is_half() {
  std::vector<std::string> extensions;
  for (const field& f : building_->fields) extensions.push_back(f.extension);
  std::ranges::sort(extensions);
  std::uint64_t print = fingerprint("");
  for (const std::string& e : extensions) print = fingerprint(e + "\n", print);
  const auto these = static_cast<std::int64_t>(print);
  if (after_damage_ && these != before_.usual) return true;
  before_.usual = these;
  return false;
}

group_stream::outcome group_stream::finished() {
  if (building_ && lane_.untar->resync && is_half()) {
    failed_ = now();
    const sample half = *std::exchange(building_, std::nullopt);
    drop();
    return error(errc::truncated,
                 "the sample after the damage has other fields than the last one before it: it "
                 "may be half a sample")
        .at(*half.url)
        .offset(static_cast<std::uint64_t>(half.where.offset))
        .key(half.key)
        .skippable();
  }
  std::optional<sample> whole = std::move(building_);
  drop();
  return whole;
}

bool group_stream::is_of_member(const error& why) const {
  if (!why.is_skippable()) return false;
  if (lane_.refused) return lane_.refused->name.has_value();
  return why.kind() == errc::bad_field || why.kind() == errc::too_large;
}

bool group_stream::goes_on_after(const error& why) const {
  return is_of_member(why) || (why.is_skippable() && lane_.after_damage);
}

std::optional<group_stream::outcome> group_stream::broken_by(error why) {
  const bool is_alone = is_of_member(why);
  const bool goes_on = goes_on_after(why);
  const auto refused = std::exchange(lane_.refused, std::nullopt);
  const bool is_nameless = refused && !refused->name;
  const std::string& name = refused && refused->name ? *refused->name : why.sample_key();
  const auto broken = is_nameless ? std::nullopt : split_name(name);
  const bool member_alone = broken && is_alone;
  const bool is_refused = why.kind() == errc::bad_field;  // also one without any name
  if (is_alone && !broken && (is_refused || !why.sample_key().empty())) {  // of no sample
    failed_ = leaving_ ? leaving_->at : now();
    return why;
  }
  if (leaving_) {
    const bool is_within = !broken || broken->key == leaving_->key;
    if (is_within && member_alone) return std::nullopt;  // told already
    if (is_within) return cut_short(std::move(why));
    unread_ = std::move(why);
    lane_.refused = refused;  // the reader is not asked before it is taken
    return left();
  }
  if (building_ && broken && broken->key != building_->key) {
    auto out = finished();
    if (member_alone) {
      leaving_ = {std::move(why), next_place(), broken->key};
    } else {
      owed_ = {std::move(why), now(), goes_on};
    }
    return out;
  }
  if (member_alone) {
    leaving_ = {std::move(why), next_place(), broken->key};
    drop();
    return std::nullopt;
  }
  failed_ = now();
  if (building_ && why.sample_key().empty()) why.key(building_->key);
  drop();
  return why;
}

void group_stream::drop() {
  building_.reset();
  held_bytes_ = 0;
  count_held();
}

void group_stream::count_held() {
  const std::size_t carried =
      carried_ && carried_->first.copied ? charge_of(carried_->first.data.size()) : 0;
  const std::size_t now = held_bytes_ + carried;
  if (now == counted_held_) return;
  *lane_.held_members += now - std::exchange(counted_held_, now);
}

}  // namespace millrace
