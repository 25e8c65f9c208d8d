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
    for (;;) {
      if (std::exchange(owes_end_, false)) co_return std::optional<sample>();
      if (owed_error_) co_return *std::exchange(owed_error_, std::nullopt);
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
    // The sample being put together and the member behind it are read again.
    if (const auto at = held()) {
      const std::int64_t epoch = building_ ? building_->where.epoch : carried_->first.epoch;
      to.put(cursor_, cursor_record::of(epoch, *at));
    }
    const auto left_out = left_out_key_ ? fingerprint(*left_out_key_) : 0;
    to.put(id_, {owes_end_ ? 1 : 0, static_cast<std::int64_t>(left_out)});
  }
  void restore(const state& from) override {
    members_->restore(from);
    const auto* r = from.find(id_);
    owes_end_ = r != nullptr && r->size() == 2 && r->front() != 0;
    left_out_before_ = r != nullptr && r->size() == 2 ? static_cast<std::uint64_t>((*r)[1]) : 0;
  }

 private:
  std::optional<error> begin_with(std::pair<tar_member, key_and_extension> first) {
    auto& [member, name] = first;
    building_.emplace();
    building_->key = std::move(name.key);
    building_->url = member.url;
    building_->where = {
        .lane = lane_.lane, .shard = member.shard, .offset = member.offset, .epoch = member.epoch};
    draw_ = member.draw;
    number_ = member.number;
    left_out_key_.reset();
    left_out_before_ = 0;
    return add(std::move(member), std::move(name.extension));
  }

  std::optional<error> add(tar_member member, std::string extension) {
    if (building_->find(extension) != nullptr) {
      error twice = error(errc::duplicate_field,
                          fmt::format("two members with the extension '{}'", extension))
                        .at(*member.url)
                        .offset(static_cast<std::uint64_t>(member.offset))
                        .key(building_->key)
                        .skippable();
      leave_out(building_->key, draw_);
      drop();
      return twice;
    }
    if (member.copied) held_bytes_ += member.data.size();
    count_held();
    building_->fields.push_back({std::move(extension), std::move(member.data)});
    return std::nullopt;
  }

  // The extension of a member of the sample being put together.
  std::optional<std::string_view> belongs(const tar_member& member) const {
    if (!building_ || member.draw != draw_ || member.epoch != building_->where.epoch) return {};
    return extension_behind(building_->key, member.name);
  }

  // Later members of a sample that is left out for a duplicate.
  bool is_left_out(const key_and_extension& name, const tar_member& member) const {
    if (left_out_before_ != 0 && left_out_before_ == fingerprint(name.key)) return true;
    return left_out_key_ == name.key &&
           (left_out_draw_ == member.draw || left_out_draw_ == any_draw);
  }

  // The first sample behind damage may have begun before it. It is taken for whole where it has the
  // fields of the last one before.
  bool is_half() {
    std::vector<std::string> extensions;
    for (const field& f : building_->fields) extensions.push_back(f.extension);
    std::ranges::sort(extensions);
    if (std::exchange(is_suspect_, false) && extensions != usual_extensions_) return true;
    usual_extensions_ = std::move(extensions);
    return false;
  }

  outcome finished() {
    if (building_ && lane_.untar->resync && is_half()) {
      const sample half = *std::exchange(building_, std::nullopt);
      drop();
      return error(errc::truncated,
                   "the sample behind the damage has other fields than the last one before it: it "
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
    if (broken && member_alone) leave_out(broken->key, building_ && !ends_here ? draw_ : any_draw);
    if (ends_here) {
      owed_error_ = std::move(why);
      auto out = finished();
      is_suspect_ = !member_alone;
      return out;
    }
    is_suspect_ = !member_alone;
    if (building_ && why.sample_key().empty()) why.key(building_->key);
    drop();
    return why;
  }

  void leave_out(std::string key, std::int64_t draw) {
    left_out_key_ = std::move(key);
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
        carried_ && carried_->first.copied ? carried_->first.data.size() : 0;
    const std::size_t now = held_bytes_ + carried;
    if (now == counted_held_) return;
    *lane_.held_by_groups += now - std::exchange(counted_held_, now);
  }

  lane_context& lane_;
  std::string cursor_;
  std::string id_;
  std::unique_ptr<stream<tar_member>> members_;
  bool owes_end_ = false;
  std::optional<error> owed_error_;
  std::optional<sample> building_;
  std::size_t held_bytes_ = 0;  // of its members that are copies
  std::size_t counted_held_ = 0;
  std::int64_t draw_ = 0;
  std::int64_t number_ = 0;  // of the sample being put together, in its draw
  std::uint64_t left_out_before_ =
      0;  // the key left out when the state was saved, as a fingerprint
  std::optional<std::pair<tar_member, key_and_extension>> carried_;  // begins the next sample
  std::optional<std::string> left_out_key_;
  std::int64_t left_out_draw_ = 0;
  bool is_suspect_ = false;  // the sample being put together stands behind damage
  std::vector<std::string> usual_extensions_;
};

}  // namespace

namespace {

// The members of one shard as a stream that ends with the shard.
class one_shard final : public stream<tar_member> {
 public:
  one_shard(lane_context& lane, const shard_ref& which, const lane_cursor& at)
      : reader_(lane, which, static_cast<std::uint64_t>(std::max(at.offset, which.begin)),
                at.given) {}
  awaitable<outcome> next() override { co_return co_await reader_.next(); }
  void save(state& /*to*/) const override {}
  void restore(const state& /*from*/) override {}
  const shard_reader& reader() const { return reader_; }

 private:
  shard_reader reader_;
};

class tar_reader final : public sample_reader {
 public:
  tar_reader(lane_context& lane, const shard_ref& which, const lane_cursor& at) {
    auto members = std::make_unique<one_shard>(lane, which, at);
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
  explicit tar_source(const untar_options& options)
      : options_(std::make_shared<const untar_options>(options)) {}

  std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                      const lane_cursor& at) const override {
    lane.untar = options_;
    return std::make_unique<tar_reader>(lane, which, at);
  }

 private:
  std::shared_ptr<const untar_options> options_;
};

}  // namespace

std::shared_ptr<const sample_source> tar_samples(const untar_options& options) {
  return std::make_shared<tar_source>(options);
}

lane_stage<tar_member, sample> group_by_key() {
  return {"group_by_key",
          [](lane_context& lane,
             std::unique_ptr<stream<tar_member>> members) -> std::unique_ptr<stream<sample>> {
            return std::make_unique<group_stream>(lane, std::move(members));
          }};
}

}  // namespace millrace
