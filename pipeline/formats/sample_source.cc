#include "pipeline/formats/sample_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "engine/base/fingerprint.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/coroutines/scope.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/state/records.h"

namespace millrace {
namespace {

void check_made(const std::unique_ptr<sample_reader>& reader) {
  if (reader) return;
  throw failure(error(errc::usage, "a sample_source opened no reader")
                    .hint("return one from open(), and report errors from its next()"));
}

// Adds the shard that was being read to an error of a format.
error named(error why, const std::string& url) {
  if (why.where().empty() && why.kind() != errc::stopped) why.at(url);
  return why;
}

constexpr const char* format_name = "the sample_source";

// Limits a reader that ignores bounds to a part of its shard, and names the shard in what the
// reader throws.
class bounded_reader final : public sample_reader {
 public:
  bounded_reader(const sample_source& source, lane_context& lane, const shard_ref& which,
                 const lane_cursor& at)
      : lane_(lane),
        which_(which),
        first_(std::max(at.offset, which.begin)),
        given_(at.given),
        to_skip_(at.given > 0 || at.offset > which.begin ? 0 : which.skip) {
    const shard_ref whole{.shard = which.shard, .draw = which.draw, .epoch = which.epoch};
    inner_ = source.open(lane, whole,
                         {.draw = at.draw,
                          .offset = first_,
                          .given = at.given,
                          .before = at.before,
                          .head = at.head});
    check_made(inner_);
  }

  awaitable<result<std::optional<sample>>> next() override {
    for (;;) {
      if (lane_.run.is_stopped()) co_return run_stopped();
      const bool all_given = which_.samples >= 0 && given_ >= which_.samples;
      const bool looks_on = ends_with_shard(lane_, which_);
      if (all_given && !looks_on) co_return std::optional<sample>();
      result<std::optional<sample>> found = std::optional<sample>();
      std::exception_ptr thrown;
      try {
        found = co_await inner_->next();
      } catch (...) {
        thrown = std::current_exception();
      }
      if (thrown) found = co_await error_unless_stopped(std::move(thrown), format_name);
      if (!found) {
        found = named(found.error(), *url());
        if (all_given || !found.error().is_skippable() || inner_->is_broken()) co_return found;
        if (to_skip_ > 0) {
          --to_skip_;  // it belongs to another lane
          continue;
        }
        ++given_;
        co_return found;
      }
      const bool is_after_end = *found && which_.end > 0 && (*found)->where.offset >= which_.end;
      const bool at_end = !*found || (is_after_end && !(all_given && looks_on));
      if (at_end && which_.samples > given_) co_return differs("fewer");
      if (at_end) co_return std::optional<sample>();
      if (all_given) {
        error more = differs("more");
        co_return more.offset(static_cast<std::uint64_t>((*found)->where.offset))
            .key((*found)->key);
      }
      origin& where = (*found)->where;
      if (to_skip_ > 0) {
        --to_skip_;
        continue;
      }
      where.lane = lane_.lane;
      where.shard = which_.shard;
      where.epoch = which_.epoch;
      if (!(*found)->url) (*found)->url = url();
      ++given_;
      co_return found;
    }
  }
  // If not all of `skip` has been skipped, a resumed reader skips it again.
  std::int64_t offset() const override { return to_skip_ > 0 ? first_ : inner_->offset(); }
  std::int64_t given() const override { return given_; }
  seen_before before() const override { return inner_->before(); }
  shard_head head() const override { return inner_->head(); }
  void leave_failed() override { inner_->leave_failed(); }
  bool is_broken() const override { return differs_ || inner_->is_broken(); }

 private:
  error differs(std::string_view how) {
    differs_ = true;
    return differs_from_index(which_, *url(), how);
  }

  std::shared_ptr<const std::string> url() {
    if (!url_) {
      url_ = std::make_shared<const std::string>(
          (*lane_.shards)[static_cast<std::size_t>(which_.shard)]);
    }
    return url_;
  }

  lane_context& lane_;
  shard_ref which_;
  std::int64_t first_;
  std::int64_t given_;
  std::int64_t to_skip_;
  bool differs_ = false;
  std::unique_ptr<sample_reader> inner_;
  std::shared_ptr<const std::string> url_;
};

class read_stream final : public stream<sample> {
 public:
  read_stream(lane_context& lane, std::unique_ptr<stream<shard_ref>> shards,
              std::shared_ptr<const sample_source> source)
      : lane_(lane),
        cursor_(lane.id(cursor_record::name)),
        group_(lane.id(group_record::name)),
        head_(lane.id(shard_head::record)),
        shards_(std::move(shards)),
        source_(std::move(source)) {}

  awaitable<outcome> next() override {
    for (;;) {
      read_stream::leave_failed();
      if (lane_.run.is_stopped()) co_return run_stopped();
      if (std::exchange(owes_end_, false)) co_return std::optional<sample>();
      if (!reader_) {
        auto shard = co_await shards_->next();
        if (!shard) co_return shard.error();
        if (!*shard) co_return std::optional<sample>();
        current_ = **shard;
        opening_ = true;
        // A shard that is read from its first byte may have been replaced.
        if (start_.offset == 0) start_.head = {};
        reader_ = open_within(*source_, lane_, current_, start_);
        opening_ = false;
      }
      before_ = place();
      result<std::optional<sample>> found = std::optional<sample>();
      std::exception_ptr thrown;
      try {
        found = co_await reader_->next();
      } catch (...) {
        thrown = std::current_exception();
      }
      if (thrown) found = co_await error_unless_stopped(std::move(thrown), format_name);
      if (!found) {
        error why = named(found.error(), (*lane_.shards)[static_cast<std::size_t>(current_.shard)]);
        const bool gave_none = before_->given == 0 && before_->before.told == 0;
        if (gave_none && reader_->is_broken() && loses_shard(why, current_, lane_.index.get()))
          why.whole_shard();
        co_return why;
      }
      before_.reset();
      if (*found) {
        ++lane_.drawn->items;
        co_return found;
      }
      leave_shard();
    }
  }

  void leave_failed() override {
    if (std::exchange(opening_, false)) start_ = {.before = start_.before};
    if (before_) reader_->leave_failed();
    if (before_ && reader_->is_broken()) leave_shard();
    before_.reset();
  }

  void save(state& to) const override {
    shards_->save(to);
    lane_cursor at = start_;
    if (opening_) {
      at.draw = current_.draw;
    } else if (reader_) {
      at = before_ ? reader_->in_front().value_or(*before_) : place();
      at.draw = current_.draw;
    }
    group_record{.owes_end = owes_end_, .before = at.before}.put(to, group_);
    (reader_ ? reader_->head() : start_.head).put(to, head_);
    if (opening_ || reader_) {
      to.put(cursor_, cursor_record::of(current_.epoch, at));
    } else {
      cursor_record::put_restored(to, cursor_, at);
    }
  }
  void restore(const state& from) override {
    shards_->restore(from);
    start_ = cursor_record::in(from, cursor_).second;
    start_.head = shard_head::in(from, head_);
    const auto group = group_record::in(from, group_);
    owes_end_ = group.owes_end;
    start_.before = group.before;
    if (start_.offset == 0) start_.before.damage = false;  // it was in the shard before
  }

 private:
  lane_cursor place() const {
    return {.draw = current_.draw,
            .offset = reader_->offset(),
            .given = reader_->given(),
            .before = reader_->before()};
  }
  void leave_shard() {
    start_ = {.before = reader_->before()};
    start_.before.damage = false;  // these concern that shard only
    start_.before.told = 0;
    reader_.reset();
  }

  lane_context& lane_;
  std::string cursor_;
  std::string group_;
  std::string head_;
  std::unique_ptr<stream<shard_ref>> shards_;
  std::shared_ptr<const sample_source> source_;
  shard_ref current_;
  lane_cursor start_;      // of the next reader
  bool owes_end_ = false;  // an end of epoch, by a state of an older version
  bool opening_ = false;   // a reader of the current shard is being made; stays true if that throws
  std::unique_ptr<sample_reader> reader_;
  std::optional<lane_cursor> before_;  // before the sample that is being read, or that failed
};

// One file as one sample. Its offset is 0 before it is given, and 1 after.
class file_reader_as_sample final : public sample_reader {
 public:
  file_reader_as_sample(lane_context& lane, const shard_ref& which, bool given, std::string key,
                        std::string extension, bytes label)
      : lane_(lane),
        given_(given),
        key_(std::move(key)),
        extension_(std::move(extension)),
        label_(std::move(label)),
        url_(std::make_shared<const std::string>(
            (*lane.shards)[static_cast<std::size_t>(which.shard)])) {}

  awaitable<result<std::optional<sample>>> next() override {
    if (std::exchange(given_, true)) co_return std::optional<sample>();
    auto content = co_await whole_file();
    if (!content) {
      broken_ = true;
      co_return error(content.error()).key(key_).skippable();
    }
    sample out{.key = key_, .fields = {}, .where = {}, .url = url_};
    out.fields.push_back({extension_, std::move(*content)});
    out.fields.push_back({"cls", label_});
    co_return std::optional(std::move(out));
  }
  std::int64_t offset() const override { return given_ ? 1 : 0; }
  std::int64_t given() const override { return given_ ? 1 : 0; }
  bool is_broken() const override { return broken_; }

 private:
  // Returns the file in one piece: the read buffer itself if the file fits into it.
  awaitable<result<bytes>> whole_file() {
    auto opened = co_await lane_.run.sources.open(lane_.source(), *url_);
    if (!opened) co_return opened.error();
    auto first = co_await (*opened)->read();
    if (!first || first->empty()) co_return first;
    auto more = co_await (*opened)->read();
    if (!more) co_return more.error();
    if (more->empty()) co_return first;
    // Collected first: the size is unknown, and read buffers that are held cannot be read into.
    std::vector<std::byte> content(first->data(), first->data() + first->size());
    first = bytes();
    while (!more->empty()) {
      const auto piece = more->span();
      if (content.size() + piece.size() > lane_.memory.members->limit()) co_return too_large();
      content.insert(content.end(), piece.begin(), piece.end());
      more = co_await (*opened)->read();
      if (!more) co_return more.error();
    }
    auto whole = co_await lane_.memory.members->acquire(content.size());
    if (!whole) co_return whole.error();
    std::memcpy(whole->data(), content.data(), content.size());
    co_return std::move(*whole).freeze(content.size());
  }

  error too_large() const {
    return error(errc::too_large, fmt::format("a file of more than {}, which is what the budget "
                                              "leaves for one lane's samples",
                                              format_bytes(lane_.memory.members->limit())))
        .at(*url_)
        .hint("raise engine_options.memory_bytes (MILLRACE_MEMORY) or lower the number of lanes");
  }

  lane_context& lane_;
  bool given_;
  bool broken_ = false;
  std::string key_;
  std::string extension_;
  bytes label_;
  std::shared_ptr<const std::string> url_;
};

class folder_source final : public sample_source {
 public:
  explicit folder_source(const class_folders& tree) : root_(tree.root), classes_(tree.classes) {
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      labels_.push_back(owned_bytes(std::to_string(c)));
    }
    // Classes with files are covered by the list of files.
    if (tree.empty().empty()) return;
    identity_ = fingerprint("");
    for (const std::string& name : classes_) identity_ = fingerprint(name + "\n", identity_);
  }

  std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                      const lane_cursor& at) const override {
    const std::string& path = (*lane.shards)[static_cast<std::size_t>(which.shard)];
    const std::string_view name = std::string_view(path).substr(root_.size());
    const auto dot = name.rfind('.');
    const std::string_view folder = name.substr(0, name.find('/'));
    const auto label = std::ranges::lower_bound(classes_, folder) - classes_.begin();
    return std::make_unique<file_reader_as_sample>(
        lane, which, at.offset > 0, std::string(name.substr(0, dot)),
        lowered(path.substr(path.rfind('.') + 1)), labels_[static_cast<std::size_t>(label)]);
  }
  std::uint64_t identity() const override { return identity_; }

 private:
  std::string root_;  // with a '/' at its end
  std::vector<std::string> classes_;
  std::vector<bytes> labels_;
  std::uint64_t identity_ = 0;
};

}  // namespace

error differs_from_index(const shard_ref& which, const std::string& url, std::string_view how) {
  return error(errc::integrity,
               fmt::format("the shard has {} samples than the index says; this lane was to read {}",
                           how, which.samples))
      .at(url)
      .hint(index_again_hint)
      .skippable();
}

bool ends_with_shard(const lane_context& lane, const shard_ref& which) {
  if (!lane.index || which.samples < 0) return false;
  const auto& shard = lane.index->shards[static_cast<std::size_t>(which.shard)];
  if (which.end > 0) return which.end == shard.blocks.back() * shard_index::block_bytes;
  return which.begin == 0 && which.skip + which.samples == shard.samples;
}

std::unique_ptr<sample_reader> open_within(const sample_source& source, lane_context& lane,
                                           const shard_ref& which, const lane_cursor& at) {
  try {
    if (!source.keeps_bounds()) return std::make_unique<bounded_reader>(source, lane, which, at);
    auto made = source.open(lane, which, at);
    check_made(made);
    return made;
  } catch (...) {
    throw failure(named(error_of(std::current_exception(), format_name),
                        (*lane.shards)[static_cast<std::size_t>(which.shard)]));
  }
}

lane_stage<shard_ref, sample> read_samples(std::shared_ptr<const sample_source> source) {
  if (!source) throw failure(error(errc::usage, "read_samples() without a sample_source"));
  return {.name = "read_samples",
          .wrap = [](lane_context& lane,
                     std::unique_ptr<stream<shard_ref>> shards) -> std::unique_ptr<stream<sample>> {
            return std::make_unique<read_stream>(lane, std::move(shards), lane.format);
          },
          .unchanged = true,
          .records = {{group_record::name, group_record::deal},
                      // Dropped: it is of the open shard, which the former lanes have begun.
                      {shard_head::record, [](const dealing&, state&) {}}},
          .format = source,
          .is_joinable = true};
}

std::shared_ptr<const sample_source> folder_samples(const class_folders& tree) {
  return std::make_shared<folder_source>(tree);
}

lane_plan<sample> raw_samples(const class_folders& tree, const shard_list_options& options) {
  return shards(tree.files, options) | read_samples(folder_samples(tree));
}

}  // namespace millrace
