#include "tools/inspect/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "engine/base/words.h"
#include "pipeline/formats/scan.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/run/engine.h"
#include "pipeline/samples/sample_name.h"
#include "pipeline/wids/index_entries.h"
#include "tools/jobs/job_reporter.h"
#include "tools/jobs/take_until_stopped.h"
#include "tools/write/key_table.h"

namespace millrace {
namespace {

// Decodes all pixels of an image, row by row, into a small buffer.
result<void> check_image(std::span<const std::byte> file) {
  static constexpr int most = 32;
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wexit-time-destructors"  // it ends with its thread
  thread_local image_decoder decoder;
#pragma clang diagnostic pop
  thread_local std::array<std::uint8_t, std::size_t{most} * most * 3> pixels;
  const auto whole = [](int width, int height) {
    const pixel_box window{0, 0, std::min(width, most), std::min(height, most)};
    return view_of_image{.crop = {0, 0, width, height},
                         .scaled_width = window.width,
                         .scaled_height = window.height,
                         .window = window};
  };
  const auto out = [&](const view_of_image& v) { return std::span(pixels).first(output_bytes(v)); };
  return decoder.decode(file, {}, whole, out);
}

// The differences between a shard and its entry in the index.
std::vector<error> against(const shard_index::shard& said, const shard_facts& f) {
  std::vector<error> out;
  const auto differs = [&](std::string what) {
    out.push_back(error(errc::integrity, std::move(what))
                      .at(f.url)
                      .hint("the shard or the index is the wrong one, or the shard is damaged"));
  };
  if (said.samples != std::ssize(f.samples)) {
    differs(
        fmt::format("{}, the index says {}", counted(f.samples.size(), "sample"), said.samples));
  }
  if (said.bytes > 0 && f.bytes > 0 && said.bytes != static_cast<std::int64_t>(f.bytes)) {
    differs(fmt::format("{} bytes, the index says {}", f.bytes, said.bytes));
  }
  if (!said.md5.empty() && !f.md5.empty() && said.md5 != f.md5) {
    differs(fmt::format("its MD5 is {}, the index says {}", f.md5, said.md5));
  }
  for (std::size_t i = 0; i + 1 < said.blocks.size() && i < f.samples.size(); ++i) {
    if (said.blocks[i] * std::int64_t{512} == f.samples[i].begin) continue;
    differs(fmt::format("sample {} begins at byte {}, the index says {}", i, f.samples[i].begin,
                        said.blocks[i] * std::int64_t{512}));
    break;
  }
  for (std::size_t i = 0; i < said.names.size() && i < f.samples.size(); ++i) {
    if (said.names[i] == f.samples[i].name) continue;
    differs(fmt::format("sample {}, at byte {}, has a different name in the index", i,
                        f.samples[i].begin));
    break;
  }
  return out;
}

// Whether the shard cannot be read at all.
bool is_of_name(const error& why, const shard_facts& f) {
  if (exit_code(why.kind()) == exit_code(errc::io_failed) || why.kind() == errc::usage) return true;
  return why.kind() == errc::unsupported && f.samples.empty() && !why.byte_offset();
}

// The findings so far.
class verification {
 public:
  // `key_bytes`: the memory that keys may take. The others must outlive the object.
  verification(const std::vector<std::string>& urls, const verify_options& options,
               std::size_t key_bytes)
      : urls_(urls), options_(options), keys_(key_bytes) {
    if (options.index != nullptr) said_.emplace(*options.index, urls_);
  }

  void add(const shard_facts& f) {
    bool is_read = true;
    for (const error& why : f.problems) {
      is_read = is_read && !is_of_name(why, f);
      tell(why);
    }
    if (!is_read) ++report.unreadable;
    if (f.more_problems > 0) {
      tell(error(errc::bad_archive, counted(f.more_problems, "more problem", "more problems"))
               .at(f.url)
               .hint("only the first ones of a shard are listed"));
    }
    if (f.samples.empty() && f.problems.empty()) {
      error nothing(errc::no_samples, "the shard has no samples");
      if (f.without_key > 0) {
        nothing.hint(fmt::format("{} without an extension: name members KEY.EXTENSION",
                                 counted(f.without_key, "file")));
      }
      tell(nothing.at(f.url));
    }
    if (said_) compare(f, is_read);
    if (const bool is_first = seen_.insert(shard_place(f.url)).second; !is_first) {
      tell(error(errc::duplicate_field, "the list names this shard more than once").at(f.url));
    } else {
      look_at_keys(f);
    }
    report.samples += f.samples.size();
    report.payload_bytes += f.payload_bytes;
    report.without_extension += f.without_key;
    report.meta_files += f.meta_files;
    report.not_files += f.not_files;
    ++report.shards;
  }

  // Counts shards of the index that were not verified.
  void look_for_missing() {
    if (!said_) return;
    for (const shard_index::shard& s : options_.index->shards) {
      if (!compared_.insert(shard_place(s.url)).second) continue;
      if (++report.missing > shard_facts::most_problems || !options_.are_all) continue;
      tell(error(errc::not_found, "the index lists a shard that is not among those given")
               .at(s.url)
               .hint("name it as well, or use an index of these shards; if it is lost, copy it "
                     "there"));
    }
    if (options_.are_all && report.missing > shard_facts::most_problems) {
      const std::uint64_t more = report.missing - shard_facts::most_problems;
      tell(error(errc::not_found, counted(more, "more shard of the index is not among those given",
                                          "more shards of the index are not among those given")));
    }
  }

  verify_report report;

 private:
  void compare(const shard_facts& f, bool is_read) {
    const auto found = said_->find(f.url);
    if (found.shard == nullptr) return tell(not_listed(f.url, found.is_ambiguous));
    compared_.insert(shard_place(found.shard->url));
    if (!is_read) return;  // already reported as unreadable
    for (const error& why : against(*found.shard, f)) tell(why);
  }

  void tell(const error& why) {
    ++report.problems;
    if (options_.found) options_.found(why);
  }

  void look_at_keys(const shard_facts& f) {
    std::uint64_t repeated = 0;
    for (const sample_place& s : f.samples) {
      const auto first = keys_.first_shard(s.key, static_cast<std::uint32_t>(report.shards));
      if (!first || ++repeated > shard_facts::most_problems) continue;
      const bool same_shard = *first == report.shards;
      tell(error(errc::duplicate_field,
                 same_shard ? std::string("the key is already in this shard: its files are "
                                          "not adjacent")
                            : fmt::format("the key is in {} as well", redacted(urls_[*first])))
               .at(f.url)
               .offset(static_cast<std::uint64_t>(s.begin))
               .key(s.key));
    }
    if (keys_.is_full() && !std::exchange(told_full_, true)) {
      tell(error(errc::too_large,
                 fmt::format("from here on keys are compared only with the first {}: there is no "
                             "memory for more",
                             keys_.size()))
               .at(f.url)
               .hint("raise engine_options.memory_bytes (MILLRACE_MEMORY)"));
    }
    if (repeated <= shard_facts::most_problems) return;
    tell(error(errc::duplicate_field, counted(repeated - shard_facts::most_problems,
                                              "more duplicate key", "more duplicate keys"))
             .at(f.url)
             .hint("only the first ones of a shard are listed"));
  }

  const std::vector<std::string>& urls_;
  const verify_options& options_;
  std::optional<index_entries> said_;
  std::set<std::string> seen_;      // places of shards
  std::set<std::string> compared_;  // places of entries
  key_table keys_;
  bool told_full_ = false;
};

void check_required(const verify_options& o) {
  for (const auto& any : o.required) {
    const auto wrong = std::ranges::find_if_not(any, is_extension);
    if (!any.empty() && wrong == any.end()) continue;
    throw failure(
        error(errc::usage, fmt::format("verify_options.required names '{}', which no sample has",
                                       any.empty() ? "" : *wrong))
            .hint("write extensions in lower case, without leading dots or blanks: jpg"));
  }
}

scan_options scan_of(const verify_options& o) {
  scan_options how{.md5 = o.index != nullptr, .required = o.required};
  if (o.images) {
    how.wants = [](std::string_view x) { return is_image_extension(x.substr(x.rfind('.') + 1)); };
    how.check = check_image;
  }
  return how;
}

}  // namespace

verify_report verify_shards(engine& eng, const std::vector<std::string>& urls,
                            const verify_options& options) {
  if (urls.empty()) throw failure(error(errc::usage, "no shards").hint("name some to verify"));
  check_required(options);
  auto data = eng.run(scan(urls, scan_of(options)));
  verification found(urls, options, eng.options().memory_bytes / 2);
  job_reporter progress(options.progress, [&] { return data.stats().sources.bytes; });
  const bool whole = take_until_stopped(data, options.stop, [&](const shard_facts& f) {
    found.add(f);
    progress.add_shard();
  });
  found.report.interrupted = !whole;
  if (whole) found.look_for_missing();
  return found.report;
}

}  // namespace millrace
