#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

// Trees whose folders are classes, as torchvision's ImageFolder takes them. What is a class, and
// its number, is the same for `pack` and for training without shards.

// The classes of a tree: its folders, linked ones too, but for hidden ones and litter; in the order
// of their names, by which they are numbered.
struct class_names {
  std::vector<std::string> names;
  std::uint64_t hidden = 0;  // folders that are none by that
};
// Throws `failure` (not_found).
class_names class_names_in(const std::string& root);
// The files beside the class folders, which have no class.
struct files_beside {
  std::vector<std::string> names;  // but for hidden ones and litter
  std::uint64_t hidden = 0;
  std::uint64_t litter = 0;
};
// Throws `failure` where the folder cannot be listed.
files_beside files_beside_classes(const std::string& root);
// Whether desktops leave files and folders of this name: Thumbs.db, desktop.ini, __MACOSX.
bool is_litter(std::string_view name);

// Of a list of names, the first few, as they are told.
std::string first_of(const std::vector<std::string>& names);
// Tells that these classes have no sample, but a number all the same: a validation set may lack a
// class that the training set has. Nothing where there are none.
void tell_of_empty_classes(const std::vector<std::string>& empty);

// Each file is a sample of its own, with the key "CLASS/NAME". Where there are images, files of
// other extensions are left out. Lists the folders at once; throws `failure` (not_found,
// no_samples).
struct class_folders {
  explicit class_folders(const std::string& root);

  std::vector<std::string> files;    // full paths, sorted
  std::vector<std::string> classes;  // names, sorted
  std::string root;
  // Not hidden, and no image, in no class folder, links to folders or to nothing, pipes, or litter.
  std::vector<std::string> left_out;

  // The classes without a file.
  std::vector<std::string> empty() const;
  // A fingerprint of the names of files and classes, wherever the folder is.
  std::uint64_t names_fingerprint() const;
};

}  // namespace millrace
