#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/http/stack.h"
#include "io/stores/store.h"

namespace millrace {

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

}  // namespace millrace
