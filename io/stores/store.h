#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
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

// A page of a listing as S3, Google and AIStore answer it (ListObjectsV2), or as Azure does (List
// Blobs). Fails with protocol if the XML is not such a page. Pure.
struct listing_page {
  std::vector<std::string> keys;
  std::vector<std::optional<std::uint64_t>> sizes;  // of each key
  std::string next;  // token of the next page; empty: this was the last
};
result<listing_page> parse_s3_listing(const std::string& xml);
result<listing_page> parse_azure_listing(const std::string& xml);

// The limit of an answer with one page; real pages have 1,000 to 5,000 keys.
inline constexpr std::size_t listing_bytes = 16UL << 20;

// Guards against endless listings: stops at a store that always names a next page, or names one
// again. Pure.
class listing_progress {
 public:
  // Call for each page: it has `keys` keys, whose URLs take `bytes`, and names `next`. Fails with
  // protocol or too_large.
  result<void> turn_to(const std::string& next, std::size_t keys, std::size_t bytes);

  static constexpr std::size_t most_keys = 10'000'000;
  static constexpr std::size_t most_bytes = 1UL << 30;  // a hundred for each key
  static constexpr int most_empty_pages =
      1000;  // in a row: stores return some after many deletions

 private:
  // What the last of pages 1, 2, 4, 8 ... named: in a cycle it comes again (R. P. Brent, 1980).
  std::string earlier_;
  std::size_t pages_ = 0;
  std::size_t keys_ = 0;
  std::size_t bytes_ = 0;
  int empty_pages_ = 0;
};

// All pages of a ListObjectsV2 of `bucket`, whose URL ends before the query.
awaitable<result<std::vector<listed_object>>> list_by_s3(std::shared_ptr<http_stack> stack,
                                                         scope& tasks, http_object bucket,
                                                         url prefix);

// Appends the page's objects to `to`, with URLs `begin` + key. Returns the number of bytes of the
// URLs.
std::size_t add_objects(const std::string& begin, const listing_page& page,
                        std::vector<listed_object>& to);

// The key after the '/' of a store's path.
std::string key_of(const url& where);

// The key, and the text after the last `mark`. Pure.
struct key_and_option {
  std::string key;
  std::string option;  // empty: there is none
};
key_and_option split_key(const url& where, std::string_view mark);

// An endpoint's scheme, host and port, and the path before buckets, without a trailing '/'.
result<url> parse_endpoint(const std::string& text, std::string_view variable);

}  // namespace millrace
