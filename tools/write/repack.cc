#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <optional>

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
#include "engine/threads/worker_pool.h"
#include "io/cache/entry_name.h"
#include "io/names/folder_listing.h"
#include "io/names/url.h"
#include "pipeline/codecs/jpeg_rewrite.h"
#include "pipeline/formats/group.h"
#include "pipeline/formats/tar_writer.h"
#include "pipeline/formats/untar.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/run/engine.h"
#include "pipeline/shards/shards.h"
#include "pipeline/stages/map.h"
#include "tools/jobs/job_record.h"
#include "tools/jobs/job_reporter.h"
#include "tools/jobs/names.h"
#include "tools/write/pack.h"

namespace millrace {
namespace {

// A sample whose JPEGs have been rewritten, where that was possible.
struct rewritten_sample {
  sample what;
  std::uint64_t rewritten = 0;
  std::uint64_t as_they_are = 0;
  origin where;

  std::size_t payload_bytes() const { return what.payload_bytes(); }
};

bool is_jpeg(std::string_view extension) {
  return is_jpeg_extension(extension.substr(extension.rfind('.') + 1));
}

// In the memory that pack has for files as well: what a shard becomes does not depend on the
// budget.
rewritten_sample rewrite(sample s, int restart) {
  const work_memory_scope in(work_memory::of_process());
  rewritten_sample out{.where = s.where};
  for (field& f : s.fields) {
    if (!is_jpeg(f.extension)) continue;
    auto made = with_restart_runs(f.data.span(), restart);
    if (made) f.data = owned_bytes(std::move(*made));
    ++(made ? out.rewritten : out.as_they_are);
  }
  out.what = std::move(s);
  return out;
}

// The fingerprint of the inputs and options that the shards depend on. URLs count with their
// queries, except signatures, and local files with their sizes and times.
std::uint64_t fingerprint_of(const repack_options& options) {
  std::uint64_t print = fingerprint(fmt::format("from shards, restart {}", options.restart));
  print = fingerprint(std::filesystem::current_path().string(), print);  // of relative paths
  for (const std::string& url : options.urls) {
    const auto where = parse_url(url);
    // The content of a stream is unknown before it is read, so no two runs are the same job.
    if (where && (where->scheme == "-" || where->scheme == "pipe")) {
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      print = fingerprint(fmt::format("{}", now.count()), print);
    }
    struct stat s{};
    if (where && where->scheme == "file") {
      if (const int code = host_files().stat(where->path, s); code != 0) {
        throw failure(error(kind_of(-code), "cannot look at the shard")
                          .at(url)
                          .cause(-code)
                          .hint(hint_on_path(-code)));
      }
    }
    print = fingerprint(fmt::format("{} {} {}.{:09}\n", canonical_url(url), s.st_size,
                                    s.st_mtim.tv_sec, s.st_mtim.tv_nsec),
                        print);
  }
  return print;
}

// The shards, one after the other.
class repacker {
 public:
  explicit repacker(const repack_options& options)
      : options_(options), names_(options.pattern), progress_(options.progress) {
    names_.check_count(options.urls.size());
    job_ = begin_job(names_, {.fingerprint = fingerprint_of(options),
                              .shards = options.urls.size(),
                              .overwrite = options.overwrite,
                              .inputs = [&] { return local_paths(options.urls); }});
    for (std::size_t i = 0; i < options.urls.size(); ++i) {
      if (job_.has(i)) {
        ++report.kept;
        ++report.shards;
      } else {
        left_.push_back(i);
      }
    }
  }

  // The shards that are still to be written.
  std::vector<std::string> urls() const {
    std::vector<std::string> out;
    out.reserve(left_.size());
    for (const std::size_t i : left_) out.push_back(options_.urls[i]);
    return out;
  }

  void add(const rewritten_sample& s) {
    const auto at = static_cast<std::size_t>(s.where.shard);  // in left_
    if (!out_ || left_.at(at) != shard_) {
      finish_up_to(at);
      open(at);
    }
    for (const field& f : s.what.fields) out_->add(s.what.key + "." + f.extension, f.data.span());
    ++report.samples;
    report.rewritten += s.rewritten;
    report.not_rewritten += s.as_they_are;
  }
  // All shards have been read.
  void finish() {
    finish_up_to(left_.size());
    job_.remove_leavings();
  }

  pack_report report;

 private:
  void open(std::size_t at) {
    shard_ = left_[at];
    next_ = at + 1;
    before_ = report.samples;
    out_.emplace(names_(shard_));
  }
  void finish_shard() {
    if (!out_) return;
    job_.add(shard_, *out_);
    out_.reset();
    ++report.shards;
    ++report.written;
    progress_.add_shard();
    const std::uint64_t written = size_of_file(names_(shard_)).value_or(0);
    report.bytes += written;
    if (!options_.say) return;
    options_.say(fmt::format("{} from {}: {}, {}", printable(names_(shard_)),
                             printable(redacted(options_.urls[shard_])),
                             counted(report.samples - before_, "sample"), format_bytes(written)));
  }
  // Those before `end`, in left_; one that gave no sample is written without any, as it was.
  void finish_up_to(std::size_t end) {
    finish_shard();
    while (next_ < end) {
      open(next_);
      finish_shard();
    }
  }

  const repack_options& options_;
  shard_names names_;
  job_reporter progress_;
  shard_job job_;
  std::vector<std::size_t> left_;  // of options_.urls
  std::optional<tar_writer> out_;
  std::size_t next_ = 0;  // of left_, the first that has not been begun
  std::size_t shard_ = 0;
  std::uint64_t before_ = 0;  // samples, before the shard that is being written
};

// The samples of `urls`, rewritten. False where `stop` came first.
bool repack(engine& eng, repacker& out, const std::vector<std::string>& urls,
            const repack_options& options) {
  const auto change = [restart = options.restart](sample s) {
    return rewrite(std::move(s), restart);
  };
  const map_options on_all{.threads = eng.threads().cpu().threads()};
  auto data = eng.run(
      shards(urls, {.lanes = 1, .shuffle = false}) | untar() | group_by_key() | map(change, on_all),
      options.stop);
  try {
    while (!options.stop.stop_requested()) {
      const auto s = data.next();
      if (!s) break;
      out.add(*s);
    }
  } catch (const failure& f) {
    if (f.kind() == errc::stopped) return false;
    // What is left may be shards without samples alone.
    if (f.kind() != errc::no_samples || out.report.kept == 0) throw;
  }
  const ledger counts = data.counts();
  const auto tell = [&](std::uint64_t count, std::string_view noun, std::string_view plural) {
    if (count > 0) out.report.left_out.push_back(counted(count, noun, plural));
  };
  tell(counts.without_key, "file without an extension", "files without an extension");
  tell(counts.meta_files, "file named __x__ or below such a folder",
       "files named __x__ or below such folders");
  tell(counts.not_files, "link or device", "links and devices");
  return !options.stop.stop_requested();
}

}  // namespace

pack_report repack_shards(engine& eng, const repack_options& options) {
  if (options.urls.empty()) {
    throw failure(error(errc::usage, "no shards").hint("name some to write again"));
  }
  check_option_or_0("repack_options.restart", options.restart, 1, 65535, "no markers");
  const auto begin = steady_clock::now();
  const double cpu_begin = process_cpu_seconds();
  repacker out(options);
  const auto urls = out.urls();
  const bool complete = urls.empty() || repack(eng, out, urls, options);
  if (complete) out.finish();
  pack_report& r = out.report;
  r.interrupted = !complete;
  r.seconds = seconds_since(begin);
  r.cpu_seconds = process_cpu_seconds() - cpu_begin;
  return r;
}

}  // namespace millrace
