#include "io/stores/listing_page.h"

#include <fmt/format.h>

#include <bit>

#include "engine/base/parsed_number.h"
#include "io/http/ask.h"
#include "io/stores/sigv4.h"
#include "io/stores/store_url.h"
#include "io/stores/xml.h"

namespace millrace {
namespace {

namespace pt = boost::property_tree;

constexpr std::string_view listing = "a store's listing";

std::optional<std::uint64_t> size_in(const pt::ptree& of, const char* path) {
  return parsed_number<std::uint64_t>(of.get<std::string>(path, ""));
}

}  // namespace

result<listing_page> parse_s3_listing(const std::string& xml) {
  const auto tree = parse_store_xml(xml, listing);
  if (!tree) return tree.error();
  listing_page page;
  bool is_cut = false;
  try {
    for (const auto& [name, child] : tree->get_child("ListBucketResult")) {
      if (name == "IsTruncated") is_cut = child.data() == "true";
      if (name == "Contents") {
        page.keys.push_back(child.get<std::string>("Key"));
        page.sizes.push_back(size_in(child, "Size"));
      }
      if (name == "NextContinuationToken") page.next = child.data();
    }
  } catch (const pt::ptree_error&) {
    return error(errc::protocol, fmt::format("the answer is not {}", listing));
  }
  if (is_cut && page.next.empty()) {
    return error(errc::protocol,
                 "the store truncates its listing without saying how to continue: it may support "
                 "only version 1 of ListObjects")
        .hint("name the shards themselves, as PREFIX/train-{000000..000999}.tar");
  }
  return page;
}

result<listing_page> parse_azure_listing(const std::string& xml) {
  const auto tree = parse_store_xml(xml, listing);
  if (!tree) return tree.error();
  listing_page page;
  try {
    const auto& result = tree->get_child("EnumerationResults");
    for (const auto& [name, child] : result.get_child("Blobs")) {
      if (name != "Blob") continue;
      page.keys.push_back(child.get<std::string>("Name"));
      page.sizes.push_back(size_in(child, "Properties.Content-Length"));
    }
    page.next = result.get<std::string>("NextMarker", "");
  } catch (const pt::ptree_error&) {
    return error(errc::protocol, fmt::format("the answer is not {}", listing));
  }
  return page;
}

result<void> listing_progress::turn_to(const std::string& next, std::size_t keys,
                                       std::size_t bytes) {
  empty_pages_ = keys > 0 ? 0 : empty_pages_ + 1;
  keys_ += keys;
  bytes_ += bytes;
  const auto refused = [](std::string what) { return error(errc::protocol, std::move(what)); };
  if (!next.empty() && next == earlier_) return refused("the store's listing goes in a circle");
  if (empty_pages_ > most_empty_pages) return refused("the store's listing has only empty pages");
  if (keys_ > most_keys) {
    return error(errc::too_large,
                 fmt::format("the store's listing has more than {} keys", most_keys))
        .hint("use a longer prefix");
  }
  if (bytes_ > most_bytes) {
    return error(errc::too_large,
                 fmt::format("the store's listing has more than {} GiB of names", most_bytes >> 30))
        .hint("use a longer prefix");
  }
  if (std::has_single_bit(++pages_)) earlier_ = next;
  return {};
}

awaitable<result<std::vector<listed_object>>> list_by_s3(std::shared_ptr<http_stack> stack,
                                                         scope& tasks, http_object bucket,
                                                         url prefix) {
  const std::string base =
      bucket.target.path + "?list-type=2&prefix=" + uri_encoded(key_of(prefix), false);
  std::vector<listed_object> found;
  std::string next;
  listing_progress pages;
  do {
    http_object page_of = bucket;
    page_of.target.path = base;
    if (!next.empty()) page_of.target.path += "&continuation-token=" + uri_encoded(next, false);
    const auto answer = co_await ask(*stack, tasks, std::move(page_of), "GET", {}, listing_bytes);
    if (!answer) co_return answer.error();
    auto page = parse_s3_listing(answer->body);
    if (!page) co_return error(page.error()).at(to_string(bucket.target));
    const std::size_t bytes = add_objects(prefix.origin() + "/", *page, found);
    next = std::move(page->next);
    if (const auto more = pages.turn_to(next, page->keys.size(), bytes); !more) {
      co_return error(more.error()).at(to_string(bucket.target));
    }
  } while (!next.empty());
  co_return found;
}

std::size_t add_objects(const std::string& begin, const listing_page& page,
                        std::vector<listed_object>& to) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < page.keys.size(); ++i) {
    to.push_back({begin + page.keys[i], page.sizes[i]});
    bytes += to.back().url.size();
  }
  return bytes;
}

}  // namespace millrace
