#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "io/source.h"

namespace millrace {

// Opens URLs by their schemes. Each I/O thread of an engine has its own, engine::sources(); a
// program adds sources by engine_options::add_sources (examples/own_source.cc).
class source_registry {
 public:
  // Adds a scheme, whose case is ignored, or replaces it. An exception of the factory or of its
  // sources becomes an error that names the URL, and so does returning no source (usage). Errors of
  // kinds that mean that bytes cannot be read (is_read_failure) are skippable. Nothing is retried.
  // Throws `failure` (usage) for a name that no URL can have, and for no factory.
  void add(std::string scheme, source_factory factory);
  // Like add(), without that guard: for a factory that, like its sources, throws only when stopped.
  void add_unguarded(std::string scheme, source_factory factory);
  // Opens a range of the object that `text`, a URL or path, names. Fails with `unsupported` for an
  // unknown scheme, and as the factory does.
  awaitable<result<std::unique_ptr<byte_source>>> open(source_context context, std::string text,
                                                       byte_range range = {}) const;

 private:
  std::map<std::string, source_factory, std::less<>> factories_;
};

}  // namespace millrace
