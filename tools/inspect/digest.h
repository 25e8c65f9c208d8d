#pragma once

#include <string>

#include "io/hashes.h"
#include "pipeline/samples/sample.h"

namespace millrace {

// A sha256 over samples in order: for each, its key and a zero byte; then, by extension in byte
// order, the extension, a zero byte, the length as 64 little-endian bits, and the content.
class sample_digest {
 public:
  void add(const sample& s);
  // Hexadecimal, lower case. Ends the digest.
  std::string finish();

 private:
  hasher so_far_{hash_algorithm::sha256};
};

}  // namespace millrace
