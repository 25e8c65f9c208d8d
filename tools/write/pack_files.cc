#include "tools/write/pack_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "engine/coroutines/scope.h"
#include "engine/files/file_system.h"
#include "engine/files/folders.h"
#include "engine/host/log.h"
#include "io/names/folder_listing.h"
#include "pipeline/formats/class_folders.h"
#include "pipeline/formats/group.h"
#include "pipeline/formats/untar.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/samples/sample_name.h"
#include "tools/write/pack_list.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

struct file_name {
  std::string stem;  // path without what follows the last dot
  std::string extension;
  bool has_more_dots = false;  // in its last component; '_' in the stem
};

std::optional<file_name> split_path(const std::string& path) {
  const auto slash = path.rfind('/');
  const auto base = slash == path.npos ? 0 : slash + 1;
  const auto dot = path.rfind('.');
  if (dot == path.npos || dot <= base || dot + 1 == path.size()) return std::nullopt;
  file_name out{path.substr(0, dot), lowered(path.substr(dot + 1))};
  // Readers split a name at its first dot.
  const auto last = out.stem.begin() + static_cast<std::ptrdiff_t>(base);
  out.has_more_dots = std::find(last, out.stem.end(), '.') != out.stem.end();
  std::replace(last, out.stem.end(), '.', '_');
  return out;
}

// What readers of shards leave out, or take for another sample, is not packed.
void check_is_read(const file_name& name, const std::string& path) {
  if (is_meta_name(name.stem)) {
    throw failure(error(errc::usage,
                        "readers of shards leave out what is named __x__, or lies in a "
                        "folder of such a name")
                      .at(path)
                      .hint("rename the folder"));
  }
  const auto read = split_name(name.stem + "." + name.extension);
  if (read && read->key == name.stem && read->extension == name.extension) return;
  throw failure(error(errc::usage, "readers of shards find no sample under this name")
                    .at(path)
                    .hint("rename the file or its folder: without line breaks"));
}

std::uint64_t size_of(const std::string& path) {
  struct stat s{};
  const int code = host_files().stat(path, s);
  if (code == 0 && S_ISREG(s.st_mode)) return static_cast<std::uint64_t>(s.st_size);
  const int why = code == 0 ? EINVAL : -code;
  throw failure(error(kind_of(why), code == 0 ? "this is not a file" : "cannot read the file")
                    .at(path)
                    .cause(code == 0 ? 0 : why)
                    .hint(code == 0 ? "name plain files" : hint_on_path(why)));
}

bool has_image(const std::vector<packed_field>& fields) {
  return std::ranges::any_of(fields,
                             [](const packed_field& f) { return is_image_extension(f.extension); });
}

std::string folder_of_file(const std::string& path) {
  return std::filesystem::path(path).parent_path().lexically_normal().string();
}

// Puts files together to samples by their stems; in the order of the stems.
class sample_collector {
 public:
  explicit sample_collector(same_name how) : how_(how) {}

  void add(const std::string& path, const std::string& name, const std::string& label,
           std::uint64_t size) {
    const auto split = split_path(name);
    if (!split) {
      ++without_extension_;
    } else if (split->has_more_dots) {
      with_dots_.push_back({path, name, label, size});
    } else {
      add_field(of_its_sample(*split, path), path, label, size);
    }
  }

  std::vector<packed_sample> finish() {
    std::vector<std::string> parts;  // names
    std::vector<std::string> renamed;
    for (const file& f : with_dots_) {
      const auto read = split_name(f.name);
      const bool is_part = read && is_field_of(read->key, f.path);
      const file_name as = is_part ? file_name{read->key, read->extension} : *split_path(f.name);
      if (!is_part) check_is_one(as, f);
      add_field(as, f.path, f.label, f.size);
      (is_part ? parts : renamed).push_back(f.name);
    }
    const auto tell = [](const std::vector<std::string>& names, std::string_view noun,
                         std::string_view what) {
      if (names.empty()) return;
      log_notice(fmt::format("{} {} ({})", counted(names.size(), noun), what, first_of(names)));
    };
    tell(parts, "name", "with several dots taken for fields of images");
    tell(renamed, "name", "with several dots written with '_' for all but the last");
    tell(shared_, "image", "that share a name with another are samples of their own");
    tell(empty_, "image", "without a byte, packed all the same");
    return samples();
  }

  std::uint64_t without_extension() const { return without_extension_; }

 private:
  struct file {
    std::string path;
    std::string name;
    std::string label;
    std::uint64_t size;
  };

  // Throws where nobody has said what an image is that has the name of another one.
  void check_is_said(const std::string& path, const std::vector<packed_field>& other) const {
    if (how_ != same_name::unknown) return;
    throw failure(error(errc::usage, fmt::format("this may be a field of {} or an image of its own",
                                                 other.front().path))
                      .at(path)
                      .hint("say which by pack_options.of_one_name"));
  }

  // Of a.png where a.jpg is there: the key a, or a_png.
  file_name of_its_sample(const file_name& name, const std::string& path) {
    const auto other = by_stem_.find(name.stem);
    const bool is_second =
        other != by_stem_.end() && is_image_extension(name.extension) && has_image(other->second);
    const auto is_same = [&](const packed_field& f) { return f.extension == name.extension; };
    if (!is_second || std::ranges::any_of(other->second, is_same)) return name;
    check_is_said(path, other->second);
    if (how_ == same_name::fields) return name;
    file_name own{name.stem + "_" + name.extension, name.extension};
    check_is_free(own.stem, path);
    shared_.push_back(path);
    return own;
  }

  // a.seg.png and a.box.json, where a.jpg is there.
  bool is_field_of(const std::string& key, const std::string& path) const {
    const auto whole = by_stem_.find(key);
    const bool is_there = whole != by_stem_.end() && !stem_of_.contains(key);
    if (!is_there || !has_image(whole->second) || how_ == same_name::samples) return false;
    if (is_image_extension(split_path(path)->extension)) check_is_said(path, whole->second);
    return true;
  }

  void check_is_free(const std::string& stem, const std::string& path) const {
    const auto other = by_stem_.find(stem);
    if (other == by_stem_.end()) return;
    throw failure(
        error(errc::duplicate_field, fmt::format("two files would be one sample, {} and {}",
                                                 other->second.front().path, path))
            .key(stem)
            .hint("rename one of them: dots in names become '_'"));
  }

  // a.b.jpg becomes a_b, which may be the name of another one.
  void check_is_one(const file_name& as, const file& f) {
    const std::string stem = f.name.substr(0, f.name.rfind('.'));
    const auto known = stem_of_.find(as.stem);
    if (known == stem_of_.end() || known->second != stem) check_is_free(as.stem, f.path);
    stem_of_[as.stem] = stem;
  }

  void add_field(const file_name& as, const std::string& path, const std::string& label,
                 std::uint64_t size) {
    check_is_read(as, path);
    if (size == 0 && is_image_extension(as.extension)) empty_.push_back(path);
    auto& fields = by_stem_[as.stem];
    const auto twice = std::ranges::find(fields, as.extension, &packed_field::extension);
    if (twice != fields.end()) {
      throw failure(error(errc::duplicate_field,
                          fmt::format("two files for the field '{}' of one sample, {} and {}",
                                      as.extension, twice->path, path))
                        .key(as.stem)
                        .hint("rename one of them"));
    }
    if (!fields.empty() && folder_of_file(fields.front().path) != folder_of_file(path)) {
      throw failure(error(errc::duplicate_field,
                          fmt::format("two files of different folders would be one sample, {} and "
                                      "{}",
                                      fields.front().path, path))
                        .key(as.stem)
                        .hint("keys are paths without what leads out of the folder: run pack in a "
                              "folder above both"));
    }
    fields.push_back({as.extension, path, "", size});
    if (label.empty()) return;
    const std::string& first = labels_.try_emplace(as.stem, label).first->second;
    if (first != label) {
      throw failure(error(errc::duplicate_field,
                          fmt::format("the files of one sample have the classes {} and {}, this "
                                      "one the second",
                                      first, label))
                        .at(path)
                        .key(as.stem)
                        .hint("give them the same class, or rename one of them"));
    }
  }

  std::vector<packed_sample> samples() {
    std::vector<packed_sample> out;
    for (auto& [stem, fields] : by_stem_) {
      const auto own = std::ranges::find(fields, "cls", &packed_field::extension);
      const auto label = labels_.find(stem);
      if (own != fields.end() && label != labels_.end()) {
        throw failure(error(errc::duplicate_field,
                            fmt::format("a sample has a class of its own, beside {}, that of its "
                                        "folder or its line of the list",
                                        label->second))
                          .at(own->path)
                          .key(stem)
                          .hint("remove the file, or give a list (@FILE) without labels"));
      }
      if (label != labels_.end()) {
        fields.push_back({"cls", "", label->second, label->second.size()});
      }
      std::ranges::sort(fields, {}, &packed_field::extension);
      packed_sample s{.key = stem, .fields = std::move(fields), .payload = 0};
      for (const packed_field& f : s.fields) s.payload += f.size;
      out.push_back(std::move(s));
    }
    return out;
  }

  std::map<std::string, std::vector<packed_field>> by_stem_;
  std::vector<file> with_dots_;
  std::vector<std::string> shared_;  // paths
  std::vector<std::string> empty_;   // images
  std::map<std::string, std::string>
      stem_of_;  // with its dots, of those that were written with '_'
  same_name how_;
  std::map<std::string, std::string> labels_;
  std::uint64_t without_extension_ = 0;
};

// Among images, files that belong to none (notes.txt) are not samples. Leaves trees alone that have
// no image at all: theirs are samples of something else. Adds what it removes to `left_out`.
void remove_strays(std::vector<packed_sample>& samples, std::vector<std::string>& left_out) {
  if (std::ranges::none_of(samples, has_image, &packed_sample::fields)) return;
  std::uint64_t files = 0;
  std::string first;
  std::erase_if(samples, [&](const packed_sample& s) {
    if (has_image(s.fields)) return false;
    for (const packed_field& f : s.fields) {
      if (f.path.empty()) continue;  // the class
      if (files++ == 0) first = f.path;
    }
    return true;
  });
  if (files == 0) return;
  left_out.push_back(fmt::format(
      "{} ({}{})", counted(files, "file that belongs to no image", "files that belong to no image"),
      printable(first), files > 1 ? ", ..." : ""));
}

// Throws where there are none.
class_names classes_to_pack(const std::string& root) {
  class_names found = class_names_in(root);
  if (!found.names.empty()) return found;
  throw failure(error(errc::usage, "the folder has no class folders")
                    .at(root)
                    .hint("for files without classes write their list: @FILE"));
}

std::vector<std::string> empty_classes(const files_to_pack& found) {
  std::set<std::string> seen;
  for (const packed_sample& s : found.samples) seen.insert(s.key.substr(0, s.key.find('/')));
  std::vector<std::string> empty;
  std::ranges::copy_if(found.classes, std::back_inserter(empty),
                       [&](const std::string& name) { return !seen.contains(name); });
  return empty;
}

files_to_pack from_folder(const std::string& root, same_name how) {
  class_names found = classes_to_pack(root);
  files_to_pack out{.classes = std::move(found.names)};
  out.labels = out.classes.size();
  sample_collector collector(how);
  std::uint64_t hidden = 0;
  std::uint64_t litter = 0;
  std::uint64_t dangling = 0;
  std::uint64_t linked_folders = 0;
  std::uint64_t special = 0;
  for (std::size_t c = 0; c < out.classes.size(); ++c) {
    const auto look_at = [&](const visited& one) {
      const std::string name = fs::path(one.path).filename();
      const bool is_file = S_ISREG(one.info.st_mode);
      if (S_ISLNK(one.info.st_mode)) {
        ++dangling;
      } else if (one.is_link && S_ISDIR(one.info.st_mode)) {
        ++linked_folders;
      } else if (!is_file && !S_ISDIR(one.info.st_mode)) {
        ++special;
      } else if (is_file && name.starts_with('.')) {
        ++hidden;
      } else if (is_file && is_litter(name)) {
        ++litter;
      } else if (is_file) {
        collector.add(one.path, fs::path(one.path).lexically_relative(root).string(),
                      std::to_string(c), static_cast<std::uint64_t>(one.info.st_size));
      }
    };
    visit_folder(fs::path(root) / out.classes[c], look_at).value();
  }
  const auto [beside, hidden_beside, litter_beside] = files_beside_classes(root);
  hidden += hidden_beside;
  litter += litter_beside;
  const auto tell = [&](std::uint64_t count, std::string_view noun, std::string_view plural) {
    if (count > 0) out.left_out.push_back(counted(count, noun, plural));
  };
  tell(collector.without_extension(), "file without an extension", "files without an extension");
  tell(hidden, "hidden file", "hidden files");
  tell(found.hidden, "hidden folder", "hidden folders");
  tell(litter, "file of a desktop (Thumbs.db)", "files of a desktop (Thumbs.db)");
  tell(dangling, "link to nothing", "links to nothing");
  tell(linked_folders, "link to a folder", "links to folders");
  tell(special, "pipe, socket or device", "pipes, sockets and devices");
  if (!beside.empty()) {
    tell(beside.size(), "file beside the class folders (" + first_of(beside) + ")",
         "files beside the class folders (" + first_of(beside) + ")");
  }
  out.samples = collector.finish();
  remove_strays(out.samples, out.left_out);
  report_empty_classes(empty_classes(out));
  return out;
}

// Where others have one.
void report_missing_classes(const files_to_pack& found) {
  std::vector<std::string> without;
  for (const packed_sample& s : found.samples) {
    const bool has_class =
        std::ranges::find(s.fields, "cls", &packed_field::extension) != s.fields.end();
    if (!has_class) without.push_back(s.key);
  }
  if (without.empty() || without.size() == found.samples.size()) return;
  log_notice(fmt::format("{} of the list without a class, although others have one: {}",
                         counted(without.size(), "sample"), first_of(without)));
}

files_to_pack from_list(const std::string& file, same_name how) {
  const auto lines = read_pack_list(file);
  std::set<std::string> names;
  std::set<std::string> numbers;
  for (const listed_file& line : lines) {
    if (!line.label.empty()) (line.is_number ? numbers : names).insert(line.label);
  }
  if (!names.empty() && !numbers.empty()) {
    throw failure(
        error(errc::usage, fmt::format("classes of the list are names ('{}') and numbers ('{}')",
                                       *names.begin(), *numbers.begin()))
            .at(file)
            .hint("use one or the other: names are numbered in alphabetical order"));
  }
  files_to_pack out{.classes = {names.begin(), names.end()}};
  out.labels = names.size() + numbers.size();
  sample_collector collector(how);
  for (const auto& [path, name, label, is_number] : lines) {
    const auto place = std::ranges::lower_bound(out.classes, label);
    const std::string number = label.empty() || is_number
                                   ? label
                                   : std::to_string(std::distance(out.classes.begin(), place));
    collector.add(path, name, number, size_of(path));
  }
  if (collector.without_extension() > 0) {
    out.left_out.push_back(counted(collector.without_extension(), "file without an extension",
                                   "files without an extension"));
  }
  out.samples = collector.finish();
  report_missing_classes(out);
  return out;
}

}  // namespace

files_to_pack find_files(const std::string& from, same_name how) {
  return from.starts_with('@') ? from_list(from.substr(1), how) : from_folder(from, how);
}

}  // namespace millrace
