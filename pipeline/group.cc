#include "pipeline/group.h"

#include <fmt/format.h>

#include <algorithm>

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

std::optional<std::string_view> extension_behind(std::string_view key, std::string_view name) {
  if (!name.starts_with(key) || name.size() == key.size() || name[key.size()] != '.') return {};
  const auto extension = name.substr(key.size() + 1);
  return extension.find('/') == extension.npos ? std::optional(extension) : std::nullopt;
}

namespace {

constexpr std::int64_t any_draw = -1;

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
        const owed_error owed = *std::exchange(owed_, std::nullopt);
        failed_ = owed.at;
        co_return owed.why;
      }
      if (carried_) {
        auto failed = begin_with(*std::exchange(carried_, std::nullopt));
        if (failed) co_return *failed;
      }
      auto member = co_await members_->next();
      if (!member) co_return broken_by(member.error());
      if (!*member) {
        owes_end_ = building_.has_value();  // the epoch ends behind its last sample
        co_return finished();
      }
      if ((*member)->ends_archive) {
        if (building_) co_return finished();
        continue;
      }
      if (const auto extension = belongs(**member)) {
        std::string lower = lower_case(*extension);
        if (auto failed = add(std::move(**member), std::move(lower))) co_return *failed;
        continue;
      }
      auto name = split_name((*member)->name);
      if (!name) {
        ++lane_.run.counts.without_key;
        continue;
      }
      if (!building_ && is_left_out(*name, **member)) continue;
      carried_.emplace(std::move(**member), std::move(*name));
      count_held();
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

  void save(state& to) const override {
    members_->save(to);
    const place at = failed_ ? *failed_ : owed_ ? owed_->at : now();
    if (at.held) to.put(cursor_, cursor_record::of(at.epoch, *at.held));
    to.put(id_, {owes_end_ ? 1 : 0, static_cast<std::int64_t>(at.left_out), at.after_damage ? 1 : 0,
                 static_cast<std::int64_t>(at.usual)});
  }
  void restore(const state& from) override {
    members_->restore(from);
    const auto* r = from.find(id_);
    if (r == nullptr) return;
    const auto value = [r](std::size_t i) { return i < r->size() ? (*r)[i] : 0; };
    owes_end_ = value(0) != 0;
    left_out_ = static_cast<std::uint64_t>(value(1));
    left_out_draw_ = any_draw;
    next_after_damage_ = value(2) != 0;
    usual_ = static_cast<std::uint64_t>(value(3));
  }

 private:
  // What a state says: the sample being put together and the member behind it are read again.
  struct place {
    std::optional<lane_cursor> held;
    std::int64_t epoch = 0;
    std::uint64_t left_out = 0;  // as left_out_
    bool after_damage = false;   // the sample that is held
    std::uint64_t usual = 0;     // as usual_
  };
  struct owed_error {
    error why;
    place at;  // before it
  };
  place now() const {
    place out{.held = held(), .epoch = 0, .left_out = left_out_, .usual = usual_};
    if (out.held) out.epoch = building_ ? building_->where.epoch : carried_->first.epoch;
    out.after_damage = building_ ? after_damage_ : is_next_after_damage();
    return out;
  }
  bool is_next_after_damage() const {
    return next_after_damage_ || (carried_ && carried_->first.after_damage);
  }

  std::optional<error> begin_with(std::pair<tar_member, key_and_extension> first) {
    auto& [member, name] = first;
    building_.emplace();
    building_->key = std::move(name.key);
    names_ = building_->key.size();
    building_->url = member.url;
    building_->where = {
        .lane = lane_.lane, .shard = member.shard, .offset = member.offset, .epoch = member.epoch};
    draw_ = member.draw;
    number_ = member.number;
    after_damage_ = std::exchange(next_after_damage_, false) || member.after_damage;
    left_out_ = 0;
    return add(std::move(member), std::move(name.extension));
  }

  std::optional<error> add(tar_member member, std::string extension) {
    names_ += extension.size();
    if (building_->fields.size() == most_fields || names_ > most_name_bytes) {
      return left_out(
          member, errc::too_large,
          building_->fields.size() == most_fields
              ? fmt::format("a sample of more than {} fields", most_fields)
              : fmt::format("a sample with names of more than {} bytes", most_name_bytes));
    }
    if (building_->find(extension) != nullptr) {
      return left_out(member, errc::duplicate_field,
                      fmt::format("two members with the extension '{}'", extension));
    }
    if (member.copied) held_bytes_ += charge_of(member.data.size());
    count_held();
    building_->fields.push_back({std::move(extension), std::move(member.data)});
    return std::nullopt;
  }

  // The sample being put together is left out, because of `member`.
  error left_out(const tar_member& member, errc kind, std::string what) {
    error why = error(kind, std::move(what))
                    .at(*member.url)
                    .offset(static_cast<std::uint64_t>(member.offset))
                    .key(building_->key)
                    .skippable();
    failed_ = now();
    leave_out(why, building_->key, draw_);
    drop();
    return why;
  }

  // The extension of a member of the sample being put together.
  std::optional<std::string_view> belongs(const tar_member& member) const {
    if (!building_ || member.draw != draw_ || member.epoch != building_->where.epoch) return {};
    return extension_behind(building_->key, member.name);
  }

  // Later members of a sample that is left out for a duplicate, or for a member alone.
  bool is_left_out(const key_and_extension& name, const tar_member& member) const {
    return left_out_ != 0 && left_out_ == fingerprint(name.key, fingerprint(*member.url)) &&
           (left_out_draw_ == member.draw || left_out_draw_ == any_draw);
  }

  // The first sample behind damage may have begun before it. It is taken for whole where it has the
  // fields of the last one before.
  bool is_half() {
    std::vector<std::string> extensions;
    for (const field& f : building_->fields) extensions.push_back(f.extension);
    std::ranges::sort(extensions);
    std::uint64_t these = fingerprint("");
    for (const std::string& e : extensions) these = fingerprint(e + "\n", these);
    if (after_damage_ && these != usual_) return true;
    usual_ = these;
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
  // broke has another key, and comes out before the error; else it is left out.
  outcome broken_by(error why) {
    const auto broken = split_name(why.sample_key());
    const bool ends_here = building_ && broken && broken->key != building_->key;
    // Where a member alone is broken, what else there is of its sample is left out as well. Where
    // it is not known which, what follows behind the damage may be the rest of a sample.
    const bool member_alone = why.kind() == errc::bad_field || why.kind() == errc::too_large;
    if (ends_here) {
      auto out = finished();
      owed_ = {std::move(why), now()};
      if (member_alone) leave_out(owed_->why, broken->key, any_draw);
      return out;
    }
    failed_ = now();
    if (broken && member_alone) leave_out(why, broken->key, building_ ? draw_ : any_draw);
    if (building_ && why.sample_key().empty()) why.key(building_->key);
    drop();
    return why;
  }

  // What else there is of this sample in the shard where it failed.
  void leave_out(const error& why, const std::string& key, std::int64_t draw) {
    left_out_ = fingerprint(key, why.where_fingerprint());
    left_out_draw_ = draw;
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
  std::uint64_t left_out_ = 0;  // URL and key of the sample that is left out, as a fingerprint
  std::int64_t left_out_draw_ = any_draw;
  bool after_damage_ = false;       // the sample being put together
  bool next_after_damage_ = false;  // the first one, by the state
  std::uint64_t usual_ = 0;  // the extensions of the last whole sample, as a fingerprint; 0: none
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
  bool is_broken() const override { return members_->reader().is_broken(); }

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
