#include "pipeline/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace millrace {

std::optional<key_and_extension> split_name(std::string_view name) {
  // The regular expression of WebDataset is ^((?:.*/|)[^.]+)[.]([^/]*)$ with greedy `.*/`. The
  // first dot of the last component splits, unless nothing but a folder stands before it: then
  // [^.]+ is matched by the end of the folder itself ("dir/.hidden" has the key "dir/").
  const auto slash = name.rfind('/');
  const auto base = slash == name.npos ? 0 : slash + 1;
  const auto dot = name.find('.', base);
  if (dot == name.npos || dot == 0) return std::nullopt;
  if (dot == base && !std::ranges::any_of(name.substr(0, base), [](char c) { return c != '.'; })) {
    return std::nullopt;
  }
  if (name.find('\n') != name.npos) return std::nullopt;  // `.` matches no line feed
  std::string extension(name.substr(dot + 1));
  std::ranges::transform(extension, extension.begin(), [](unsigned char c) {
    return static_cast<char>(c < 0x80 ? std::tolower(c) : c);
  });
  return key_and_extension{std::string(name.substr(0, dot)), std::move(extension)};
}

namespace {

class group_stream final : public stream<sample> {
 public:
  group_stream(lane_context& lane, std::unique_ptr<stream<tar_member>> members)
      : lane_(lane),
        cursor_(lane.id("cursor")),
        id_(lane.id("group")),
        members_(std::move(members)) {}

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
      auto name = split_name((*member)->name);
      if (!name) continue;
      const bool same = building_ && name->key == building_->key && (*member)->draw == draw_ &&
                        (*member)->epoch == building_->where.epoch;
      if (!same && building_) {
        carried_.emplace(std::move(**member), std::move(*name));
        co_return finished();
      }
      if (!same && is_left_out(*name, **member)) continue;
      if (!same) {
        carried_.emplace(std::move(**member), std::move(*name));
        continue;
      }
      if (auto failed = add(std::move(**member), std::move(name->extension))) co_return *failed;
    }
  }

  void save(state& to) const override {
    members_->save(to);
    // The sample being put together and the member behind it are read again.
    if (building_) {
      to.put(cursor_, {building_->where.epoch, draw_, building_->where.offset});
    } else if (carried_) {
      to.put(cursor_, {carried_->first.epoch, carried_->first.draw, carried_->first.offset});
    }
    to.put(id_, {owes_end_ ? 1 : 0});
  }
  void restore(const state& from) override {
    members_->restore(from);
    const auto* r = from.find(id_);
    owes_end_ = r != nullptr && r->size() == 1 && r->front() != 0;
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
    left_out_key_.reset();
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
      left_out_key_ = building_->key;
      left_out_draw_ = draw_;
      drop();
      return twice;
    }
    if (member.copied) lane_.held_by_group += member.data.size();
    building_->fields.push_back({std::move(extension), std::move(member.data)});
    return std::nullopt;
  }

  // Later members of a sample that is left out for a duplicate.
  bool is_left_out(const key_and_extension& name, const tar_member& member) const {
    return left_out_key_ == name.key && left_out_draw_ == member.draw;
  }

  std::optional<sample> finished() {
    std::optional<sample> whole = std::move(building_);
    drop();
    return whole;
  }

  // The shard is broken. The sample being put together is whole when the member that broke has
  // another key, and comes out before the error; else it is left out.
  outcome broken_by(error why) {
    const auto broken = split_name(why.sample_key());
    if (building_ && broken && broken->key != building_->key) {
      owed_error_ = std::move(why);
      return finished();
    }
    if (building_ && why.sample_key().empty()) why.key(building_->key);
    drop();
    return why;
  }

  void drop() {
    building_.reset();
    lane_.held_by_group = 0;
  }

  lane_context& lane_;
  std::string cursor_;
  std::string id_;
  std::unique_ptr<stream<tar_member>> members_;
  bool owes_end_ = false;
  std::optional<error> owed_error_;
  std::optional<sample> building_;
  std::int64_t draw_ = 0;
  std::optional<std::pair<tar_member, key_and_extension>> carried_;  // begins the next sample
  std::optional<std::string> left_out_key_;
  std::int64_t left_out_draw_ = 0;
};

}  // namespace

lane_stage<tar_member, sample> group_by_key() {
  return {"group_by_key",
          [](lane_context& lane,
             std::unique_ptr<stream<tar_member>> members) -> std::unique_ptr<stream<sample>> {
            return std::make_unique<group_stream>(lane, std::move(members));
          }};
}

}  // namespace millrace
