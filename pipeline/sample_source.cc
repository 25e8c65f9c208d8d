#include "pipeline/sample_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

namespace millrace {
namespace {

class read_stream final : public stream<sample> {
 public:
  read_stream(lane_context& lane, std::unique_ptr<stream<shard_ref>> shards,
              std::shared_ptr<const sample_source> source)
      : lane_(lane),
        cursor_(lane.id("cursor")),
        shards_(std::move(shards)),
        source_(std::move(source)) {}

  awaitable<outcome> next() override {
    for (;;) {
      if (!reader_) {
        auto shard = co_await shards_->next();
        if (!shard) co_return shard.error();
        if (!*shard) co_return std::optional<sample>();
        current_ = **shard;
        reader_ = source_->open(lane_, current_, std::exchange(start_, {}));
      }
      auto found = co_await reader_->next();
      if (found && *found) co_return found;
      if (found || reader_->is_broken()) reader_.reset();
      if (!found) co_return found.error();
    }
  }

  void save(state& to) const override {
    shards_->save(to);
    if (reader_) {
      to.put(cursor_, cursor_record::of(current_.epoch, {.draw = current_.draw,
                                                         .offset = reader_->offset(),
                                                         .given = reader_->given()}));
    } else if (start_.offset > 0) {  // restored, and not asked for anything yet
      const auto [epoch, next] = cursor_record::in(to, cursor_);
      to.put(cursor_, cursor_record::of(epoch, {next.draw, start_.offset, start_.given}));
    }
  }
  void restore(const state& from) override {
    shards_->restore(from);
    start_ = cursor_record::in(from, cursor_).second;
  }

 private:
  lane_context& lane_;
  std::string cursor_;
  std::unique_ptr<stream<shard_ref>> shards_;
  std::shared_ptr<const sample_source> source_;
  shard_ref current_;
  lane_cursor start_;
  std::unique_ptr<sample_reader> reader_;
};

// One file as one sample. Its offset is 0 before it is given, and 1 behind.
class file_reader_as_sample final : public sample_reader {
 public:
  file_reader_as_sample(lane_context& lane, const shard_ref& which, bool given, std::string key,
                        std::string extension, bytes label)
      : lane_(lane),
        which_(which),
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
    out.where = {.lane = lane_.lane, .shard = which_.shard, .epoch = which_.epoch};
    out.fields.push_back({extension_, std::move(*content)});
    out.fields.push_back({"cls", label_});
    co_return std::optional(std::move(out));
  }
  std::int64_t offset() const override { return given_ ? 1 : 0; }
  std::int64_t given() const override { return given_ ? 1 : 0; }
  bool is_broken() const override { return broken_; }

 private:
  // In one piece: the read buffer itself where the file fits into it.
  awaitable<result<bytes>> whole_file() {
    auto opened = co_await lane_.run.sources.open(lane_.source(), *url_);
    if (!opened) co_return opened.error();
    auto first = co_await (*opened)->read();
    if (!first || first->empty()) co_return first;
    auto more = co_await (*opened)->read();
    if (!more) co_return more.error();
    if (more->empty()) co_return first;
    // Put together first: its size is not known, and read buffers that are held are not read into.
    std::vector<std::byte> content(first->data(), first->data() + first->size());
    first = bytes();
    while (!more->empty()) {
      const auto piece = more->span();
      if (content.size() + piece.size() > lane_.members->limit()) co_return too_large();
      content.insert(content.end(), piece.begin(), piece.end());
      more = co_await (*opened)->read();
      if (!more) co_return more.error();
    }
    auto whole = co_await lane_.members->acquire(content.size());
    if (!whole) co_return whole.error();
    std::memcpy(whole->data(), content.data(), content.size());
    co_return std::move(*whole).freeze(content.size());
  }

  error too_large() const {
    return error(errc::too_large, fmt::format("a file of more than {}, which is what the budget "
                                              "leaves for one lane's samples",
                                              format_bytes(lane_.members->limit())))
        .at(*url_)
        .hint("raise MILLRACE_MEMORY or lower the number of lanes");
  }

  lane_context& lane_;
  shard_ref which_;
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
  }

  std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                      const lane_cursor& at) const override {
    const std::string& path = (*lane.shards)[static_cast<std::size_t>(which.shard)];
    const std::string_view name = std::string_view(path).substr(root_.size());
    const auto dot = name.rfind('.');
    const std::string_view folder = name.substr(0, name.find('/'));
    const auto label = std::ranges::lower_bound(classes_, folder) - classes_.begin();
    std::string extension(name.substr(dot + 1));
    for (char& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    return std::make_unique<file_reader_as_sample>(
        lane, which, at.offset > 0, std::string(name.substr(0, dot)), std::move(extension),
        labels_[static_cast<std::size_t>(label)]);
  }

 private:
  std::string root_;  // with a '/' at its end
  std::vector<std::string> classes_;
  std::vector<bytes> labels_;
};

}  // namespace

lane_stage<shard_ref, sample> read_samples(std::shared_ptr<const sample_source> source) {
  return {"read_samples",
          [source = std::move(source)](
              lane_context& lane,
              std::unique_ptr<stream<shard_ref>> shards) -> std::unique_ptr<stream<sample>> {
            lane.format = source;
            return std::make_unique<read_stream>(lane, std::move(shards), source);
          }};
}

class_folders::class_folders(const std::string& where) : root(where) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(root)) throw failure(error(errc::not_found, "no such folder").at(root));
  if (!root.ends_with('/')) root += '/';
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && !name.starts_with('.')) classes.push_back(name);
  }
  std::ranges::sort(classes);
  for (const std::string& c : classes) {
    for (const auto& entry : fs::recursive_directory_iterator(root + c)) {
      const std::string name = entry.path().filename().string();
      const auto dot = name.rfind('.');
      if (!entry.is_regular_file() || dot == 0 || dot == name.npos) continue;
      files.push_back(entry.path().string());
    }
  }
  if (files.empty()) {
    throw failure(
        error(errc::no_samples, "the folder has no class folders with files in them").at(where));
  }
  std::ranges::sort(files);
}

std::shared_ptr<const sample_source> folder_samples(const class_folders& tree) {
  return std::make_shared<folder_source>(tree);
}

lane_plan<sample> raw_samples(const class_folders& tree, const shard_list_options& options) {
  return shards(tree.files, options) | read_samples(folder_samples(tree));
}

}  // namespace millrace
