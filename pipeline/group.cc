#include "pipeline/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "engine/fingerprint.h"

namespace millrace {

namespace {

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

}  // namespace

std::optional<key_and_extension> split_name(std::string_view name) {
  // The regular expression of WebDataset is ^((?:.*/|)[^.]+)[.]([^/]*)$ with greedy `.*/`, whose
  // `.` matches no line feed. So the first dot of the last component splits; where nothing stands
  // before it there, [^.]+ is matched from the end of a shorter prefix on ("dir/.hidden" has the
  // key "dir/").
  const auto slash = name.rfind('/');
  const auto base = slash == name.npos ? 0 : slash + 1;
  std::size_t dot = name.npos;
  for (std::size_t prefix = base;; prefix = prefix < 2 ? 0 : name.rfind('/', prefix - 2) + 1) {
    const bool is_line = name.substr(0, prefix).find('\n') == name.npos;
    const auto first = name.find('.', prefix);
    if (first == name.npos) return std::nullopt;
    if (is_line && first > prefix && first >= base) dot = first;
    if (dot != name.npos) break;
    if (prefix == 0) return std::nullopt;
  }
  return key_and_extension{std::string(name.substr(0, dot)), lower_case(name.substr(dot + 1))};
}

std::uint16_t name_sum(std::string_view key, std::string_view extension) {
  const std::uint64_t whole = fingerprint(extension, fingerprint(".", fingerprint(key)));
  return static_cast<std::uint16_t>(whole ^ whole >> 16 ^ whole >> 32 ^ whole >> 48);
}

std::optional<std::string_view> extension_behind(std::string_view key, std::string_view name) {
  if (!name.starts_with(key) || name.size() == key.size() || name[key.size()] != '.') return {};
  const auto extension = name.substr(key.size() + 1);
  return extension.find('/') == extension.npos ? std::optional(extension) : std::nullopt;
}

group_record group_record::in(const state& from, const std::string& name) {
  const auto* r = from.find(name);
  const auto value = [r](std::size_t i) { return r != nullptr && i < r->size() ? (*r)[i] : 0; };
  if (value(1) != 0) {
    throw failure(error(errc::bad_state,
                        "the saved state, of an older version, stands within a sample that is left "
                        "out")
                      .hint("resume from another checkpoint"));
  }
  return {.owes_end = value(0) != 0, .before = {.damage = value(2) != 0, .usual = value(3)}};
}

void group_record::put(state& to, const std::string& name) const {
  to.put(name, {owes_end ? 1 : 0, 0, before.damage ? 1 : 0, before.usual});
}

namespace {

class group_stream final : public stream<sample> {
 public:
  group_stream(lane_context& lane, std::unique_ptr<stream<tar_member>> members)
      : lane_(lane),
        cursor_(lane.id("cursor")),
        id_(lane.id("group")),
        members_(std::move(members)) {}
  ~group_stream() override { *lane_.held_by_groups -= counted_held_; }
  group_stream(const group_stream&) = delete;
  group_stream& operator=(const group_stream&) = delete;

  awaitable<outcome> next() override {
    failed_.reset();
    for (;;) {
      if (std::exchange(owes_end_, false)) co_return std::optional<sample>();
      if (owed_) {
        failed_ = owed_->at;
        co_return std::exchange(owed_, std::nullopt)->why;
      }
      if (carried_) begin_with(*std::exchange(carried_, std::nullopt));
      auto member = co_await next_member();
      if (!member) {
        if (auto out = broken_by(member.error())) co_return std::move(*out);
        continue;
      }
      const bool is_last = !*member;
      if (is_last || (*member)->ends_archive) {
        if (!is_last && !building_ && !leaving_) continue;
        owes_end_ = is_last && (building_ || leaving_);  // the epoch ends behind its last sample
        co_return leaving_ ? outcome(left()) : finished();
      }
      if (const auto extension = belongs(**member)) {
        if (!leaving_) add(std::move(**member), lower_case(*extension));
        continue;
      }
      auto name = split_name((*member)->name);
      if (!name) {
        ++lane_.run.counts.without_key;
        continue;
      }
      carried_.emplace(std::move(**member), std::move(*name));
      count_held();
      if (leaving_) co_return left();
      if (building_) co_return finished();
    }
  }

  // Where the sample that is held begins, or will.
  std::optional<lane_cursor> held() const {
    if (building_) {
      return lane_cursor{.draw = draw_, .offset = building_->where.offset, .given = number_};
    }
    if (!carried_) return std::nullopt;
    const tar_member& m = carried_->first;
    return lane_cursor{.draw = m.draw, .offset = m.offset, .given = m.number};
  }

  // Whether there is an error to be given for what was read already.
  bool has_unread() const { return owed_ || unread_; }

  void save(state& to) const override {
    members_->save(to);
    const place at = failed_ ? *failed_ : leaving_ ? leaving_->at : owed_ ? owed_->at : now();
    if (at.held) to.put(cursor_, cursor_record::of(at.epoch, *at.held));
    group_record{.owes_end = owes_end_ && !failed_, .before = at.before}.put(to, id_);
  }
  void restore(const state& from) override {
    members_->restore(from);
    const group_record r = group_record::in(from, id_);
    owes_end_ = r.owes_end;
    before_ = r.before;
  }

 private:
  // What a state says: the sample being put together and the member behind it are read again.
  struct place {
    std::optional<lane_cursor> held;
    std::int64_t epoch = 0;
    seen_before before;  // the sample that is held
  };
  struct owed_error {
    error why;
    place at;  // before it
  };
  // A sample of which no more is wanted: its error is given when all of it has passed by, so that
  // no state stands in its middle.
  struct left_sample {
    error why;
    place at;  // where it begins
    std::string key;
  };
  place now() const {
    place out{.held = held(), .epoch = 0, .before = before_};
    if (lane_.before_part) out.before = *lane_.before_part;
    if (out.held) out.epoch = building_ ? building_->where.epoch : carried_->first.epoch;
    if (building_) out.before.damage = after_damage_;
    if (!building_ && carried_) out.before.damage |= carried_->first.after_damage;
    return out;
  }
  // The same where nothing is held: what is read next.
  place next_place() const {
    place out = now();
    if (out.held) return out;
    state s;
    members_->save(s);
    if (s.find(cursor_) == nullptr) return out;  // of one shard, whose reader says it
    std::tie(out.epoch, out.held) = cursor_record::in(s, cursor_);
    return out;
  }

  void begin_with(std::pair<tar_member, key_and_extension> first) {
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

  void add(tar_member member, std::string extension) {
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

  awaitable<stream<tar_member>::outcome> next_member() {
    if (unread_) co_return *std::exchange(unread_, std::nullopt);
    auto member = co_await members_->next();
    if (lane_.before_part) before_ = *std::exchange(lane_.before_part, std::nullopt);
    co_return member;
  }

  // The sample being put together is left out, because of `member`.
  void leave_out(const tar_member& member, errc kind, std::string what) {
    const error why = error(kind, std::move(what))
                          .at(*member.url)
                          .offset(static_cast<std::uint64_t>(member.offset))
                          .key(building_->key)
                          .skippable();
    leaving_ = {why, now(), building_->key};
    drop();
  }

  error left() {
    failed_ = leaving_->at;
    return std::exchange(leaving_, std::nullopt)->why;
  }

  // What ends the members within the sample that is left out is told instead of why it is: it is
  // one sample, and a state has no place in its middle.
  error cut_short(error why) {
    failed_ = leaving_->at;
    if (why.sample_key().empty()) why.key(leaving_->key);
    leaving_.reset();
    return why;
  }

  // The extension of a member of the sample being put together, or left out.
  std::optional<std::string_view> belongs(const tar_member& member) const {
    if (leaving_) return extension_behind(leaving_->key, member.name);
    if (!building_ || member.draw != draw_ || member.epoch != building_->where.epoch) return {};
    return extension_behind(building_->key, member.name);
  }

  // The first sample behind damage may have begun before it. It is taken for whole where it has the
  // fields of the last one before.
  bool is_half() {
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

  outcome finished() {
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

  // A member or a shard is broken. The sample being put together is whole when the member that
  // broke has another key, and comes out before the error; else it is left out. Where a member
  // alone is broken, what else there is of its sample is left out as well. Where it is not known
  // which, what follows behind the damage may be the rest of a sample. Nothing: there is more to
  // read first.
  std::optional<outcome> broken_by(error why) {
    const auto broken = split_name(why.sample_key());
    const bool is_of_member = why.kind() == errc::bad_field || why.kind() == errc::too_large;
    const bool member_alone = broken && is_of_member;
    const bool is_refused = why.kind() == errc::bad_field;  // also one without any name
    if (is_of_member && !broken && (is_refused || !why.sample_key().empty())) {  // of no sample
      failed_ = leaving_ ? leaving_->at : now();
      return why;
    }
    if (leaving_) {
      const bool is_within = !broken || broken->key == leaving_->key;
      if (is_within && member_alone) return std::nullopt;  // told already
      if (is_within) return cut_short(std::move(why));
      unread_ = std::move(why);
      return left();
    }
    if (building_ && broken && broken->key != building_->key) {
      auto out = finished();
      if (member_alone) {
        leaving_ = {std::move(why), next_place(), broken->key};
      } else {
        owed_ = {std::move(why), now()};
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

  void drop() {
    building_.reset();
    held_bytes_ = 0;
    count_held();
  }

  // Of the lane's memory for members: the sample being put together, and what begins the next one.
  void count_held() {
    const std::size_t carried =
        carried_ && carried_->first.copied ? charge_of(carried_->first.data.size()) : 0;
    const std::size_t now = held_bytes_ + carried;
    if (now == counted_held_) return;
    *lane_.held_by_groups += now - std::exchange(counted_held_, now);
  }

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
  seen_before before_;           // `damage`: before the first one, by the state
};

}  // namespace

namespace {

// The members of one shard as a stream that ends with the shard.
class one_shard final : public stream<tar_member> {
 public:
  one_shard(lane_context& lane, const shard_ref& which, const lane_cursor& at, shard_head had)
      : reader_(lane, which, static_cast<std::uint64_t>(std::max(at.offset, which.begin)), at.given,
                had) {}
  awaitable<outcome> next() override { co_return co_await reader_.next(); }
  void save(state& /*to*/) const override {}
  void restore(const state& /*from*/) override {}
  const shard_reader& reader() const { return reader_; }

 private:
  shard_reader reader_;
};

class tar_reader final : public sample_reader {
 public:
  tar_reader(lane_context& lane, const shard_ref& which, const lane_cursor& at, shard_head had) {
    auto members = std::make_unique<one_shard>(lane, which, at, had);
    members_ = members.get();
    samples_ = std::make_unique<group_stream>(lane, std::move(members));
  }
  awaitable<result<std::optional<sample>>> next() override { co_return co_await samples_->next(); }
  std::int64_t offset() const override {
    const auto held = samples_->held();
    return held ? held->offset : members_->reader().offset();
  }
  std::int64_t given() const override {
    const auto held = samples_->held();
    return held ? held->given : members_->reader().given();
  }
  bool is_broken() const override {
    return members_->reader().is_broken() && !samples_->has_unread();
  }

 private:
  one_shard* members_;
  std::unique_ptr<group_stream> samples_;
};

class tar_source final : public sample_source {
 public:
  tar_source(const untar_options& options, std::shared_ptr<const shard_head> had)
      : options_(std::make_shared<const untar_options>(options)), had_(std::move(had)) {}

  std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                      const lane_cursor& at) const override {
    lane.untar = options_;
    return std::make_unique<tar_reader>(lane, which, at, had_ ? *had_ : shard_head());
  }
  // It asks for no bytes behind the end, and passes over members without collecting them.
  bool keeps_bounds() const override { return true; }

 private:
  std::shared_ptr<const untar_options> options_;
  std::shared_ptr<const shard_head> had_;
};

}  // namespace

std::shared_ptr<const sample_source> tar_samples(const untar_options& options,
                                                 std::shared_ptr<const shard_head> had) {
  return std::make_shared<tar_source>(options, std::move(had));
}

lane_stage<tar_member, sample> group_by_key() {
  return {"group_by_key",
          [](lane_context& lane,
             std::unique_ptr<stream<tar_member>> members) -> std::unique_ptr<stream<sample>> {
            return std::make_unique<group_stream>(lane, std::move(members));
          }};
}

}  // namespace millrace
