#include "pipeline/formats/tar_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "engine/base/fingerprint.h"
#include "engine/base/words.h"

namespace millrace {

tar_reader::tar_reader(lane_context& lane, std::shared_ptr<const untar_options> how,
                       const shard_ref& which, const lane_cursor& at)
    : lane_(lane),
      how_(std::move(how)),
      which_(which),
      url_(std::make_shared<const std::string>(
          (*lane.shards)[static_cast<std::size_t>(which.shard)])),
      members_(lane, how_, which, static_cast<std::uint64_t>(std::max(at.offset, which.begin)),
               at.given, at.head) {
  const bool has_own = at.offset <= which.begin && which.before != seen_before();
  before_ = has_own ? which.before : at.before;
  told_ = std::exchange(before_.told, 0);
}

awaitable<tar_reader::outcome> tar_reader::next() {
  for (;;) {
    leave_error();
    if (owed_) {
      failed_ = owed_->at;
      const owed_error owed = *std::exchange(owed_, std::nullopt);
      if (owed.goes_on && was_told(owed.why)) continue;
      co_return owed.why;
    }
    if (ended_) co_return std::optional<sample>();
    if (carried_) begin_with(*std::exchange(carried_, std::nullopt));
    auto member = co_await next_member();
    if (!member && member.error().kind() == errc::stopped) co_return member.error();
    if (!member) {
      const bool goes_on = goes_on_after(member.error());
      auto out = broken_by(member.error());
      if (!out || (!*out && goes_on && was_told(out->error()))) continue;
      co_return std::move(*out);
    }
    ended_ = !*member;
    if (ended_ || (*member)->ends_archive) {
      before_.damage = false;
      if (building_ || leaving_) co_return leaving_ ? outcome(left()) : finished();
      continue;
    }
    if (const auto extension = belongs(**member)) {
      if (!leaving_) add(std::move(**member), lowered(*extension));
      if (leaving_) before_.damage = false;  // it was before this sample
      continue;
    }
    auto name = split_name((*member)->name);
    if (!name) {
      before_.damage |= (*member)->after_damage;  // what follows may still be an incomplete sample
      ++lane_.run.counts.without_key;
      continue;
    }
    carried_.emplace(std::move(**member), std::move(*name));
    count_held();
    if (leaving_) co_return left();
    if (building_) co_return finished();
  }
}

void tar_reader::leave_failed() {
  leave_error();
}

lane_cursor tar_reader::here() const {
  if (building_) return {.offset = building_->where.offset, .given = number_};
  if (carried_) return {.offset = carried_->first.offset, .given = carried_->first.number};
  return {.offset = members_.offset(), .given = members_.given()};
}

lane_cursor tar_reader::now() const {
  lane_cursor out = here();
  out.before = before_;
  if (building_) {
    out.before.damage = after_damage_;
  } else {
    out.before.damage |= carried_ ? carried_->first.after_damage : members_.is_after_damage();
  }
  return out;
}

lane_cursor tar_reader::with_told(lane_cursor at) const {
  at.before.told = told_ > at.offset ? told_ : 0;
  return at;
}

seen_before tar_reader::before() const {
  return with_told(now()).before;
}

std::optional<lane_cursor> tar_reader::in_front() const {
  return with_told(failed_ ? *failed_ : leaving_ ? leaving_->at : owed_ ? owed_->at : now());
}

bool tar_reader::was_told(const error& why) {
  if (!why.byte_offset()) return false;
  const auto end = static_cast<std::int64_t>(*why.byte_offset()) + 1;
  if (end <= told_) return true;
  telling_ = end;
  return false;
}

void tar_reader::leave_error() {
  if (failed_ && telling_ > 0) told_ = std::exchange(telling_, 0);
  failed_.reset();
}

void tar_reader::begin_with(std::pair<tar_member, key_and_extension> first) {
  auto& [member, name] = first;
  building_.emplace();
  building_->key = std::move(name.key);
  names_ = building_->key.size();
  building_->url = url_;
  building_->where = {
      .lane = lane_.lane, .shard = which_.shard, .offset = member.offset, .epoch = which_.epoch};
  number_ = member.number;
  after_damage_ = std::exchange(before_.damage, false) || member.after_damage;
  add(std::move(member), std::move(name.extension));
}

void tar_reader::add(tar_member member, std::string extension) {
  names_ += extension.size();
  if (std::string exceeded = exceeded_limit(building_->fields.size() + 1, names_);
      !exceeded.empty()) {
    return leave_out(member, errc::too_large, std::move(exceeded));
  }
  if (building_->find(extension) != nullptr) {
    return leave_out(member, errc::duplicate_field,
                     fmt::format("two members with the extension '{}'", extension));
  }
  if (member.copied) held_bytes_ += charge_of(member.data.size());
  count_held();
  building_->fields.push_back({std::move(extension), std::move(member.data)});
}

awaitable<result<std::optional<tar_member>>> tar_reader::next_member() {
  if (unread_) co_return *std::exchange(unread_, std::nullopt);
  co_return co_await members_.next();
}

void tar_reader::leave_out(const tar_member& member, errc kind, std::string what) {
  const error why = error(kind, std::move(what))
                        .at(*url_)
                        .offset(static_cast<std::uint64_t>(member.offset))
                        .key(building_->key)
                        .hint(kind == errc::duplicate_field ? "give one of them another extension"
                                                            : "divide the sample")
                        .skippable();
  leaving_ = {why, now(), building_->key};
  drop();
}

error tar_reader::left() {
  failed_ = leaving_->at;
  return std::exchange(leaving_, std::nullopt)->why;
}

error tar_reader::cut_short(error why) {
  failed_ = leaving_->at;
  if (why.sample_key().empty()) why.key(leaving_->key);
  leaving_.reset();
  return why;
}

std::optional<std::string_view> tar_reader::belongs(const tar_member& member) const {
  if (leaving_) return extension_after(leaving_->key, member.name);
  if (!building_) return {};
  return extension_after(building_->key, member.name);
}

bool tar_reader::is_half() {
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

tar_reader::outcome tar_reader::finished() {
  if (building_ && how_->resync && is_half()) {
    failed_ = now();
    const sample half = *std::exchange(building_, std::nullopt);
    drop();
    return error(errc::truncated,
                 "the sample after the damage has different fields from the last one before it, so "
                 "it may be incomplete")
        .at(*url_)
        .offset(static_cast<std::uint64_t>(half.where.offset))
        .key(half.key)
        .skippable();
  }
  std::optional<sample> whole = std::move(building_);
  drop();
  return whole;
}

bool tar_reader::is_of_member(const error& why) const {
  if (!why.is_skippable()) return false;
  if (members_.refused()) return members_.refused()->name.has_value();
  return why.kind() == errc::bad_field || why.kind() == errc::too_large;
}

bool tar_reader::goes_on_after(const error& why) const {
  return is_of_member(why) || (why.is_skippable() && members_.is_after_damage());
}

std::optional<tar_reader::outcome> tar_reader::broken_by(error why) {
  const bool is_alone = is_of_member(why);
  const bool goes_on = goes_on_after(why);
  const auto& refused = members_.refused();
  const bool is_nameless = refused && !refused->name;
  const std::string& name = refused && refused->name ? *refused->name : why.sample_key();
  const auto broken = is_nameless ? std::nullopt : split_name(name);
  const bool member_alone = broken && is_alone;
  const bool is_refused = why.kind() == errc::bad_field;                   // even if it has no name
  if (is_alone && !broken && (is_refused || !why.sample_key().empty())) {  // belongs to no sample
    failed_ = leaving_ ? leaving_->at : now();
    return why;
  }
  if (leaving_) {
    const bool is_within = !broken || broken->key == leaving_->key;
    if (is_within && member_alone) return std::nullopt;  // reported already
    if (is_within) return cut_short(std::move(why));
    unread_ = std::move(why);
    return left();
  }
  if (building_ && broken && broken->key != building_->key) {
    auto out = finished();
    if (member_alone) {
      leaving_ = {std::move(why), now(), broken->key};
    } else {
      owed_ = {std::move(why), now(), goes_on};
    }
    return out;
  }
  if (member_alone) {
    leaving_ = {std::move(why), now(), broken->key};
    drop();
    return std::nullopt;
  }
  failed_ = now();
  if (building_ && why.sample_key().empty()) why.key(building_->key);
  drop();
  return why;
}

void tar_reader::drop() {
  building_.reset();
  held_bytes_ = 0;
  count_held();
}

void tar_reader::count_held() {
  const std::size_t carried =
      carried_ && carried_->first.copied ? charge_of(carried_->first.data.size()) : 0;
  const std::size_t now = held_bytes_ + carried;
  if (now == counted_held_) return;
  *lane_.memory.held_members += now - std::exchange(counted_held_, now);
}

}  // namespace millrace
