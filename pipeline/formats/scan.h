#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/process_wide.h"
#include "pipeline/plan/plan.h"
#include "pipeline/samples/sample_name.h"
#include "pipeline/shards/shard_index.h"

namespace millrace {

// A sample's place in its shard. Kept small: hostile shards have many samples.
struct sample_place {
  std::string key;           // empty unless scan_options.keys
  std::int64_t begin = 0;    // in bytes from the beginning of the shard
  std::uint32_t blocks = 0;  // its length, in blocks of shard_index::block_bytes
  std::uint16_t name = 0;    // name_sum() of its first file

  std::int64_t end() const { return begin + blocks * shard_index::block_bytes; }
};

// Grows in pieces, so that growing never takes twice the memory, and moves without allocating:
// items of a stream must, and a std::deque does not. Copies share one list.
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
  // A hostile shard has a problem in each of its blocks.
  static constexpr std::size_t most_problems = 1000;

  std::string url;
  std::uint64_t bytes = 0;  // of the object; 0: unknown
  std::string md5;          // hexadecimal; empty unless asked for
  bool is_compressed = false;
  sample_list samples;  // offsets in unpacked bytes
  std::uint64_t files = 0;
  std::uint64_t payload_bytes = 0;  // of the files of samples
  std::uint64_t without_key = 0;    // files without an extension, which belong to no sample
  std::uint64_t meta_files = 0;     // named __x__ or below such a folder: they belong to no sample
  std::uint64_t not_files = 0;      // links and devices
  std::vector<error> problems;      // the first most_problems, in the order of their offsets
  std::uint64_t more_problems = 0;  // problems after those
};

struct scan_options {
  // Reads only the first byte of each shard, to verify that it can be read.
  bool only_open = false;
  bool md5 = true;   // needs every byte; without it, large files are skipped
  bool keys = true;  // list the samples' keys
  int at_once = 8;   // shards read concurrently
  // Checks the content of a file: called in the CPU pool, concurrently, for files whose extension
  // `wants` accepts. The errors it returns are added to the problems, as is a file larger than the
  // budget allows.
  std::function<bool(std::string_view extension)> wants = nullptr;
  std::function<result<void>(std::span<const std::byte> content)> check = nullptr;
  // Extensions that every sample must have, each with its alternatives. If samples lack one, that
  // is one problem, with the first such sample and their number.
  std::vector<std::vector<std::string>> required = {};
};

// Reads shards, several concurrently, and lists their contents in the order of `urls`. Damage is a
// problem of its shard, and so is a shard that cannot be read; the stream continues. All lists of
// samples together take at most half of the budget: if there is no room for more, the list of a
// shard ends there, with a problem (too_large).
plan<shard_facts> scan(std::vector<std::string> urls, const scan_options& options = {});

// Stores the places of an uncompressed shard's samples in its index entry; none for a compressed
// shard.
void list_places(const shard_facts& from, shard_index::shard& to);

}  // namespace millrace
