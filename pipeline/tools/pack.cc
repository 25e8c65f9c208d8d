#include "pipeline/tools/pack.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/error.h"
#include "engine/log.h"
#include "engine/random.h"
#include "pipeline/images/jpeg.h"
#include "pipeline/images/jpeg_rewrite.h"
#include "pipeline/state.h"
#include "pipeline/tar_writer.h"
#include "pipeline/tools/names.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

struct packed_field {
  std::string extension;
  std::string path;  // empty: `text` is the content
  std::string text;
  std::uint64_t size = 0;
};
struct packed_sample {
  std::string key;
  std::vector<packed_field> fields;  // by extension
  std::uint64_t payload = 0;
};
struct shard_plan {
  std::size_t begin = 0;  // samples
  std::size_t end = 0;
  std::uint64_t payload = 0;
  std::uint64_t bytes = 0;  // of the archive, unless images are scaled
};
struct sample_list {
  std::vector<packed_sample> samples;
  std::uint64_t classes = 0;
};

struct file_name {
  std::string stem;  // path without what follows the last dot
  std::string extension;
};

std::optional<file_name> split_path(const std::string& path) {
  const auto slash = path.rfind('/');
  const auto base = slash == path.npos ? 0 : slash + 1;
  const auto dot = path.rfind('.');
  if (dot == path.npos || dot <= base || dot + 1 == path.size()) return std::nullopt;
  file_name out{path.substr(0, dot), path.substr(dot + 1)};
  for (char& c : out.extension) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  // Readers split a name at its first dot.
  std::ranges::replace(out.stem.begin() + static_cast<std::ptrdiff_t>(base), out.stem.end(), '.',
                       '_');
  return out;
}

std::uint64_t size_of(const std::string& path) {
  struct stat s{};
  if (stat(path.c_str(), &s) != 0 || !S_ISREG(s.st_mode)) {
    throw failure(error(errno == ENOENT ? errc::not_found : errc::io_failed, "cannot read the file")
                      .at(path)
                      .cause(errno));
  }
  return static_cast<std::uint64_t>(s.st_size);
}

// Puts files together to samples by their stems; in the order of the stems.
class sample_collector {
 public:
  void add(const std::string& path, const std::string& name, const std::string& label) {
    const auto split = split_path(name);
    if (!split) {
      ++without_extension_;
      return;
    }
    auto& fields = by_stem_[split->stem];
    const auto twice = std::ranges::find(fields, split->extension, &packed_field::extension);
    if (twice != fields.end()) {
      throw failure(error(errc::duplicate_field,
                          fmt::format("two files for the field '{}' of one sample, {} and {}",
                                      split->extension, twice->path, path))
                        .key(split->stem)
                        .hint("rename one of them"));
    }
    fields.push_back({split->extension, path, "", size_of(path)});
    if (!label.empty()) labels_[split->stem] = label;
  }

  std::vector<packed_sample> finish() {
    if (without_extension_ > 0) {
      log_notice(fmt::format("{} files have no extension and are left out", without_extension_));
    }
    std::vector<packed_sample> out;
    for (auto& [stem, fields] : by_stem_) {
      const bool has_class =
          std::ranges::find(fields, "cls", &packed_field::extension) != fields.end();
      const auto label = labels_.find(stem);
      if (!has_class && label != labels_.end()) {
        fields.push_back({"cls", "", label->second, label->second.size()});
      }
      std::ranges::sort(fields, {}, &packed_field::extension);
      packed_sample s{.key = stem, .fields = std::move(fields), .payload = 0};
      for (const packed_field& f : s.fields) s.payload += f.size;
      out.push_back(std::move(s));
    }
    return out;
  }

 private:
  std::map<std::string, std::vector<packed_field>> by_stem_;
  std::map<std::string, std::string> labels_;
  std::uint64_t without_extension_ = 0;
};

sample_list from_folder(const std::string& root) {
  if (!fs::is_directory(root)) {
    throw failure(error(errc::not_found, "no such folder").at(root));
  }
  std::vector<std::string> classes;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && !name.starts_with('.')) classes.push_back(name);
  }
  if (classes.empty()) {
    throw failure(error(errc::usage, "the folder has no folders, one for each class")
                      .at(root)
                      .hint("for files without classes write their list: @FILE"));
  }
  std::ranges::sort(classes);
  sample_collector collector;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(root) / classes[c])) {
      const std::string name = entry.path().filename().string();
      if (!entry.is_regular_file() || name.starts_with('.')) continue;
      const std::string path = entry.path().string();
      collector.add(path, fs::relative(entry.path(), root).string(), std::to_string(c));
    }
  }
  return {collector.finish(), classes.size()};
}

sample_list from_list(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw failure(error(errc::not_found, "cannot read the list").at(file).cause(errno));
  sample_collector collector;
  std::map<std::string, bool> classes;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    const auto tab = line.find('\t');
    const std::string path = line.substr(0, tab);
    const std::string label = tab == line.npos ? "" : line.substr(tab + 1);
    if (!label.empty()) classes[label] = true;
    const auto first = path.find_first_not_of("/.");
    collector.add(path, first == path.npos ? path : path.substr(first), label);
  }
  return {collector.finish(), classes.size()};
}

void mix(std::vector<packed_sample>& samples, std::uint64_t seed) {
  random_stream random(seed, purpose::shuffle, 0, 0);
  for (std::size_t i = samples.size(); i > 1; --i) {
    std::swap(samples[i - 1], samples[random.below(static_cast<std::uint32_t>(i))]);
  }
}

// As ShardWriter rolls: before a sample, when the shard has as many or as much as it may.
std::vector<shard_plan> plan_shards(const std::vector<packed_sample>& samples,
                                    const pack_options& o) {
  std::vector<shard_plan> out;
  std::uint64_t members = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const bool full = out.empty() || out.back().payload >= o.most_bytes ||
                      out.back().end - out.back().begin >= static_cast<std::size_t>(o.most_count);
    if (full) {
      out.push_back({.begin = i, .end = i});
      members = 0;
    }
    out.back().end = i + 1;
    out.back().payload += samples[i].payload;
    for (const packed_field& f : samples[i].fields) {
      members += tar_writer::size_of_member(samples[i].key + "." + f.extension, f.size);
    }
    out.back().bytes = tar_writer::size_of_archive(members);
  }
  return out;
}

class descriptor {
 public:
  explicit descriptor(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ >= 0) return;
    throw failure(error(errno == ENOENT ? errc::not_found : errc::io_failed, "cannot read the file")
                      .at(path)
                      .cause(errno));
  }
  ~descriptor() { ::close(fd_); }
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

class packer {
 public:
  packer(const pack_options& options, const std::function<void(const std::string&)>& say,
         const std::atomic<bool>& interrupted)
      : options_(options), say_(say), interrupted_(interrupted), names_(options.pattern) {}

  pack_report run() {
    const bool is_list = options_.from.starts_with('@');
    sample_list list = is_list ? from_list(options_.from.substr(1)) : from_folder(options_.from);
    samples_ = std::move(list.samples);
    report_.classes = list.classes;
    if (samples_.empty())
      throw failure(error(errc::no_samples, "no files to pack").at(options_.from));
    if (options_.shuffle) mix(samples_, *options_.shuffle);
    if (options_.compat) {
      for (std::size_t i = 0; i < samples_.size(); ++i) samples_[i].key = fmt::format("{:08}", i);
    }
    shards_ = plan_shards(samples_, options_);
    names_(shards_.size() - 1);  // that there are enough
    check_plan_file();
    std::vector<std::jthread> threads;
    for (int i = 0; i < std::max(1, options_.threads); ++i) {
      threads.emplace_back([this] { work(); });
    }
    threads.clear();
    if (failed_) throw failure(*failed_);
    report_.interrupted = interrupted_;
    return report_;
  }

 private:
  std::string plan_path() const {
    const fs::path first(names_(0));
    return (first.parent_path() / ("." + first.stem().string() + ".pack.json")).string();
  }

  // A plan file beside the shards says which run they are of, so that one that was stopped goes on
  // and another one does not write over them.
  void check_plan_file() {
    std::uint64_t print = fingerprint(
        fmt::format("{} {} {} {} {}", options_.most_bytes, options_.most_count, options_.resize,
                    options_.resize > 0 ? options_.quality : 0, options_.restart));
    for (const packed_sample& s : samples_) {
      print = fingerprint(s.key, print);
      for (const packed_field& f : s.fields) {
        print = fingerprint(fmt::format(".{} {} {}\n", f.extension, f.size, f.text), print);
      }
    }
    const nlohmann::json plan{{"millrace_pack", 1},
                              {"fingerprint", fmt::format("{:016x}", print)},
                              {"samples", samples_.size()},
                              {"shards", shards_.size()}};
    const std::string path = plan_path();
    std::ifstream in(path);
    const bool is_same = in && nlohmann::json::parse(in, nullptr, false) == plan;
    if (!is_same && !options_.overwrite) {
      for (std::size_t i = 0; i < shards_.size(); ++i) {
        if (!fs::exists(names_(i))) continue;
        throw failure(error(errc::usage, "a shard of that name is there, of another run")
                          .at(names_(i))
                          .hint("take another name, or --overwrite"));
      }
    }
    goes_on_ = is_same && !options_.overwrite;
    if (is_same) return;
    const std::string temporary = fmt::format("{}.partial.{}", path, getpid());
    std::ofstream out(temporary);
    out << plan.dump() << '\n';
    if (!out.flush()) {
      throw failure(error(errc::not_allowed, "cannot write into the folder of the shards")
                        .at(path)
                        .cause(errno)
                        .hint("make the folder first"));
    }
    out.close();
    fs::rename(temporary, path);
  }

  void work() {
    try {
      while (const auto i = next_shard()) write(*i);
    } catch (const failure& f) {
      const std::scoped_lock lock(mutex_);
      if (!failed_) failed_ = f.why();
    }
  }

  // The next one that is this part's and not there yet.
  std::optional<std::size_t> next_shard() {
    const std::scoped_lock lock(mutex_);
    for (; next_ < shards_.size() && !failed_ && !interrupted_; ++next_) {
      const auto turn = static_cast<int>(next_ % static_cast<std::size_t>(options_.parts));
      if (turn != options_.part - 1) continue;
      const shard_plan& s = shards_[next_];
      ++report_.shards;
      report_.samples += s.end - s.begin;
      std::error_code none;
      const auto there = fs::file_size(names_(next_), none);
      const bool is_as_planned = options_.resize > 0 || options_.restart > 0 || there == s.bytes;
      if (goes_on_ && !none && is_as_planned) {
        ++report_.kept;
        continue;
      }
      const shard_plan before = next_ > 0 ? shards_[next_ - 1] : shard_plan{};
      say_(fmt::format("# writing {} {} {:.1f} GB {}", names_(next_), before.end - before.begin,
                       static_cast<double>(before.payload) / 1e9, s.begin));
      return next_++;
    }
    return std::nullopt;
  }

  void write(std::size_t i) {
    tar_writer out(names_(i));
    std::vector<std::byte> buffer;
    for (std::size_t s = shards_[i].begin; s < shards_[i].end; ++s) {
      if (interrupted_) return;
      for (const packed_field& f : samples_[s].fields) write_field(out, samples_[s], f, buffer);
    }
    out.close();
    std::error_code none;
    const auto written = fs::file_size(names_(i), none);
    const std::scoped_lock lock(mutex_);
    report_.bytes += none ? 0 : written;
  }

  void write_field(tar_writer& out, const packed_sample& s, const packed_field& f,
                   std::vector<std::byte>& buffer) {
    const std::string name = s.key + "." + f.extension;
    if (f.path.empty()) return out.add(name, f.text);
    const bool is_jpeg = f.extension == "jpg" || f.extension == "jpeg";
    const bool changes = is_jpeg && (options_.resize > 0 || options_.restart > 0);
    const descriptor file(f.path);
    buffer.resize(changes ? f.size : std::min(f.size, piece));
    if (!changes) out.begin(name, f.size);
    std::uint64_t left = f.size;
    while (left > 0) {
      const ssize_t n = read(file.get(), buffer.data() + (changes ? f.size - left : 0),
                             std::min<std::uint64_t>(left, changes ? left : piece));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        throw failure(
            error(n < 0 ? errc::io_failed : errc::changed,
                  n < 0 ? "cannot read the file" : "the file became shorter while it was packed")
                .at(f.path)
                .cause(n < 0 ? errno : 0));
      }
      if (!changes) out.append(std::span(buffer).first(static_cast<std::size_t>(n)));
      left -= static_cast<std::uint64_t>(n);
    }
    if (!changes) return out.end();
    if (options_.resize > 0) {
      if (auto scaled = scaled_jpeg(buffer)) {
        const std::scoped_lock lock(mutex_);
        ++report_.scaled;
        report_.bytes_before += buffer.size();
        report_.bytes_after += scaled->size();
        buffer = std::move(*scaled);
      }
    }
    if (options_.restart > 0) {
      auto rewritten = with_restart_runs(buffer, options_.restart);
      if (rewritten) buffer = std::move(*rewritten);
      const std::scoped_lock lock(mutex_);
      ++(rewritten ? report_.rewritten : report_.not_rewritten);
    }
    out.add(name, std::span<const std::byte>(buffer));
  }

  // Nothing where the image is small enough, or cannot be decoded (which is counted).
  std::optional<std::vector<std::byte>> scaled_jpeg(std::span<const std::byte> file) {
    thread_local jpeg_decoder decoder;
    std::vector<std::uint8_t> pixels;
    view_of_image view;
    const auto choose = [&](int w, int h) { return view = whole_image(w, h, options_.resize); };
    const auto slot = [&](const view_of_image& v) {
      pixels.resize(output_bytes(v));
      return std::span(pixels);
    };
    const auto decoded = decoder.decode(file, {}, choose, slot);
    if (!decoded) {
      const std::scoped_lock lock(mutex_);
      ++report_.not_scaled;
    }
    const bool is_small = view.window.width == view.crop.width;
    if (!decoded || is_small) return std::nullopt;
    return encode_jpeg(pixels, view.window.width, view.window.height, options_.quality);
  }

  static constexpr std::uint64_t piece = 1 << 20;

  const pack_options& options_;
  const std::function<void(const std::string&)>& say_;
  const std::atomic<bool>& interrupted_;
  shard_names names_;
  std::vector<packed_sample> samples_;
  std::vector<shard_plan> shards_;
  bool goes_on_ = false;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::size_t next_ = 0;
  std::optional<error> failed_;
  pack_report report_;
};

double cpu_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

}  // namespace

pack_report pack_shards(const pack_options& options,
                        const std::function<void(const std::string&)>& say,
                        const std::atomic<bool>& interrupted) {
  const auto begin = std::chrono::steady_clock::now();
  const double cpu_begin = cpu_seconds();
  pack_report out = packer(options, say, interrupted).run();
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  out.cpu_seconds = cpu_seconds() - cpu_begin;
  return out;
}

}  // namespace millrace
