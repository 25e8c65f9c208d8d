#include "train/job/inputs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "engine/coroutines/scope.h"
#include "engine/files/written_file.h"
#include "engine/host/log.h"
#include "io/names/url.h"
#include "io/shard_urls.h"
#include "io/stores/known_stores.h"
#include "pipeline/formats/class_folders.h"
#include "pipeline/formats/group.h"
#include "pipeline/formats/scan.h"
#include "pipeline/formats/untar.h"
#include "pipeline/samples/label.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/state/records.h"
#include "pipeline/wids/index_entries.h"
#include "pipeline/wids/read_index.h"
#include "train/job/data.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// A shard's local path; empty if it is remote, a pipe or stdin.
std::string local_path(const std::string& url) {
  const auto where = parse_url(url);
  return where && where->scheme == "file" ? where->path : std::string();
}

bool fails_on_first(const train_options& o) {
  return o.bad_samples.most_skipped == 0;
}

bool is_regular(const std::string& path) {
  struct stat about{};
  return stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode);
}

// Not for FIFOs and devices, since opening them may wait or have effects, and not if bad samples
// may be skipped: an unreadable shard then counts as skipped samples.
void check_opens(const train_options& o, const std::string& url, const char* whose) {
  if (!fails_on_first(o)) return;
  const std::string path = local_path(url);
  if (path.empty()) return;
  struct stat about{};
  int why = stat(path.c_str(), &about) == 0 ? 0 : errno;
  if (why == 0 && S_ISREG(about.st_mode)) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    why = file < 0 ? errno : 0;
    if (file >= 0) close(file);
  }
  if (why == 0) return;
  throw failure(error(kind_of(why), fmt::format("cannot read a {} shard", whose))
                    .at(url)
                    .cause(why)
                    .hint("correct --shards and --val-shards, or skip it: --on-error "
                          "skip, a number or a share"));
}

// The result of looking at the labels of a shard's first samples.
struct first_samples {
  bool any = false;                 // false: empty, or skipped as the policy allows
  bool is_damaged = false;          // without any: some were skipped
  std::optional<error> wrong = {};  // if all of them are bad
};
first_samples look_at(const train_options& o, const std::string& url, const engine_options& how) {
  const std::string path = local_path(url);
  const bool is_local = !path.empty() && (is_regular(path) || !fs::exists(path));
  const auto where = parse_url(url);
  // Not for sources that can be read only once.
  if (!is_local && !(where && is_on_network(*where))) return {.any = true};
  constexpr std::int64_t local_samples = 1000;
  constexpr std::int64_t remote_samples = 8;
  const std::int64_t most = is_local ? local_samples : remote_samples;
  engine_options one = how;
  one.cpu_threads = 1;
  one.allocator = nullptr;
  engine eng(one);
  auto samples = eng.run(shards({url}, {.lanes = 1, .shuffle = false}) |
                         untar({.resync = o.resync}) | group_by_key());
  std::optional<error> first_bad;
  std::int64_t bad = 0;
  std::int64_t seen = 0;
  bool gave_one = false;
  for (; seen < most; ++seen) {
    std::optional<error> wrong;
    try {
      const auto s = samples.next();
      if (!s) break;
      gave_one = true;
      if (const auto label = label_of(*s, o.label, o.classes); !label) wrong = label.error();
    } catch (const failure& f) {
      const bool is_over = f.kind() == errc::no_samples || first_bad;
      if (is_over && !gave_one) {
        return {.any = false, .is_damaged = f.kind() != errc::no_samples || first_bad};
      }
      if (!f.why().is_skippable()) throw;
      wrong = f.why();
    }
    if (!wrong) continue;
    if (fails_on_first(o)) throw failure(with_policy(*wrong, o));
    if (!first_bad) first_bad = wrong;
    ++bad;
  }
  if (bad < seen) first_bad.reset();
  return {.any = gave_one, .wrong = first_bad};
}

// Stops at the first shard with a good sample; --on-error applies to the others during training.
void check_samples(const train_options& o, const std::vector<std::string>& urls,
                   const engine_options& how) {
  constexpr std::size_t most_shards = 8;
  std::optional<error> wrong;
  bool are_empty = true;
  for (std::size_t i = 0; i < std::min(most_shards, urls.size()); ++i) {
    const first_samples found = look_at(o, urls[i], how);
    if (found.any && !found.wrong) return;
    if (!wrong) wrong = found.wrong;
    are_empty = are_empty && !found.any && !found.is_damaged;
  }
  if (wrong) {
    throw failure(wrong->hint("none of the first samples is valid: check --label and --classes"));
  }
  if (!are_empty || urls.empty() || urls.size() > most_shards) return;
  throw failure(error(errc::no_samples, urls.size() == 1
                                            ? "no sample is in the shard"
                                            : fmt::format("no sample is in {} shards, this and the "
                                                          "others",
                                                          urls.size()))
                    .at(urls.front())
                    .hint("check that members are named KEY.EXTENSION"));
}

// `share`: samples of a rank's epoch.
error batch_too_large(const train_options& o, const job_place& place, std::int64_t share) {
  return error(errc::usage,
               fmt::format("--batch-size {} is more than the {} of a rank's epoch", o.batch_size,
                           counted(static_cast<std::uint64_t>(share), "sample")))
      .hint(place.world_size > 1 ? "lower it, or use fewer ranks" : "lower it");
}

void check_batch(const train_options& o, const run_inputs& found) {
  const job_place& place = found.parts.place();
  const std::int64_t samples = known_samples(o, found);
  if (samples == 0 || known_epoch_batches(o, found) > 0) return;
  throw failure(batch_too_large(o, place, samples / place.world_size));
}

// Those of `a` that `b` lacks, as often as it does.
std::vector<std::string> only_in(std::vector<std::string> a, std::vector<std::string> b) {
  std::ranges::sort(a);
  std::ranges::sort(b);
  std::vector<std::string> out;
  std::ranges::set_difference(a, b, std::back_inserter(out));
  return out;
}

// The difference between the shards of a checkpoint and of a run: ": 1 of its 8 is gone (a.tar),
// ...".
std::string differing_shards(const std::vector<std::string>& then,
                             const std::vector<std::string>& now) {
  if (then.empty() || now.empty()) return ", or with another index";
  if (then == now) return ": by the same names, with another index, or with or without one";
  const auto gone = only_in(then, now);
  const auto added = only_in(now, then);
  if (gone.empty() && added.empty()) return ": the same ones, in another order";
  std::string out = ": ";
  if (!gone.empty()) {
    out += fmt::format("{} of its {} {} gone ({})", gone.size(), then.size(),
                       gone.size() == 1 ? "is" : "are", first_of(gone));
  }
  if (!gone.empty() && !added.empty()) out += ", ";
  if (!added.empty()) {
    out += fmt::format("{} {} new ({})", added.size(), added.size() == 1 ? "is" : "are",
                       first_of(added));
  }
  return out;
}

// Not refused: a job whose ranks are lost continues with those that are left. With an index the
// plan refuses it.
void report_uneven_lanes(const train_options& o, const run_inputs& found) {
  const job_place& place = found.parts.place();
  const bool is_uneven = o.lanes > place.world_size && o.lanes % place.world_size != 0;
  if (!is_uneven || found.lengths || o.mode != train_epochs::equal ||
      epoch_length(o, place.world_size) > 0)
    return;
  log_notice(fmt::format(
      "{} lanes cannot be divided evenly among {} ranks: each epoch ends with those that have "
      "fewer, and the rest of it is left out; use --lanes with a multiple of {}, or --mode exact",
      o.lanes, place.world_size, place.world_size));
}

// The entries of the shards in an index. Without shards, takes those that the index lists. Null:
// there is no index.
std::shared_ptr<const shard_index> lengths_of(std::vector<std::string>& shards,
                                              const std::string& index, const std::string& base,
                                              const engine_options& how) {
  if (index.empty()) return nullptr;
  engine eng(how);
  shard_index said = read_index(eng, index, base);
  if (!shards.empty()) {
    return std::make_shared<const shard_index>(entries_of(said, shards, index));
  }
  for (const auto& s : said.shards) shards.push_back(s.url);
  return std::make_shared<const shard_index>(std::move(said));
}

// The facts that distinguish a shard from another one of the same name; empty if none are known.
std::string known_of_shard(const train_options& o, const run_inputs& found, std::size_t i) {
  const std::string& url = o.val_shards[i];
  std::string out;
  if (const auto file = stamp_of_file(local_path(url))) {
    out = fmt::format("{} bytes of {}", file->size, file->modified_ns);
  }
  if (const auto size = found.val_sizes.find(url); size != found.val_sizes.end()) {
    out += fmt::format(" {} bytes", size->second);
  }
  if (found.val_lengths) {
    const auto& said = found.val_lengths->shards[i];
    out += fmt::format(" {} samples {} bytes {}", said.samples, said.bytes, said.md5);
  }
  return out;
}

// A pipe has samples for one epoch only, of either training or validation.
void check_stdin(const train_options& o) {
  const auto reads = std::ranges::count(o.shards, "-") + std::ranges::count(o.val_shards, "-");
  struct stat about{};
  if (reads == 0 || (fstat(STDIN_FILENO, &about) == 0 && S_ISREG(about.st_mode))) return;
  const bool is_read_again = reads > 1 || (o.epochs > 1 && o.max_steps == 0);
  if (!is_read_again) return;
  throw failure(error(errc::usage, "standard input is a pipe, which can be read only once")
                    .at("-")
                    .hint("set --epochs 1 or --max-steps, name the shards, or redirect a file"));
}

// This may be intended.
void report_repeated(const std::vector<std::string>& urls, const char* whose) {
  const auto twice = repeated_shard(urls);
  if (!twice) return;
  log_notice(
      fmt::format("{} is in the list of {} shards more than once, and so are its samples in each "
                  "epoch",
                  printable(redacted(*twice)), whose));
}

}  // namespace

shard_index entries_of(const shard_index& said, const std::vector<std::string>& urls,
                       const std::string& where) {
  const index_entries entries(said, urls);
  shard_index used;
  for (const std::string& url : urls) {
    const auto [shard, is_ambiguous] = entries.find(url);
    if (is_ambiguous) {
      throw failure(error(errc::usage, fmt::format("the index lists {} by another URL, and its "
                                                   "file name is not unique there",
                                                   redacted(url)))
                        .at(where)
                        .hint("name the shards as the index does, or leave --shards out: the index "
                              "lists them"));
    }
    if (shard == nullptr) {
      throw failure(error(errc::usage, "the index does not list the shard " + redacted(url))
                        .at(where)
                        .hint("`millrace index create` makes one of all shards"));
    }
    used.shards.push_back(*shard);
  }
  return used;
}

run_inputs find_inputs(train_options& o, const engine_options& how) {
  run_inputs found;
  for (auto* specs : {&o.shards, &o.val_shards}) {
    if (specs->empty()) continue;
    listing_facts told;
    *specs = find_shards(*specs, o.base, how.source, &told).value();
    if (specs == &o.val_shards) found.val_sizes = std::move(told.sizes);
  }
  if (!o.raw.empty()) {
    const class_folders tree(o.raw);
    found.raw_files = std::ssize(tree.files);
    found.raw_names = tree.names_fingerprint();
    for (const std::string& name : tree.classes) found.raw_classes.push_back(printable(name));
    std::ranges::sort(found.raw_classes);
    found.raw_empty = tree.empty();
    found.raw_left_out = tree.left_out;
    if (std::ssize(tree.classes) > o.classes) {
      throw failure(error(errc::usage, fmt::format("{} class folders, and --classes is {}",
                                                   tree.classes.size(), o.classes))
                        .at(o.raw)
                        .hint("set --classes to the number of class folders"));
    }
  }
  found.lengths = lengths_of(o.shards, o.index, o.base, how);
  found.val_lengths = lengths_of(o.val_shards, o.val_index, o.base, how);
  return found;
}

std::string differing_classes(std::span<const std::string> here, std::span<const std::string> there,
                              std::string_view where) {
  std::vector<std::string> only_here;
  std::vector<std::string> only_there;
  std::ranges::set_difference(here, there, std::back_inserter(only_here));
  std::ranges::set_difference(there, here, std::back_inserter(only_there));
  if (only_here.empty() && only_there.empty()) return {};
  std::string out = "the class folders, which number the labels, differ:";
  if (!only_here.empty()) out += fmt::format(" {} here and not {}", first_of(only_here), where);
  if (!only_here.empty() && !only_there.empty()) out += ";";
  if (!only_there.empty()) out += fmt::format(" {} {} and not here", first_of(only_there), where);
  return out;
}

void check_same_classes(std::span<const std::string> saved, const train_options& o,
                        const run_inputs& found) {
  if (saved.empty() || found.raw_classes.empty()) return;
  const std::string other = differing_classes(found.raw_classes, saved, "in the checkpoint");
  if (other.empty()) return;
  throw failure(error(errc::usage, other)
                    .at(o.raw)
                    .hint("give the folder the class folders of the run that saved it (an empty "
                          "one counts), or train from scratch"));
}

std::vector<std::string> recorded_shards(const train_options& o) {
  constexpr std::size_t most = 100'000;
  std::vector<std::string> names;
  if (o.shards.size() > most) return names;
  for (const std::string& url : o.shards) names.push_back(printable(redacted(url)));
  return names;
}

void check_same_shards(const checkpoint_record& saved, const state& fresh,
                       const std::vector<std::string>& shards) {
  const auto was = plan_record::in(saved.data);
  const auto is = plan_record::in(fresh);
  if (!was || !is || was->list == is->list) return;
  // With other lanes an index may begin to matter: the pipeline decides.
  if (was->lanes != is->lanes) return;
  // What a pattern or a folder no longer finds may come back: a launcher may try again.
  const bool are_only_gone = !shards.empty() && only_in(shards, saved.shards).empty() &&
                             shards.size() < saved.shards.size();
  throw failure(
      error(are_only_gone ? errc::not_found : errc::usage,
            "the checkpoint was saved with another list of shards" +
                differing_shards(saved.shards, shards))
          .hint("give the shards of the run that saved it, by the same names in the same "
                "order (MILLRACE_REWRITE=OLD=NEW reads them from another place); to train "
                "on other shards, begin a new run with its weights: --init-weights "
                "CHECKPOINT/model.safetensors"));
}

std::string inputs_fingerprint(const train_options& o, const run_inputs& found) {
  std::uint64_t all = fingerprint(fmt::format("{:016x}\n", found.raw_names));
  for (const auto* list : {&o.shards, &o.val_shards}) {
    for (const std::string& url : *list) all = fingerprint(url + "\n", all);
    all = fingerprint("\n", all);
  }
  for (const auto& lengths : {found.lengths, found.val_lengths}) {
    // Whether samples are distributed also depends on having their places.
    all = fingerprint(!lengths                 ? "no index\n"
                      : lengths->has_offsets() ? "places\n"
                                               : "lengths\n",
                      all);
    if (!lengths) continue;
    for (const auto& s : lengths->shards) all = fingerprint(fmt::format("{} ", s.samples), all);
  }
  return fmt::format("{} training and {} validation shards, {} files ({:016x})", o.shards.size(),
                     o.val_shards.size(), found.raw_files, all);
}

std::string validation_fingerprint(const train_options& o, const run_inputs& found) {
  std::uint64_t all = fingerprint("");
  for (std::size_t i = 0; i < o.val_shards.size(); ++i) {
    all = fingerprint(o.val_shards[i] + "\n" + known_of_shard(o, found, i) + "\n", all);
  }
  const image_options& image = o.image;
  const std::string how =
      fmt::format("{} {} {} {} {} {} {} {}", o.label, o.size, image.lenient, image.fill_truncated,
                  image.fast, static_cast<int>(image.filter), o.gpu_decode, o.amp) +
      (o.ema_decay > 0 ? " ema" : "");
  return fmt::format("{:016x}", fingerprint(how, all));
}

void check_inputs(const train_options& o, const run_inputs& found, const job_place& place,
                  const engine_options& how) {
  check_stdin(o);
  for (const std::string& url : o.shards) check_opens(o, url, "training");
  for (const std::string& url : o.val_shards) check_opens(o, url, "validation");
  check_batch(o, found);
  if (place.rank != 0) return;  // once per job is enough
  report_uneven_lanes(o, found);
  report_repeated(o.shards, "training");
  report_repeated(o.val_shards, "validation");
  report_empty_classes(found.raw_empty);
  if (!found.raw_left_out.empty()) {
    log_notice(fmt::format(
        "{} left out, being no image, in no class folder, or a link to a folder or to "
        "nothing: {}{}",
        counted(found.raw_left_out.size(), "file"), redacted(found.raw_left_out.front()),
        found.raw_left_out.size() > 1 ? ", ..." : ""));
  }
  check_samples(o, o.shards, how);
  try {
    check_samples(o, o.val_shards, how);
  } catch (const failure& f) {
    throw failure(of_validation(f.why()));
  }
}

std::int64_t count_first_epoch(const train_options& o, const run_inputs& found,
                               const engine_options& how) {
  const job_place& place = found.parts.place();
  constexpr std::uint64_t most_bytes = 256 << 20;
  const auto ranks = static_cast<std::size_t>(place.world_size);
  if (found.lengths || o.shards.size() < ranks || epoch_length(o, place.world_size) > 0) return 0;
  if (o.lanes > 0 && o.lanes < place.world_size) return 0;  // the plan refuses that
  std::uint64_t bytes = 0;
  for (const std::string& url : o.shards) {
    const std::string path = local_path(url);
    if (path.empty() || !is_regular(path)) return 0;
    bytes += fs::file_size(path);
    if (bytes > most_bytes) return 0;
  }
  engine_options one = how;
  one.allocator = nullptr;
  engine eng(one);
  std::vector<std::int64_t> samples;
  std::int64_t all = 0;
  for (const shard_facts& f : eng.run(scan(o.shards, {.md5 = false}))) {
    if (!f.problems.empty()) return 0;  // --on-error decides during training
    all += samples.emplace_back(std::ssize(f.samples));
  }
  if (all == 0) return 0;  // training reports why
  const std::vector<std::int64_t> of_ranks = samples_of_ranks(o, found, samples);
  // A run that is resumed may be in an epoch with another share.
  const std::int64_t share = o.resume.empty() ? std::ranges::min(of_ranks) : all / place.world_size;
  if (share < o.batch_size && o.mode != train_epochs::exact) {
    throw failure(batch_too_large(o, place, share));
  }
  return batches_of_ranks(o, of_ranks);
}

}  // namespace millrace
