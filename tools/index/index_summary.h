#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace millrace {

class engine;

// The figures of an index that `millrace index info` prints. URLs are without secrets.
struct index_summary {
  std::string name;
  std::string info;
  std::string base;  // that the file names
  std::int64_t shards = 0;
  std::int64_t samples = 0;
  std::int64_t bytes = 0;  // of the shards whose size is known
  std::string first;       // URLs of shards, as the file has them
  std::string last;
  std::size_t datasets = 0;  // indices that it includes
  bool offsets = false;      // of every sample
};

// Reads the index at a path or URL. Blocks. Throws `failure` as read_index() does.
index_summary summary_of_index(engine& eng, const std::string& url);

}  // namespace millrace
