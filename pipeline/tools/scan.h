#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pipeline/plan.h"

namespace millrace {

// A sample as it stands in its shard: the blocks [begin, end), in bytes from the shard's begin.
struct sample_place {
  std::string key;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// What a scan finds in one shard.
struct shard_facts {
  std::string url;
  std::uint64_t bytes = 0;  // of the object; 0 where not all of it was read
  std::string md5;          // hexadecimal; empty where not asked for
  bool is_compressed = false;
  std::vector<sample_place> samples;  // offsets in unpacked bytes
  std::uint64_t files = 0;
  std::uint64_t payload_bytes = 0;  // of the files of samples
  std::uint64_t without_key = 0;    // files of no sample
  std::uint64_t not_files = 0;      // links and devices
  std::vector<error> problems;      // in the order of their offsets
};

struct scan_options {
  bool md5 = true;  // needs every byte; else large files are jumped over
  int at_once = 8;  // shards
  // Looks at the content of a file: called in the CPU pool, side by side, for files that `wants`
  // names. What it returns is among the problems.
  std::function<bool(std::string_view extension)> wants = nullptr;
  std::function<result<void>(std::span<const std::byte> content)> check = nullptr;
};

// Reads shards to say what is in them, several side by side; in the list's order. Damage within a
// shard is a problem of that shard, and so is one that cannot be read; the stream itself goes on.
plan<shard_facts> scan(std::vector<std::string> urls, const scan_options& options = {});

}  // namespace millrace
