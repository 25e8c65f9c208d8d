#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/write/pack_options.h"

namespace millrace {

// Files as they will be packed.
struct packed_field {
  std::string extension;
  std::string path;  // empty: `text` is the content
  std::string text;
  std::uint64_t size = 0;
};
struct packed_sample {
  std::string key;
  std::vector<packed_field> fields;  // by extension
  std::uint64_t payload = 0;
};
struct files_to_pack {
  std::vector<packed_sample> samples;  // by key
  std::vector<std::string> classes;    // their names; the place is the label
  std::uint64_t labels = 0;            // different ones
  // The files left out, in words: "3 hidden files". Empty where all is packed.
  std::vector<std::string> left_out;
};

// The files of `from`: a folder whose folders are classes, numbered in the order of their names, or
// "@FILE" with lines PATH or PATH<tab>CLASS. Classes of a list are numbers, which are labels as
// they are, or names, which are numbered in their order. Hidden files, files without an extension,
// links to nothing and files of the system (Thumbs.db, desktop.ini) are left out; so are, from a
// folder with images, files that belong to none of them (notes.txt): a sample is an image and the
// files of its name. Files that are
// not images are fields: a.txt always, a.box.json unless `how` says samples. Throws `failure`.
files_to_pack find_files(const std::string& from, same_name how = same_name::unknown);

}  // namespace millrace
