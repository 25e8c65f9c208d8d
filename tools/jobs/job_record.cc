#include "tools/jobs/job_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/fingerprint.h"
#include "engine/base/json_tree.h"
#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "engine/files/file_system.h"
#include "engine/files/folders.h"
#include "engine/files/written_file.h"
#include "io/hashes.h"
#include "io/names/folder_listing.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using file_identity = std::pair<dev_t, ino_t>;

error cannot_look(std::string_view what, const std::string& path, int code) {
  return error(kind_of(-code), fmt::format("cannot look at the {}", what))
      .at(path)
      .cause(-code)
      .hint(hint_on_path(-code));
}

// nullopt: nothing is there.
std::optional<struct stat> look_at(const std::string& path) {
  struct stat s{};
  const int code = host_files().stat(path, s);
  if (code == -ENOENT || code == -ENOTDIR) return std::nullopt;
  if (code != 0) throw failure(cannot_look("shard", path, code));
  return s;
}

// The text of a file; nullopt if there is none.
std::optional<std::string> text_there(const std::string& path) {
  auto text = read_whole_file(path);
  if (text) return std::move(*text);
  if (text.error().kind() != errc::not_found) throw failure(text.error());
  return std::nullopt;
}

std::string_view first_line_of(std::string_view text) {
  return text.substr(0, text.find('\n'));
}

constexpr std::string_view ending_of_record = ".pack.json";

// ".train-000000.pack.json" beside the first shard; of another extension than .tar, or of none,
// with that.
std::string record_path(const shard_names& names) {
  const fs::path first(names(0));
  std::string name = first.filename().string();
  if (first.extension() == ".tar") name = first.stem().string();
  if (first.extension().empty()) name += '.';
  return (first.parent_path() / ("." + name + std::string(ending_of_record))).string();
}

// Those of older versions, which had no lists, begin with the fingerprint.
bool is_record(std::string_view text) {
  return text.empty() || text.starts_with(R"({"classes":")") ||
         text.starts_with(R"({"fingerprint":")");
}

// With the fingerprint: of two jobs that begin at once, neither writes into the other's.
std::string list_path(const std::string& record, const job_record& job) {
  return fmt::format("{}.{:016x}.{}-of-{}", record, job.fingerprint, job.part, job.parts);
}

bool is_of_part(const job_record& job, std::size_t shard) {
  return static_cast<int>(shard % static_cast<std::size_t>(job.parts)) == job.part - 1;
}

// "train-classes.txt": the shards' name without its number, then this one.
std::string classes_path(const shard_names& names) {
  const fs::path first(names(0));
  std::string stem = first.stem().string();
  while (!stem.empty() && stem.back() >= '0' && stem.back() <= '9') stem.pop_back();
  const bool needs_dash =
      !stem.empty() && std::isalnum(static_cast<unsigned char>(stem.back())) != 0;
  return (first.parent_path() / (stem + (needs_dash ? "-classes.txt" : "classes.txt"))).string();
}

// Whether this is the name of a list of shards, whose record's name is its first `record` bytes.
bool is_list_name(std::string_view name, std::size_t record) {
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  };
  if (name.size() <= record || name[record] != '.') return false;
  const std::string_view part =
      name.substr(std::min(name.find('.', record + 1), name.size() - 1) + 1);
  const auto of = part.find("-of-");
  return of != part.npos && is_number(part.substr(0, of)) && is_number(part.substr(of + 4));
}

// The lists of shards in a folder (empty: the current one) that are beside this record, or, empty,
// beside any, whichever job they are of.
std::vector<std::string> lists_in(const fs::path& folder, std::string_view record) {
  std::vector<std::string> names;
  const std::string here = folder.empty() ? "." : folder.string();
  const int code = host_files().list(here, names);
  if (code == -ENOENT) return {};
  if (code != 0) throw failure(cannot_look("folder of the shards", here, code));
  std::vector<std::string> out;
  for (const std::string& name : names) {
    const auto ending = name.find(ending_of_record);
    const auto end =
        !record.empty() ? record.size() : std::min(ending, name.size()) + ending_of_record.size();
    if (name.starts_with(record) && is_list_name(name, end))
      out.push_back((folder / name).string());
  }
  return out;
}

std::vector<std::string> lists_beside(const fs::path& record) {
  return lists_in(record.parent_path(), record.filename().string());
}

std::set<file_identity> identities_of(std::span<const std::string> paths) {
  std::set<file_identity> out;
  for (const std::string& path : paths) {
    if (const auto s = look_at(path)) out.emplace(s->st_dev, s->st_ino);
  }
  return out;
}

std::string line_of(std::size_t shard, const archive_bytes& b) {
  return fmt::format(R"({{"crc32c":{},"modified_ns":{},"shard":{},"size":{}}})", b.crc,
                     b.modified_ns, shard, b.size) +
         '\n';
}

// Skips an incomplete line, left by a kill or a full disk: its shard was never named.
void add_lines(std::string_view text, listed_shards& to) {
  for (auto end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    const auto line = json_tree::parse(text.substr(0, end));
    text.remove_prefix(end + 1);
    if (!line) continue;
    const auto number = [&](std::string_view name) {
      const json_tree* const found = line->find(name);
      return found != nullptr ? found->as<std::int64_t>() : nullptr;
    };
    const auto *const shard = number("shard"), *const size = number("size"),
                      *const crc = number("crc32c"), *const when = number("modified_ns");
    if (shard == nullptr || size == nullptr || crc == nullptr || when == nullptr) continue;
    to.emplace(
        static_cast<std::size_t>(*shard),
        archive_bytes{static_cast<std::uint64_t>(*size), static_cast<std::uint32_t>(*crc), *when});
  }
}

// The shards that the lists of this job hold.
listed_shards read_lists(const std::vector<std::string>& lists, std::string_view about) {
  listed_shards out;
  for (const std::string& list : lists) {
    const std::string text = text_there(list).value_or("");
    if (first_line_of(text) == about) add_lines(text, out);
  }
  return out;
}

std::uint32_t crc_of_file(const std::string& path, std::uint64_t size) {
  const held_file file(host_files().open(path, O_RDONLY));
  if (!file) throw failure(cannot_look("shard", path, file.fd()));
  std::vector<std::byte> piece(std::size_t{1} << 20);
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < size; at += piece.size()) {
    const ssize_t n = read_all(file.fd(), piece, at);
    if (n < 0) throw failure(cannot_look("shard", path, static_cast<int>(n)));
    crc = crc32c(std::span(piece).first(static_cast<std::size_t>(n)), crc);
  }
  return crc;
}

// Whether a file with the names of classes is the one that the job of this record wrote.
bool is_of_record(const std::optional<std::string>& text, std::string_view record) {
  const auto parsed = json_tree::parse(record);
  return text && parsed && parsed->text_of("classes") == fmt::format("{:016x}", fingerprint(*text));
}

// An older job's may be replaced with its shards, a user's own file never.
void check_classes(const std::string& path, const job_record& job, std::string_view older) {
  const auto there = text_there(path);
  if (!there || *there == job.classes) return;
  const bool is_older = is_of_record(there, older);
  if (is_older ? job.overwrite : job.classes.empty()) return;
  throw failure(error(errc::usage, "another file stands where the names of the classes go")
                    .at(path)
                    .hint(is_older ? "choose another name, or set pack_options.overwrite"
                                   : "remove that file, or choose another name for the shards"));
}

// A byte beyond all content: others may read the content, and must be able to write it where locks
// are mandatory.
struct flock of_a_living_run() {
  struct flock mark{};
  mark.l_type = F_WRLCK;
  mark.l_whence = SEEK_SET;
  mark.l_start = off_t{1} << 62;
  mark.l_len = 1;
  return mark;
}

// Whether a living run holds the list of its part. False on file systems without locks: add() then
// notices that another job has begun.
bool is_held(const std::string& list) {
  const held_file file(host_files().open(list, O_RDONLY));
  struct flock found = of_a_living_run();
  return file && host_files().find_lock(file.fd(), found) == 0 && found.l_type != F_UNLCK;
}

// `by`: the file that tells.
error is_running(const std::string& by) {
  return error(errc::usage, "another run is writing shards of these names")
      .at(by)
      .hint("wait until it ends, or choose another name for the shards");
}

// The shards that living runs have written into these folders, by whatever pattern: size and time
// of each, and the list that it is in.
using shards_of_the_living = std::map<std::pair<std::uint64_t, std::int64_t>, std::string>;
shards_of_the_living written_by_the_living(const std::set<fs::path>& folders,
                                           const std::string& own_list) {
  shards_of_the_living out;
  for (const fs::path& folder : folders) {
    for (const std::string& list : lists_in(folder, "")) {
      if (list == own_list || !is_held(list)) continue;
      listed_shards shards;
      add_lines(text_there(list).value_or(""), shards);
      for (const auto& [number, b] : shards) out.try_emplace({b.size, b.modified_ns}, list);
    }
  }
  return out;
}

void check_not_of_the_living(const std::map<std::size_t, file_stamp>& shards,
                             const std::set<fs::path>& folders, const std::string& own_list) {
  const auto living = written_by_the_living(folders, own_list);
  for (const auto& [shard, stamp] : shards) {
    const auto found = living.find({stamp.size, stamp.modified_ns});
    if (found != living.end()) throw failure(is_running(found->second));
  }
}

// Whether the file is one of these. Its bytes are read where its size fits, and its time does not.
bool is_one_of(const std::string& path, const struct stat& there, auto first, auto last) {
  const auto size = static_cast<std::uint64_t>(there.st_size);
  std::optional<std::uint32_t> crc;
  return S_ISREG(there.st_mode) && std::any_of(first, last, [&](const auto& listed) {
           const archive_bytes& b = listed.second;
           if (b.size != size) return false;
           if (b.modified_ns == modified_ns(there)) return true;
           if (!crc) crc = crc_of_file(path, size);
           return b.crc == *crc;
         });
}

}  // namespace

void check_no_shard_after(const shard_names& names, std::size_t count) {
  const auto older = names.there_from(count);
  if (older.empty()) return;
  throw failure(
      error(errc::usage, fmt::format("{} of an older run would follow those of this one",
                                     counted(older.size(), "shard")))
          .at(older.front())
          .hint(fmt::format(
              "remove {}, or choose another name",
              older.size() == 1 ? "it" : fmt::format("them (up to {})", printable(older.back())))));
}

void check_no_living_run(const shard_names& names, std::size_t first,
                         std::span<const std::string> shards) {
  for (const std::string& list : lists_beside(record_path(names))) {
    if (is_held(list)) throw failure(is_running(list));
  }
  std::map<std::size_t, file_stamp> there;
  std::set<fs::path> folders;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto stamp = stamp_of_file(shards[i]);
    if (!stamp) continue;
    there[i] = *stamp;
    folders.insert(fs::path(shards[i]).parent_path());
  }
  check_not_of_the_living(there, folders, "");
  std::vector<std::string> all(shards.begin(), shards.end());
  for (std::size_t i = first + shards.size(); i < first + shards.size() + 2; ++i) {
    if (names.limit() == 0 || i < names.limit()) all.push_back(names(i));
  }
  check_not_being_written(all);
}

void check_not_being_written(std::span<const std::string> shards) {
  if (const auto partial = partial_of_another(shards)) throw failure(is_running(*partial));
}

shard_job begin_job(const shard_names& names, const job_record& job) {
  shard_job out(names, job);
  out.hold_list();
  try {
    out.begin(names, job);
  } catch (...) {
    out.leave_list();
    throw;
  }
  return out;
}

shard_job::shard_job(const shard_names& names, const job_record& job)
    : record_(record_path(names)) {
  about_ = fmt::format(R"({{"classes":"{:016x}","fingerprint":"{:016x}",)"
                       R"("millrace_pack":2,"samples":{},"shards":{}}})",
                       job.classes.empty() ? 0 : fingerprint(job.classes), job.fingerprint,
                       job.samples, job.shards);
  list_path_ = list_path(record_, job);
  files_ = {record_, list_path_};
  for (std::size_t i = 0; i < job.shards; ++i) {
    if (is_of_part(job, i)) files_.push_back(names(i));
  }
}

void shard_job::check_shards(const shard_names& names, const job_record& job,
                             const listed_shards& listed) {
  std::vector<std::string> all;
  all.reserve(job.shards);
  for (std::size_t i = 0; i < job.shards; ++i) all.push_back(names(i));
  check_apart(all, "shard");
  std::optional<std::set<file_identity>> inputs;
  std::set<fs::path> folders;  // of those that are replaced
  for (std::size_t i = 0; i < job.shards; ++i) {
    const std::string& name = all[i];
    const auto there = look_at(name);
    if (!there) continue;
    if (!inputs) inputs = identities_of(job.inputs());
    if (inputs->contains({there->st_dev, there->st_ino})) {
      throw failure(error(errc::usage, "the output is one of the inputs")
                        .at(name)
                        .hint("choose another name for the shards"));
    }
    check_shard_output(name, true);
    if (!is_of_part(job, i)) continue;  // their runs ask
    if (job.overwrite) {
      const auto stamp = stamp_of_file(name);
      if (!stamp) continue;
      replaced_[i] = *stamp;
      folders.insert(fs::path(name).parent_path());
      continue;
    }
    const auto [first, last] = listed.equal_range(i);
    if (is_one_of(name, *there, first, last)) {
      there_.insert(i);
      continue;
    }
    throw failure(error(errc::usage, "a shard of that name exists, of another run")
                      .at(name)
                      .hint("choose another name, or set pack_options.overwrite"));
  }
  check_not_of_the_living(replaced_, folders, list_path_);
  check_not_being_written(std::span(files_).subspan(2));  // without the two records
}

// Held before it is looked for those of other jobs: of two that begin at once, one sees the other's
// at least.
void shard_job::hold_list() {
  for (;;) {
    held_ = held_file(host_files().open(list_path_, O_RDWR | O_CREAT, 0644));
    if (!held_) {
      const int why = -held_.fd();
      throw failure(
          error(kind_of(why), "cannot make the list of the shards")
              .at(list_path_)
              .cause(why)
              .hint(why == ENOENT ? "make the folder of the shards first" : hint_on_path(why)));
    }
    if (host_files().lock(held_.fd(), of_a_living_run()) == -EAGAIN) {
      throw failure(is_running(list_path_));
    }
    struct stat s{};
    if (host_files().stat(held_.fd(), s) != 0 || s.st_nlink > 0) return;
  }
}

void shard_job::leave_list() {
  struct stat s{};
  if (host_files().stat(held_.fd(), s) == 0 && s.st_size == 0) host_files().unlink(list_path_);
}

// Not looked at beyond their names: those of the same job's other parts may be about to begin.
std::vector<std::string> shard_job::lists_of_others(const std::vector<std::string>& lists,
                                                    const job_record& job) const {
  const std::string same_job = fmt::format("{}.{:016x}.", record_, job.fingerprint);
  const std::string same_division = fmt::format("-of-{}", job.parts);
  std::vector<std::string> out;
  for (const std::string& list : lists) {
    if (list.starts_with(same_job) && (!job.overwrite || list.ends_with(same_division))) continue;
    if (is_held(list)) throw failure(is_running(list));
    out.push_back(list);
  }
  return out;
}

void shard_job::begin(const shard_names& names, const job_record& job) {
  const auto there = text_there(record_);
  if (there && !is_record(*there)) {
    throw failure(error(errc::usage, "another file has the name of the record")
                      .at(record_)
                      .hint("remove that file, or choose another name for the shards"));
  }
  const std::string_view older = first_line_of(there ? std::string_view(*there) : "");
  const auto lists = lists_beside(record_);
  const auto others = lists_of_others(lists, job);
  check_shards(names, job, read_lists(lists, about_));
  check_no_shard_after(names, job.shards);
  const std::string classes = classes_path(names);
  check_classes(classes, job, older);
  // All is checked.
  remove_leavings();
  // A kill at any point leaves no shard of another job that could be taken for this one's.
  for (const std::string& list : others) host_files().unlink(list);
  const auto listed = text_there(list_path_);
  const bool goes_on = listed && first_line_of(*listed) == about_ && !job.overwrite;
  if (!goes_on && listed != "") {
    host_files().unlink(list_path_);
    hold_list();
  }
  const auto classes_there = text_there(classes);
  if (classes_there != job.classes && is_of_record(classes_there, older)) {
    host_files().unlink(classes);  // while the record still tells whose they are
  }
  if (older != about_) write_whole_file(record_, about_ + "\n", "record of the shards");
  if (!job.classes.empty()) {
    classes_file_ = classes;
    if (classes_there != job.classes) write_whole_file(classes, job.classes);
  }
  list_ = std::make_unique<line_file>(list_path_, "the list of the shards");
  if (!goes_on) list(about_ + '\n');
  const int synced = sync_folder(fs::path(list_path_).parent_path());
  if (synced != 0) throw failure(cannot_look("folder of the shards", list_path_, synced));
}

// On the disk when it returns.
void shard_job::list(std::string_view line) const {
  auto told = list_->add(line);
  if (told) told = list_->sync();
  if (!told) throw failure(told.error());
}

void shard_job::add(std::size_t shard, tar_writer& written) const {
  // Before it has its name: a shard that has one is in the list, also after a loss of power.
  list(line_of(shard, written.finish()));
  const std::string record = text_there(record_).value_or("");
  if (first_line_of(record) != about_) {
    throw failure(error(errc::usage, "another run has begun to write shards of these names")
                      .at(record_)
                      .hint("choose another name for one of the two"));
  }
  // A file that has appeared under the name meanwhile is another program's.
  const auto before = replaced_.find(shard);
  written.close_over(before == replaced_.end() ? std::nullopt : std::optional(before->second));
}

}  // namespace millrace
