#pragma once

#include <string>
#include <vector>

namespace millrace {

// A line of a list of files to pack: PATH or PATH<tab>CLASS.
struct listed_file {
  std::string path;
  std::string name;        // the path, normalised, without what leads out of the folder: "d/a.jpg"
  std::string label;       // a number in its shortest form, or a name; empty: none
  bool is_number = false;  // the label
};

// Throws `failure` where the list cannot be read, and (usage) for a line that is none, for a number
// that is not a label, and for a file that the list names twice, however it is spelled ("d/a.jpg",
// "./d//a.jpg", "/data/d/a.jpg").
std::vector<listed_file> read_pack_list(const std::string& file);

}  // namespace millrace
