#include "tools/write/pack.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <limits>
#include <mutex>
#include <set>
#include <thread>

#include "engine/base/check_option.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/random.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/files/file_system.h"
#include "engine/files/folders.h"
#include "engine/host/clock.h"
#include "engine/host/cpu_time.h"
#include "engine/host/start_thread.h"
#include "io/names/folder_listing.h"
#include "pipeline/codecs/jpeg.h"
#include "pipeline/codecs/jpeg_rewrite.h"
#include "pipeline/formats/tar_writer.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/state/state.h"
#include "tools/jobs/job_record.h"
#include "tools/jobs/job_reporter.h"
#include "tools/jobs/names.h"
#include "tools/write/pack_files.h"
#include "tools/write/shard_rules.h"

namespace millrace {
namespace {

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wexit-time-destructors"  // it ends with its thread
jpeg_decoder& scaling_decoder() {
  thread_local jpeg_decoder decoder;
  return decoder;
}
#pragma clang diagnostic pop

void check_ranges(const pack_options& o) {
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  check_option("pack_options.most_count", o.most_count, 1, most);
  check_option("pack_options.most_bytes", o.most_bytes, 1,
               std::numeric_limits<std::uint64_t>::max());
  check_option("pack_options.quality", o.quality, 1, 100);
  check_option_or_0("pack_options.resize", o.resize, 8, 16384, "images stay as they are");
  check_option_or_0("pack_options.restart", o.restart, 1, 65535, "no markers");
  check_option("pack_options.parts", o.parts, 1, std::numeric_limits<int>::max());
  check_option("pack_options.part", o.part, 1, o.parts);
  check_option_or_0("pack_options.threads", o.threads, 1, pack_options::most_threads, "one");
}

struct shard_plan {
  std::size_t begin = 0;  // samples
  std::size_t end = 0;
  std::uint64_t payload = 0;
};

void shuffle_samples(std::vector<packed_sample>& samples, std::uint64_t seed) {
  random_stream random(seed, purpose::shuffle, 0, 0);
  for (std::size_t i = samples.size(); i > 1; --i) {
    std::swap(samples[i - 1], samples[random.below(static_cast<std::uint32_t>(i))]);
  }
}

// As ShardWriter rolls: before a sample, when the shard has as many or as much as it may.
std::vector<shard_plan> plan_shards(const std::vector<packed_sample>& samples,
                                    const pack_options& o) {
  std::vector<shard_plan> out;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const bool full = out.empty() || is_full_shard(out.back().end - out.back().begin,
                                                   out.back().payload, o.most_count, o.most_bytes);
    if (full) out.push_back({.begin = i, .end = i});
    out.back().end = i + 1;
    out.back().payload += samples[i].payload;
  }
  return out;
}

error cannot_read(const std::string& path, int why) {
  return error(kind_of(why), "cannot read the file").at(path).cause(why).hint(hint_on_path(why));
}

std::string stamp_of(const struct stat& s) {
  return fmt::format("{}.{:09}", s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
}

// When a file was last written to, as a text; of no file, none.
std::string modified(const std::string& path) {
  if (path.empty()) return "";
  struct stat s{};
  if (const int code = host_files().stat(path, s); code != 0) {
    throw failure(cannot_read(path, -code));
  }
  return stamp_of(s);
}

class packer {
 public:
  explicit packer(const pack_options& options)
      : options_(options), names_(options.pattern), progress_(options.progress) {
    check_ranges(options);
  }

  pack_report run() {
    files_to_pack found = find_files(options_.from, options_.of_one_name);
    samples_ = std::move(found.samples);
    report_.classes = found.labels;
    report_.left_out = std::move(found.left_out);
    if (samples_.empty())
      throw failure(error(errc::no_samples, "no files to pack").at(options_.from));
    if (options_.shuffle) shuffle_samples(samples_, *options_.shuffle);
    if (options_.compat) {
      for (std::size_t i = 0; i < samples_.size(); ++i) samples_[i].key = fmt::format("{:08}", i);
    }
    shards_ = plan_shards(samples_, options_);
    names_.check_count(shards_.size());
    check_apart();
    if (options_.planned) options_.planned(shards_.size(), payload());
    begin(found.classes);
    work_on_threads();
    if (failed_) throw failure(*failed_);
    report_.interrupted = is_stopped();
    if (!report_.interrupted) job_.remove_leavings();
    return report_;
  }

 private:
  // The same call again would take its shards for samples.
  void check_apart() const {
    if (options_.from.starts_with('@')) return;
    const auto whole = [](const std::string& path) {
      std::error_code failed;
      const auto without_links = std::filesystem::weakly_canonical(path, failed);
      return failed ? std::filesystem::absolute(path).lexically_normal() : without_links;
    };
    const auto packed = whole(options_.from + "/");
    std::set<std::filesystem::path> folders;  // looked at
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      const std::string name = names_(i);
      if (!folders.insert(std::filesystem::path(name).parent_path()).second) continue;
      const auto within = whole(name).lexically_relative(packed);
      if (*within.begin() == ".." || std::next(within.begin()) == within.end()) continue;
      throw failure(error(errc::usage, "the shards would be among the files that are packed")
                        .at(name)
                        .hint("write them to another folder"));
    }
  }
  std::uint64_t payload() const {
    std::uint64_t sum = 0;
    for (const shard_plan& s : shards_) sum += s.payload;
    return sum;
  }

  // A record beside the shards says which run they are of, so that one that was stopped is resumed
  // and another one does not replace them; the names of the classes, a line each in the order of
  // their labels, which class has which label.
  void begin(const std::vector<std::string>& classes) {
    std::uint64_t print = fingerprint(
        fmt::format("{} {} {} {} {}", options_.most_bytes, options_.most_count, options_.resize,
                    options_.resize > 0 ? options_.quality : 0, options_.restart));
    // What relative paths are below.
    print = fingerprint(std::filesystem::current_path().string(), print);
    for (const packed_sample& s : samples_) {
      print = fingerprint(s.key, print);
      for (const packed_field& f : s.fields) {
        print = fingerprint(
            fmt::format(".{} {} {} {} {}\n", f.extension, f.size, f.text, f.path, modified(f.path)),
            print);
      }
    }
    std::string names_of_classes;
    for (const std::string& name : classes) names_of_classes += printable(name) + "\n";
    job_ = begin_job(names_, {.fingerprint = print,
                              .samples = samples_.size(),
                              .shards = shards_.size(),
                              .overwrite = options_.overwrite,
                              .part = options_.part,
                              .parts = options_.parts,
                              .inputs = [this] { return input_files(); },
                              .classes = names_of_classes});
    report_.classes_file = job_.classes_file();
  }

  std::vector<std::string> input_files() const {
    std::vector<std::string> out;
    for (const packed_sample& s : samples_) {
      for (const packed_field& f : s.fields) {
        if (!f.path.empty()) out.push_back(f.path);
      }
    }
    return out;
  }

  bool is_stopped() const { return options_.stop.stop_requested(); }
  void say(const std::string& line) const {
    if (!options_.say) return;
    try {
      options_.say(line);
    } catch (...) {
      throw failure(error_of(std::current_exception(), "pack_options.say"));
    }
  }

  // Until there is no more, or one of them has failed.
  void work_on_threads() {
    const std::size_t parts = static_cast<std::size_t>(options_.parts);
    const std::size_t of_this_part = (shards_.size() + parts - 1) / parts;  // or one less
    const std::size_t wanted = std::min(static_cast<std::size_t>(options_.threads), of_this_part);
    std::vector<std::jthread> threads;
    try {
      for (std::size_t i = 1; i < wanted; ++i) {
        threads.push_back(start_joined_thread(fmt::format("mr-pack-{}", i),
                                              [this](const std::stop_token& /*no*/) { work(); }));
      }
    } catch (...) {
      fail();
    }
    work();
  }

  void work() {
    try {
      while (const auto i = next_shard()) write(*i);
    } catch (...) {
      fail();
    }
  }

  // What is being caught ends the work of all.
  void fail() {
    error why = out_of_memory();
    try {
      why = error_of(std::current_exception());
    } catch (const std::bad_alloc&) {
      why = out_of_memory();  // there is none to say more
    }
    const std::scoped_lock lock(mutex_);
    if (!failed_) failed_ = why;
  }

  // The next one that is this part's and not there yet.
  std::optional<std::size_t> next_shard() {
    const std::scoped_lock lock(mutex_);
    for (; next_ < shards_.size() && !failed_ && !is_stopped(); ++next_) {
      const auto turn = static_cast<int>(next_ % static_cast<std::size_t>(options_.parts));
      if (turn != options_.part - 1) continue;
      const shard_plan& s = shards_[next_];
      ++report_.shards;
      report_.samples += s.end - s.begin;
      if (job_.has(next_)) {
        progress_.add_bytes(s.payload);
        ++report_.kept;
        continue;
      }
      const shard_plan before = next_ > 0 ? shards_[next_ - 1] : shard_plan{};
      if (!options_.compat) return next_++;
      say(fmt::format("# writing {} {} {:.1f} GB {}", names_(next_), before.end - before.begin,
                      static_cast<double>(before.payload) / 1e9, s.begin));
      return next_++;
    }
    return std::nullopt;
  }

  void write(std::size_t i) {
    tar_writer out(names_(i));
    std::vector<std::byte> buffer;
    for (std::size_t s = shards_[i].begin; s < shards_[i].end; ++s) {
      if (is_stopped()) return;
      for (const packed_field& f : samples_[s].fields) write_field(out, samples_[s], f, buffer);
      if (is_stopped()) return;  // perhaps within a file
      progress_.add_bytes(samples_[s].payload);
    }
    job_.add(i, out);
    const std::uint64_t written = size_of_file(names_(i)).value_or(0);
    const std::scoped_lock lock(mutex_);
    report_.bytes += written;
    ++report_.written;
    progress_.add_shard();
    if (options_.compat) return;
    say(fmt::format("{}: {}, {}", printable(names_(i)),
                    counted(shards_[i].end - shards_[i].begin, "sample"), format_bytes(written)));
  }

  void write_field(tar_writer& out, const packed_sample& s, const packed_field& f,
                   std::vector<std::byte>& buffer) {
    const std::string name = s.key + "." + f.extension;
    if (f.path.empty()) return out.add(name, f.text);
    const bool is_jpeg = is_jpeg_extension(f.extension);
    if (!is_jpeg && is_image_extension(f.extension)) {
      const std::scoped_lock lock(mutex_);
      ++report_.other_images;
    }
    bool changes = is_jpeg && (options_.resize > 0 || options_.restart > 0);
    const held_file file(host_files().open(f.path, O_RDONLY));
    if (!file) throw failure(cannot_read(f.path, -file.fd()));
    const auto status = [&] {
      struct stat s{};
      if (const int code = host_files().stat(file.fd(), s); code != 0) {
        throw failure(cannot_read(f.path, -code));
      }
      return s;
    };
    const std::string before = stamp_of(status());
    if (changes && f.size > most_changed) {  // it would be held in memory
      changes = false;
      count_unchanged(f.path);
    }
    const room_for_change room(*this, changes ? f.size : 0);
    buffer.resize(changes ? f.size : std::min(f.size, piece));
    if (!changes) out.begin(name, f.size);
    for (std::uint64_t at = 0; at < f.size; at += buffer.size()) {
      if (is_stopped()) return;
      buffer.resize(std::min<std::uint64_t>(buffer.size(), f.size - at));
      const ssize_t n = read_all(file.fd(), buffer, at);
      if (n < 0) throw failure(cannot_read(f.path, static_cast<int>(-n)));
      if (static_cast<std::size_t>(n) < buffer.size()) {
        throw failure(
            error(errc::changed, "the file became shorter while it was packed").at(f.path));
      }
      if (!changes) out.append(buffer);
    }
    const struct stat now = status();
    if (static_cast<std::uint64_t>(now.st_size) != f.size || stamp_of(now) != before) {
      throw failure(error(errc::changed, "the file changed while it was packed")
                        .at(f.path)
                        .hint("pack it when it is complete"));
    }
    if (!changes) return out.end();
    change(buffer, f.path);
    out.add(name, std::span<const std::byte>(buffer));
    if (buffer.capacity() > piece) buffer = {};  // no longer in the room that it was given
  }

  void change(std::vector<std::byte>& image, const std::string& path) {
    if (options_.resize > 0) {
      if (auto scaled = scaled_jpeg(image, path)) {
        const std::scoped_lock lock(mutex_);
        ++report_.scaled;
        report_.bytes_before += image.size();
        report_.bytes_after += scaled->size();
        image = std::move(*scaled);
      }
    }
    if (options_.restart > 0) {
      auto rewritten = with_restart_runs(image, options_.restart);
      if (rewritten) image = std::move(*rewritten);
      const std::scoped_lock lock(mutex_);
      ++(rewritten ? report_.rewritten : report_.not_rewritten);
    }
  }

  // Nothing where the image is small enough, or cannot be decoded (which is counted).
  std::optional<std::vector<std::byte>> scaled_jpeg(std::span<const std::byte> file,
                                                    const std::string& path) {
    std::vector<std::uint8_t> pixels;
    view_of_image view;
    const auto choose = [&](int w, int h) { return view = whole_image(w, h, options_.resize); };
    const auto slot = [&](const view_of_image& v) {
      pixels.resize(output_bytes(v));
      return std::span(pixels);
    };
    const auto decoded = scaling_decoder().decode(file, {}, choose, slot);
    if (!decoded) {
      const std::scoped_lock lock(mutex_);
      ++report_.not_scaled;
      name_undecodable(path);
    }
    const bool is_small = view.window.width == view.crop.width;
    if (!decoded || is_small) return std::nullopt;
    return encode_jpeg(pixels, view.window.width, view.window.height, options_.quality);
  }

  void count_unchanged(const std::string& path) {
    const std::scoped_lock lock(mutex_);
    if (options_.restart > 0) ++report_.not_rewritten;
    if (options_.resize == 0) return;
    ++report_.not_scaled;
    name_undecodable(path);
  }

  // Adds a file to the ones that the report names: the first `most` by name, in whatever order the
  // threads meet them. Under mutex_.
  void name_undecodable(const std::string& path) {
    constexpr std::size_t most = 10;
    auto& named = report_.undecodable;
    named.insert(std::ranges::upper_bound(named, path), path);
    if (named.size() > most) named.pop_back();
  }

  static constexpr std::uint64_t piece = 1 << 20;
  static constexpr std::uint64_t most_changed = 256 << 20;  // of one image, and of all at a time

  // An image that is changed waits until it has room among those of the other threads.
  class room_for_change {
   public:
    room_for_change(packer& of, std::uint64_t bytes) : of_(of), bytes_(bytes) {
      std::unique_lock lock(of_.mutex_);
      of_.changed_.wait(lock, [&] { return of_.bytes_changing_ + bytes_ <= most_changed; });
      of_.bytes_changing_ += bytes_;
    }
    ~room_for_change() {
      {
        const std::scoped_lock lock(of_.mutex_);
        of_.bytes_changing_ -= bytes_;
      }
      of_.changed_.notify_all();
    }
    room_for_change(const room_for_change&) = delete;
    room_for_change& operator=(const room_for_change&) = delete;

   private:
    packer& of_;
    const std::uint64_t bytes_;
  };

  const pack_options& options_;
  shard_names names_;
  job_reporter progress_;
  std::vector<packed_sample> samples_;
  std::vector<shard_plan> shards_;
  shard_job job_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::uint64_t bytes_changing_ = 0;
  std::size_t next_ = 0;
  std::optional<error> failed_;
  pack_report report_;
};

}  // namespace

pack_report pack_shards(const pack_options& options) {
  const auto begin = steady_clock::now();
  const double cpu_begin = process_cpu_seconds();
  pack_report out = packer(options).run();
  out.seconds = seconds_since(begin);
  out.cpu_seconds = process_cpu_seconds() - cpu_begin;
  return out;
}

}  // namespace millrace
