#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <stop_token>
#include <utility>

#include "cli/command.h"
#include "cli/interrupt.h"
#include "engine/memory.h"
#include "engine/words.h"
#include "pipeline/fields.h"
#include "pipeline/formats/scan.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/shard_index.h"
#include "pipeline/wids/index_entries.h"
#include "pipeline/wids/read_index.h"
#include "tools/key_table.h"

namespace millrace::cli {
namespace {

struct verify_arguments {
  shard_arguments shards;
  std::string index;
  std::optional<std::string> required;
  bool images = false;
  bool json = false;
};

// Decodes all pixels of an image, row by row, into a small buffer.
result<void> check_image(std::span<const std::byte> file) {
  static constexpr int most = 32;
  thread_local image_decoder decoder;
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

// Parses "jpg;jpeg,cls": each required field, with its alternatives.
std::vector<std::vector<std::string>> required_fields(const std::string& text) {
  std::vector<std::vector<std::string>> out;
  // So that "jpg," has an empty second field, and "" an empty first one.
  std::istringstream fields(text + ",");
  for (std::string field; std::getline(fields, field, ',');) {
    auto& any = out.emplace_back();
    std::istringstream others(field);
    for (std::string other; std::getline(others, other, ';');) {
      if (other.empty()) continue;
      const bool is_extension =
          lowered(other) == other && trimmed(other) == other && other.front() != '.';
      if (!is_extension) {
        throw failure(
            error(errc::usage,
                  fmt::format("--require '{}' names a field that no sample can have", text))
                .hint("write extensions in lower case, without leading dots or blanks: jpg,cls"));
      }
      any.push_back(other);
    }
    if (!any.empty()) continue;
    throw failure(error(errc::usage, fmt::format("--require '{}' names an empty field", text))
                      .hint("write extensions: jpg,cls or jpg;png,cls"));
  }
  return out;
}

scan_options options_of(const verify_arguments& a) {
  scan_options how{
      .md5 = !a.index.empty(),
  };
  if (a.required) how.required = required_fields(*a.required);
  if (a.images) {
    how.wants = [](std::string_view x) { return is_image_extension(x.substr(x.rfind('.') + 1)); };
    how.check = check_image;
  }
  return how;
}

// Whether the shard cannot be read at all.
bool is_of_name(const error& why, const shard_facts& f) {
  if (exit_code(why.kind()) == exit_code(errc::io_failed) || why.kind() == errc::usage) return true;
  return why.kind() == errc::unsupported && f.samples.empty() && !why.byte_offset();
}

// The findings so far.
class verification {
 public:
  // `key_bytes`: the memory that keys may take.
  verification(std::vector<std::string> urls, const shard_index* index, std::size_t key_bytes,
               bool json)
      : urls_(std::move(urls)), json_(json), keys_(key_bytes) {
    if (index != nullptr) said_.emplace(*index, urls_);
  }

  void add(const shard_facts& f) {
    bool is_read = true;
    for (const error& why : f.problems) {
      is_read = is_read && !is_of_name(why, f);
      tell(why);
    }
    if (!is_read) ++unreadable_;
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
    samples_ += f.samples.size();
    payload_ += f.payload_bytes;
    without_extension_ += f.without_key;
    meta_files_ += f.meta_files;
    not_files_ += f.not_files;
    ++shards_;
  }

  // Counts shards of the index that were not checked; they are problems if `were_all`, that is, if
  // the shards came from folders or patterns.
  void look_for_missing(const shard_index& index, bool were_all) {
    for (const shard_index::shard& s : index.shards) {
      if (!compared_.insert(shard_place(s.url)).second) continue;
      if (++missing_ > shard_facts::most_problems || !were_all) continue;
      tell(error(errc::not_found, "the index lists a shard that does not exist")
               .at(s.url)
               .hint("copy it there, or create the index again"));
    }
    if (were_all && missing_ > shard_facts::most_problems) {
      const std::uint64_t more = missing_ - shard_facts::most_problems;
      tell(error(errc::not_found, counted(more, "more shard of the index does not exist",
                                          "more shards of the index do not exist")));
    }
  }

  // Prints the totals; returns the exit code.
  int finish(bool stopped) {
    const bool well = problems_ == 0 && !stopped;
    if (json_) {
      listed_.end({{"shards", shards_},
                   {"samples", samples_},
                   {"bytes", payload_},
                   {"without_extension", without_extension_},
                   {"meta_files", meta_files_},
                   {"not_files", not_files_},
                   {"unreadable", unreadable_},
                   {"missing", missing_},
                   {"ok", well},
                   {"interrupted", stopped}});
    } else {
      std::string also;
      if (without_extension_ > 0) {
        also += fmt::format(", {} without an extension (in no sample)",
                            counted(without_extension_, "file"));
      }
      if (meta_files_ > 0) {
        also += fmt::format(", {} named __x__ or below such a folder (in no sample)",
                            counted(meta_files_, "file"));
      }
      if (not_files_ > 0) also += ", " + counted(not_files_, "link or device", "links or devices");
      if (missing_ > 0) {
        also += fmt::format(", {} of the index not checked", counted(missing_, "shard"));
      }
      const std::string verdict = well ? "all is well" : counted(problems_, "problem");
      fmt::print("{}{}, {}, {}{}: {}\n", stopped ? "stopped after " : "", counted(shards_, "shard"),
                 counted(samples_, "sample"), format_bytes(payload_), also, verdict);
    }
    if (stopped) return exit_code_of_interrupt();
    return problems_ == 0 ? 0 : unreadable_ > 0 ? exit_code(errc::io_failed) : 1;
  }

 private:
  void compare(const shard_facts& f, bool is_read) {
    const auto found = said_->find(f.url);
    if (found.shard == nullptr) return tell(not_listed(f.url, found.is_ambiguous));
    compared_.insert(shard_place(found.shard->url));
    if (!is_read) return;  // already reported as unreadable
    for (const error& why : against(*found.shard, f)) tell(why);
  }

  void tell(const error& why) {
    ++problems_;
    json_ ? listed_.add(why.message()) : print_line(why.message());
  }

  void look_at_keys(const shard_facts& f) {
    std::uint64_t repeated = 0;
    for (const sample_place& s : f.samples) {
      const auto first = keys_.first_shard(s.key, static_cast<std::uint32_t>(shards_));
      if (!first || ++repeated > shard_facts::most_problems) continue;
      const bool same_shard = *first == shards_;
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

  std::vector<std::string> urls_;
  std::optional<index_entries> said_;
  bool json_;
  std::set<std::string> seen_;      // places of shards
  std::set<std::string> compared_;  // places of entries
  key_table keys_;
  bool told_full_ = false;
  json_list listed_{"problems"};
  std::uint64_t problems_ = 0;
  std::size_t shards_ = 0;
  std::uint64_t samples_ = 0;
  std::uint64_t payload_ = 0;
  std::uint64_t without_extension_ = 0;
  std::uint64_t meta_files_ = 0;
  std::uint64_t not_files_ = 0;
  std::uint64_t unreadable_ = 0;
  std::uint64_t missing_ = 0;
};

int verify(const environment& e, const verify_arguments& a) {
  const engine_options how = a.shards.engine(e);
  engine eng(how);
  std::optional<shard_index> index;
  if (!a.index.empty()) index = read_index(eng, a.index, a.shards.base);
  std::vector<std::string> urls;
  listing_facts listed;
  if (!a.shards.specs.empty()) urls = a.shards.urls(e, &listed);
  if (a.shards.specs.empty() && index) {
    for (const auto& s : index->shards) urls.push_back(s.url);
  }
  if (urls.empty()) {
    throw failure(error(errc::usage, "no shards").hint("name shards, or an --index"));
  }
  const amount_of_work all = sample_walk::work_of(urls);
  const std::stop_token stop = stop_requested();  // before this, a signal ends it at once
  auto data = eng.run(scan(urls, options_of(a)));
  verification found(std::move(urls), index ? &*index : nullptr,
                     (how.memory_bytes > 0 ? how.memory_bytes : default_memory_bytes()) / 2,
                     a.json);
  std::atomic<std::uint64_t> shards = 0;
  std::optional<progress> shown;
  // Progress would overwrite an unfinished list of problems on the same terminal.
  if (!a.json || isatty(STDOUT_FILENO) == 0) {
    shown.emplace("verify", all, [&] { return work_done{data.stats().bytes_read, shards}; });
  }
  const bool whole = take_until_stopped(data, stop, [&](const shard_facts& f) {
    found.add(f);
    ++shards;
  });
  shown.reset();
  if (whole && index) found.look_for_missing(*index, listed.lists_any);
  return found.finish(!whole);
}

}  // namespace

action add_verify(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("verify", "checks structure, keys, images, and digests against an index");
  auto a = std::make_shared<verify_arguments>();
  a->shards.add_to(*command, false);
  command
      ->add_option(
          "--index", a->index,
          "compare counts, sizes, MD5s and offsets with this index; folders and patterns must "
          "contain all of its shards")
      ->type_name("URL")
      ->group("Checks");
  command->add_flag("--images", a->images, "decode every image")->group("Checks");
  command
      ->add_option("--require", a->required,
                   "fields that every sample must have: jpg,cls; with alternatives: jpg;png,cls")
      ->type_name("FIELDS")
      ->group("Checks");
  add_json(*command, a->json);
  command->footer(
      "Prints one line per problem. Exit code 0: no problems; 1: some; 4: a shard cannot be\n"
      "reached or read.\n\nExample:\n"
      "  millrace verify train-{000000..000146}.tar --images --require jpg,cls");
  return [a](const environment& e) { return verify(e, *a); };
}

}  // namespace millrace::cli
