#include "tools/write/shard_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "engine/base/check_option.h"
#include "engine/base/error.h"
#include "engine/base/words.h"
#include "engine/files/written_file.h"
#include "pipeline/formats/tar_writer.h"
#include "pipeline/samples/sample_name.h"
#include "tools/jobs/job_record.h"
#include "tools/jobs/names.h"
#include "tools/write/shard_rules.h"

namespace millrace {
namespace {

// A shard that is being written.
struct open_shard {
  // Throws `failure` if the file is not to be written, or cannot be.
  open_shard(const std::string& path, bool overwrite);

  std::optional<file_stamp> before;  // the file that it replaces
  written_shard facts;
  std::unique_ptr<tar_writer> out;
  std::string last_key;
};

[[noreturn]] void refuse_existing(const std::string& path) {
  throw failure(error(errc::usage, "a file of that name exists")
                    .at(path)
                    .hint("choose another name, or set shard_writer_options.overwrite"));
}

open_shard::open_shard(const std::string& path, bool overwrite)
    : before(stamp_of_file(path)), facts{.path = path} {
  if (before && !overwrite) refuse_existing(path);
  check_shard_output(path, true);
  check_not_being_written(std::array{path});
  out = std::make_unique<tar_writer>(path);
}

void check_options(const shard_writer_options& o) {
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  check_option("shard_writer_options.most_count", o.most_count, 1, most);
  check_option("shard_writer_options.most_bytes", o.most_bytes, 1,
               std::numeric_limits<std::uint64_t>::max());
  check_option("shard_writer_options.first_shard", o.first_shard, 0, most);
}

}  // namespace

struct shard_writer::impl {
  explicit impl(const shard_writer_options& o) : options(o), names(o.pattern) {
    check_options(o);
    const auto first = static_cast<std::size_t>(o.first_shard);
    const auto there = names.there_from(first);
    check_no_living_run(names, first, there);  // first: `overwrite` does not help against one
    if (!there.empty() && !o.overwrite) refuse_existing(there.front());
    now.emplace(names(first), o.overwrite);
  }

  shard_writer_options options;
  shard_names names;
  std::optional<open_shard> now;  // nullopt: closed
  std::vector<written_shard> done;
  std::optional<error> failed;
  bool has_failed = false;  // also where there was no memory for `failed`
  bool is_closed = false;   // and has said what close() says

  bool is_full() const {
    return is_full_shard(now->facts.samples, now->facts.payload_bytes, options.most_count,
                         options.most_bytes);
  }
  std::size_t next() const { return static_cast<std::size_t>(options.first_shard) + done.size(); }

  // The names of a sample's files.
  std::vector<std::string> names_of(std::string_view key, std::span<const field_view> fields) const;
  void check_not_failed() const;
  void check_usable() const;
  // Calls `f`, after whose failure the writer cannot be used.
  template <class Function>
  void attempt(Function f);
  void add(std::string_view key, std::span<const field_view> fields);
  void begin_next();
  void finish();
  void tell() const;
};

std::vector<std::string> shard_writer::impl::names_of(std::string_view key,
                                                      std::span<const field_view> fields) const {
  const auto refuse = [&](const std::string& what, const std::string& hint) {
    throw failure(error(errc::usage, what).at(now->facts.path).key(key).hint(hint));
  };
  if (key.starts_with('/') || ("/" + std::string(key) + "/").find("/../") != std::string::npos) {
    refuse("a key that leads out of the folder where a shard is unpacked",
           "write keys without '..', and without a '/' at their start");
  }
  if (fields.empty()) refuse("a sample without a field", "give it one");
  if (fields.size() > most_fields) {
    refuse(fmt::format("a sample of {} fields (at most {})", fields.size(), most_fields),
           "divide it");
  }
  std::vector<std::string> out;
  std::vector<std::string> extensions;
  std::size_t name_bytes = key.size();
  for (const field_view& f : fields) {
    const std::string extension = extensions.emplace_back(lowered(f.extension));
    if (extension.empty() || extension.front() == '.') {
      refuse(fmt::format("'{}' is not an extension", f.extension),
             "write it without its first dot: jpg, seg.png");
    }
    const std::string& name = out.emplace_back(fmt::format("{}.{}", key, extension));
    tar_writer::check_member(now->facts.path, name, f.content.size());
    const auto read = split_name(name);
    if (!read || read->key != key || read->extension != extension) {
      refuse(fmt::format("readers take '{}' for another key and extension", name),
             "write keys without dots after their last '/', and extensions without '/'");
    }
    name_bytes += extension.size();
  }
  if (name_bytes > most_name_bytes) {
    refuse(fmt::format("the names of a sample have {} bytes (at most {})", name_bytes,
                       most_name_bytes),
           "shorten them");
  }
  std::ranges::sort(extensions);
  const auto twice = std::ranges::adjacent_find(extensions);
  if (twice != extensions.end()) {
    refuse(fmt::format("two fields of the extension '{}'", *twice), "name one of them differently");
  }
  if (now->facts.samples > 0 && now->last_key == key && !is_full()) {
    refuse("the sample before it has the same key", "give each sample a key of its own");
  }
  return out;
}

void shard_writer::impl::check_not_failed() const {
  if (failed) throw failure(*failed);
  if (has_failed) throw failure(out_of_memory());
}

template <class Function>
void shard_writer::impl::attempt(Function f) {
  has_failed = true;
  try {
    f();
  } catch (...) {
    failed = error_of(std::current_exception());
    throw;
  }
  has_failed = false;
}

void shard_writer::impl::check_usable() const {
  check_not_failed();
  if (!now) {
    throw failure(error(errc::usage, "the shards are closed").hint("make another shard_writer"));
  }
}

void shard_writer::impl::add(std::string_view key, std::span<const field_view> fields) {
  check_usable();
  const auto files = names_of(key, fields);
  if (is_full()) {
    begin_next();
    check_usable();  // `written` may have closed it
  }
  attempt([&] {
    now->last_key = key;
    for (std::size_t i = 0; i < files.size(); ++i) now->out->add(files[i], fields[i].content);
  });
  ++now->facts.samples;
  for (const field_view& f : fields) now->facts.payload_bytes += f.content.size();
}

// Other processes see by its file that this one writes: there is one until the last shard is
// complete.
void shard_writer::impl::begin_next() {
  const std::string path = names(next() + 1);
  std::optional<open_shard> after;
  if (!is_device_path(path)) after.emplace(path, options.overwrite);
  finish();
  if (!after) attempt([&] { after.emplace(path, options.overwrite); });
  now = std::move(after);
  tell();
}

void shard_writer::impl::finish() {
  attempt([&] {
    now->facts.bytes = now->out->finish().size;
    if (done.size() == done.capacity())
      done.reserve(2 * done.size() + 8);  // before the name is given
    now->out->close_over(now->before);
  });
  done.push_back(std::move(now->facts));
  now.reset();
}

// `written` may call the writer, which may move what is done.
void shard_writer::impl::tell() const {
  if (!options.written) return;
  const written_shard last = done.back();
  options.written(last);
}

shard_writer::shard_writer(const shard_writer_options& options)
    : impl_(std::make_unique<impl>(options)) {}
shard_writer::~shard_writer() = default;

void shard_writer::write(std::string_view key, std::span<const field_view> fields) {
  impl_->add(key, fields);
}

void shard_writer::write(const sample& s) {
  std::vector<field_view> fields;
  fields.reserve(s.fields.size());
  for (const field& f : s.fields) fields.emplace_back(f.extension, f.data.span());
  impl_->add(s.key, fields);
}

const std::vector<written_shard>& shard_writer::close() {
  impl& w = *impl_;
  w.check_not_failed();
  if (w.is_closed) return w.done;
  if (w.now && w.now->facts.samples > 0) {
    w.finish();
    w.tell();
  }
  w.now.reset();
  std::vector<std::string> paths;
  paths.reserve(w.done.size());
  for (const written_shard& s : w.done) paths.push_back(s.path);
  remove_partial_files(paths);
  if (w.options.overwrite) check_no_shard_after(w.names, w.next());
  w.is_closed = true;
  return w.done;
}

const std::vector<written_shard>& shard_writer::shards() const {
  return impl_->done;
}

}  // namespace millrace
