#pragma once

#include <memory>
#include <string>

#include "pipeline/sample.h"

namespace millrace {

// A sha256 over samples in order: for each, its key and a zero byte; then, by extension in byte
// order, the extension, a zero byte, the length as 64 little-endian bits, and the content.
class sample_digest {
 public:
  sample_digest();
  ~sample_digest();
  sample_digest(const sample_digest&) = delete;
  sample_digest& operator=(const sample_digest&) = delete;

  void add(const sample& s);
  // Hexadecimal, lower case. Ends the digest.
  std::string finish();

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
