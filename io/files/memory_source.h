#pragma once

#include <map>
#include <memory>
#include <string>

#include "engine/base/units.h"
#include "io/source.h"

namespace millrace {

// Named objects in memory, read through the scheme "memory:NAME": for tests and examples. Objects
// are given out in pieces of `piece_bytes`, so that members straddle pieces as they do in files.
// Fill it before use; do not change it afterwards.
class memory_store {
 public:
  explicit memory_store(std::size_t piece_bytes = 64_KiB) : piece_bytes_(piece_bytes) {}

  void put(const std::string& name, std::string content) { objects_[name] = std::move(content); }
  const std::string* find(const std::string& name) const;
  std::size_t piece_bytes() const { return piece_bytes_; }

 private:
  std::size_t piece_bytes_;
  std::map<std::string, std::string> objects_;
};

source_factory memory_source_factory(std::shared_ptr<const memory_store> store);

}  // namespace millrace
