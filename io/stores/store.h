#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/cache/cached_source.h"
#include "io/http/stack.h"
#include "io/source.h"

namespace millrace {

// A place for objects that is spoken to over HTTP. One I/O thread.
class object_store {
 public:
  virtual ~object_store() = default;
  // What to ask for to get the object. Fails with usage or not_allowed.
  virtual result<http_object> locate(const url& where) = 0;
  // The URLs of all objects whose URL begins with `prefix`, in byte order.
  virtual awaitable<result<std::vector<std::string>>> list(scope& tasks, url prefix) = 0;
};

using store_table = std::map<std::string, std::shared_ptr<object_store>, std::less<>>;

// s3:, gs:, az:, ais: and hf:, with the credentials that the usual variables and files name.
store_table object_stores(const std::shared_ptr<http_stack>& stack);

std::shared_ptr<object_store> s3_store(std::shared_ptr<http_stack> stack);
std::shared_ptr<object_store> google_store(std::shared_ptr<http_stack> stack);
std::shared_ptr<object_store> azure_store(std::shared_ptr<http_stack> stack);
std::shared_ptr<object_store> ais_store(std::shared_ptr<http_stack> stack);
std::shared_ptr<object_store> hugging_face_store(std::shared_ptr<http_stack> stack);

source_factory store_source_factory(std::shared_ptr<http_stack> stack,
                                    std::shared_ptr<object_store> store,
                                    std::shared_ptr<object_cache> cache);

// A page of a listing, as S3, Google and AIStore answer it (ListObjectsV2) and as Azure does (List
// Blobs). Fails with protocol where it is no such XML. Pure.
struct listing_page {
  std::vector<std::string> keys;
  std::string next;  // what to ask the next page with; empty: this was the last
};
result<listing_page> parse_s3_listing(const std::string& xml);
result<listing_page> parse_azure_listing(const std::string& xml);

// All pages of a ListObjectsV2 of `bucket`, which is asked for as `object`, with its URL up to the
// query.
awaitable<result<std::vector<std::string>>> list_by_s3(std::shared_ptr<http_stack> stack,
                                                       scope& tasks, http_object bucket,
                                                       url prefix);

// The key behind the '/' of a store's path.
std::string key_of(const url& where);

// The scheme, host and port of an endpoint's URL, and the path before buckets, without a '/' at its
// end.
result<url> parse_endpoint(const std::string& text, std::string_view variable);

}  // namespace millrace
