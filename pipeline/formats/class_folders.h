#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Trees whose folders are classes, as torchvision's ImageFolder reads them. Classes and their
// numbers are the same for `millrace pack` and for training without shards.

// The classes of a tree: its folders, including linked ones, except hidden folders and litter;
// numbered in the order of their names.
struct class_names {
  std::vector<std::string> names;  // sorted; class i has label i
  std::uint64_t hidden = 0;        // hidden folders, which are not classes
};
// The classes of the tree `root`. Throws `failure`: not_found, or why it cannot be listed.
class_names class_names_in(const std::string& root);
// The files next to the class folders, which have no class.
struct files_beside {
  std::vector<std::string> names;  // sorted, without hidden ones and litter
  std::uint64_t hidden = 0;        // hidden files
  std::uint64_t litter = 0;        // files by is_litter()
};
// The files in `root` itself. Throws `failure` if the folder cannot be listed.
files_beside files_beside_classes(const std::string& root);
// Whether desktops leave files and folders of this name: Thumbs.db, desktop.ini, __MACOSX.
bool is_litter(std::string_view name);

// The first three names of a list, for messages: "a, b, c, ...".
std::string first_of(const std::vector<std::string>& names);
// Logs a notice that these classes have no sample, but a number all the same: a validation set may
// lack a class of the training set. Nothing if there are none.
void report_empty_classes(const std::vector<std::string>& empty);

// The files of a tree of class folders, each a sample with the key "CLASS/NAME". If there are
// images, files with other extensions are left out. For raw_samples().
struct class_folders {
  // Lists the folders, which blocks. Throws `failure`: not_found, no_samples.
  explicit class_folders(const std::string& root);

  std::vector<std::string> files;    // full paths, sorted
  std::vector<std::string> classes;  // names, sorted
  std::string root;                  // with a '/' at its end
  // Files that are not samples, sorted: no image, in no class folder, a link to a folder or to
  // nothing, a pipe, or litter. Without hidden files.
  std::vector<std::string> left_out;

  // The classes without a file.
  std::vector<std::string> empty() const;
  // A fingerprint of the names of files and classes, wherever the folder is.
  std::uint64_t names_fingerprint() const;
};

}  // namespace millrace
