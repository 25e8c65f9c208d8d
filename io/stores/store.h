#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/cache/cached_source.h"
#include "io/http/stack.h"
#include "io/source.h"

namespace millrace {

class upload_protocol;

struct listed_object {
  std::string url;
  std::optional<std::uint64_t> bytes;  // if the listing states it
};

// An object store, reached over HTTP. One I/O thread.
class object_store {
 public:
  virtual ~object_store() = default;
  // Reads the files that name the credentials and the endpoint. Call it before each locate() and
  // list().
  virtual awaitable<void> prepare() { co_return; }
  // The target to request for the object, URL-encoded. Fails with usage or not_allowed.
  virtual result<http_object> locate(const url& where) = 0;
  // All objects whose URL begins with `prefix`, as the store returns them: in any order, mixed with
  // others, possibly twice.
  virtual awaitable<result<std::vector<listed_object>>> list(scope& tasks, url prefix) = 0;
  // How objects are written to it, owned by the store: see upload(). Null: millrace does not write
  // there (known_store::why_not_written). Call prepare() before each use.
  virtual upload_protocol* uploads() { return nullptr; }
  // The mark after an object's key, at its last occurrence in a URL, that introduces an option of
  // the request ("?versionId="); empty: a URL has only a key. If nothing follows the mark there is
  // no option, so that a key that contains the mark can be written.
  virtual std::string_view option_mark() const { return {}; }
};

using store_table = std::map<std::string, std::shared_ptr<object_store>, std::less<>>;

// All of known_stores by their schemes, with credentials from the usual variables and files.
store_table object_stores(const std::shared_ptr<http_stack>& stack);

source_factory store_source_factory(std::shared_ptr<http_stack> stack,
                                    std::shared_ptr<object_store> store,
                                    std::shared_ptr<object_cache> cache);

}  // namespace millrace
