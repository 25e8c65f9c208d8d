#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <optional>

#include "engine/log.h"
#include "pipeline/engine.h"
#include "pipeline/group.h"
#include "pipeline/images/jpeg_rewrite.h"
#include "pipeline/shards.h"
#include "pipeline/stages.h"
#include "pipeline/tar_writer.h"
#include "pipeline/tools/names.h"
#include "pipeline/tools/pack.h"
#include "pipeline/untar.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// A sample whose JPEGs have been rewritten, where that was possible.
struct rewritten_sample {
  sample what;
  std::uint64_t rewritten = 0;
  std::uint64_t as_they_are = 0;
  origin where;

  std::size_t payload_bytes() const { return what.payload_bytes(); }
};

bool is_jpeg(std::string_view extension) {
  const auto last = extension.substr(extension.rfind('.') + 1);
  return last == "jpg" || last == "jpeg";
}

rewritten_sample rewrite(sample s, int restart) {
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

// The shards, one after the other.
class repacker {
 public:
  repacker(const repack_options& options, const std::function<void(const std::string&)>& say)
      : options_(options), say_(say), names_(options.pattern) {
    names_(options.urls.size() - 1);  // that there are enough
    for (std::size_t i = 0; i < options.urls.size() && !options.overwrite; ++i) {
      if (!fs::exists(names_(i))) continue;
      throw failure(error(errc::usage, "a shard of that name is there")
                        .at(names_(i))
                        .hint("take another name, or --overwrite"));
    }
  }

  void add(const rewritten_sample& s) {
    const auto shard = static_cast<std::size_t>(s.where.shard);
    if (!out_ || shard != shard_) {
      finish_shard();
      shard_ = shard;
      say_(fmt::format("# writing {} from {}", names_(shard), redacted(options_.urls[shard])));
      out_.emplace(names_(shard));
    }
    for (const field& f : s.what.fields) out_->add(s.what.key + "." + f.extension, f.data.span());
    ++report.samples;
    report.rewritten += s.rewritten;
    report.not_rewritten += s.as_they_are;
  }
  void finish_shard() {
    if (!out_) return;
    out_->close();
    out_.reset();
    ++report.shards;
    std::error_code none;
    const auto written = fs::file_size(names_(shard_), none);
    report.bytes += none ? 0 : written;
  }

  pack_report report;

 private:
  const repack_options& options_;
  const std::function<void(const std::string&)>& say_;
  shard_names names_;
  std::optional<tar_writer> out_;
  std::size_t shard_ = 0;
};

}  // namespace

pack_report repack_shards(engine& eng, const repack_options& options,
                          const std::function<void(const std::string&)>& say,
                          const std::atomic<bool>& interrupted) {
  const auto begin = std::chrono::steady_clock::now();
  const std::clock_t cpu_begin = std::clock();
  repacker out(options, say);
  const auto change = [restart = options.restart](sample s) {
    return rewrite(std::move(s), restart);
  };
  auto data = eng.run(shards(options.urls, {.lanes = 1, .shuffle = false}) | untar() |
                      group_by_key() | map(change, {.threads = eng.threads().cpu().threads()}));
  while (!interrupted) {
    const auto s = data.next();
    if (!s) break;
    out.add(*s);
  }
  if (!interrupted) out.finish_shard();
  pack_report& r = out.report;
  if (const auto left_out = data.counts().without_key; left_out > 0) {
    log_notice(fmt::format("{} files have no extension and are left out", left_out));
  }
  r.interrupted = interrupted;
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  r.cpu_seconds = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
  return r;
}

}  // namespace millrace
