#pragma once

#include <string>
#include <vector>

namespace millrace {

// Inverse brace expansion: the fewest patterns of numbered names whose expansion (brace_expand) is
// `names` without repeats, a pattern for each group of names that differ in their last number:
// "a-{000000..000012}.tar". Gaps make lists of ranges: "a-{{000..003},{005..009}}.tar". In the
// order of the groups' first names. Pure.
std::vector<std::string> brace_summary(const std::vector<std::string>& names);

// "train-%06d.tar" or a brace range "train-{000000..000009}.tar": the names of shards, as many as
// are asked for. Throws `failure` (usage) for a pattern that is neither, that names fewer, or that
// gives them names of compressed files, which they are not.
class shard_names {
 public:
  explicit shard_names(const std::string& pattern);
  std::string operator()(std::size_t i) const;
  // Throws `failure` (usage) if the pattern names fewer than `count` shards.
  void check_count(std::size_t count) const;
  // The names from `first` on that exist, as far as can be found: all that the pattern numbers in
  // the folder, or all of a brace range; where it numbers folders, those up to the first that is
  // missing. Throws `failure` where the folder cannot be listed.
  std::vector<std::string> there_from(std::size_t first) const;
  // The number of names; 0: any number.
  std::size_t limit() const { return names_.size(); }

 private:
  std::string before_;
  std::string after_;
  int width_ = 0;
  std::vector<std::string> names_;  // of a brace range
};

// By 1000: "112.6k", "1.1k", "100.0", as widsindex prints figures.
std::string with_suffix(double figure);

// The name that widsindex gives a dataset whose first file is this: its words but for numbers, once
// each.
std::string dataset_name(std::string_view first_file);

// The default name of a dataset: that of its first shard, from the first `spec` that names shards,
// or from the path of its first URL, where the spec is a URL. `urls`: its shards, at least one.
std::string dataset_name(const std::string& spec, const std::vector<std::string>& urls);

}  // namespace millrace
