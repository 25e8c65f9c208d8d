#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/process_wide.h"
#include "pipeline/plan.h"
#include "pipeline/sample_name.h"
#include "pipeline/shard_index.h"

namespace millrace {

// A sample as it stands in its shard, whose list is kept small: hostile shards have many.
struct sample_place {
  std::string key;           // empty where scan_options.keys is false
  std::int64_t begin = 0;    // in bytes from the shard's begin
  std::uint32_t blocks = 0;  // that it has, of shard_index::block_bytes
  std::uint16_t name = 0;    // name_sum() of its first file

  std::int64_t end() const { return begin + blocks * shard_index::block_bytes; }
};

// In pieces, so that it never takes twice its room to grow; and moved without memory, as what a
// stream gives must be and a std::deque is not. Copies share one list.
class sample_list {
 public:
  std::size_t size() const { return all_ ? all_->size() : 0; }
  bool empty() const { return size() == 0; }
  const sample_place& operator[](std::size_t i) const { return (*all_)[i]; }
  const sample_place& back() const { return all_->back(); }
  sample_place& back() { return all_->back(); }
  void push_back(sample_place s) {
    if (!all_) all_ = std::make_shared<std::deque<sample_place>>();
    all_->push_back(std::move(s));
  }
  void pop_back() { all_->pop_back(); }
  auto begin() const { return all().begin(); }
  auto end() const { return all().end(); }

 private:
  const std::deque<sample_place>& all() const {
    static const never_destroyed<std::deque<sample_place>> none;
    return all_ ? *all_ : *none;
  }

  std::shared_ptr<std::deque<sample_place>> all_;
};

// The result of a scan of one shard.
struct shard_facts {
  // A hostile shard has one in each of its blocks.
  static constexpr std::size_t most_problems = 1000;

  std::string url;
  std::uint64_t bytes = 0;  // of the object; 0 where that is not known
  std::string md5;          // hexadecimal; empty where not asked for
  bool is_compressed = false;
  sample_list samples;  // offsets in unpacked bytes
  std::uint64_t files = 0;
  std::uint64_t payload_bytes = 0;  // of the files of samples
  std::uint64_t without_key = 0;    // files without an extension: of no sample
  std::uint64_t meta_files = 0;     // named __x__, or below a folder of such a name: of no sample
  std::uint64_t not_files = 0;      // links and devices
  std::vector<error> problems;      // in the order of their offsets: the first most_problems
  std::uint64_t more_problems = 0;  // beyond those
};

struct scan_options {
  // Reads the first byte of each shard only, to see that it can be read.
  bool only_open = false;
  bool md5 = true;   // needs every byte; else large files are jumped over
  bool keys = true;  // of samples are listed
  int at_once = 8;   // shards
  // Looks at the content of a file: called in the CPU pool, side by side, for files that `wants`
  // names. What it returns is among the problems. So is a file that is larger than the budget
  // allows.
  std::function<bool(std::string_view extension)> wants = nullptr;
  std::function<result<void>(std::span<const std::byte> content)> check = nullptr;
  // Extensions that every sample must have, each with its alternatives. Samples without one are a
  // problem: the first of them, and their number.
  std::vector<std::vector<std::string>> required = {};
};

// Reads shards and lists their contents, several side by side; in the list's order. Damage is a
// problem of its shard, and so is a shard that cannot be read; the stream continues. The lists of
// samples take up to half of the budget together: the list of a shard that has no room for more
// ends there, which is a problem (too_large).
plan<shard_facts> scan(std::vector<std::string> urls, const scan_options& options = {});

// Where the samples of a plain shard are, for its entry in an index. Of a compressed one: nothing.
void list_places(const shard_facts& from, shard_index::shard& to);

}  // namespace millrace
