#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "io/source.h"

namespace millrace {

// Scheme -> factory. Passed in wherever sources are opened; there is no global one.
class source_registry {
 public:
  // Takes the place of what was there for the scheme, which is that of small and capital letters
  // alike. An exception of the factory or its sources
  // becomes an error that names the URL; returning no source is an error as well (usage).
  void add(std::string scheme, source_factory factory);
  // The same for a factory that, like its sources, throws nothing but a stop: without that care.
  void add_unguarded(std::string scheme, source_factory factory);
  // Fails with `unsupported` for a scheme that nobody added.
  awaitable<result<std::unique_ptr<byte_source>>> open(source_context context, std::string text,
                                                       byte_range range = {}) const;

 private:
  std::map<std::string, source_factory, std::less<>> factories_;
};

}  // namespace millrace
