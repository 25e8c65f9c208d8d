#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <sstream>

#include "io/stores/sigv4.h"
#include "io/stores/store.h"

namespace millrace {
namespace {

namespace pt = boost::property_tree;

error not_a_listing() {
  return error(errc::protocol, "the store's answer is not a listing");
}

}  // namespace

result<listing_page> parse_s3_listing(const std::string& xml) {
  listing_page page;
  try {
    pt::ptree tree;
    std::istringstream in(xml);
    pt::read_xml(in, tree);
    for (const auto& [name, child] : tree.get_child("ListBucketResult")) {
      if (name == "Contents") page.keys.push_back(child.get<std::string>("Key"));
      if (name == "NextContinuationToken") page.next = child.data();
    }
  } catch (const pt::ptree_error&) {
    return not_a_listing();
  }
  return page;
}

result<listing_page> parse_azure_listing(const std::string& xml) {
  listing_page page;
  try {
    pt::ptree tree;
    // A byte order mark may come first.
    std::istringstream in(xml.substr(std::min(xml.find('<'), xml.size())));
    pt::read_xml(in, tree);
    const auto& result = tree.get_child("EnumerationResults");
    for (const auto& [name, child] : result.get_child("Blobs")) {
      if (name == "Blob") page.keys.push_back(child.get<std::string>("Name"));
    }
    page.next = result.get<std::string>("NextMarker", "");
  } catch (const pt::ptree_error&) {
    return not_a_listing();
  }
  return page;
}

awaitable<result<std::vector<std::string>>> list_by_s3(std::shared_ptr<http_stack> stack,
                                                       scope& tasks, http_object bucket,
                                                       url prefix) {
  const std::string base =
      bucket.target.path + "?list-type=2&prefix=" + uri_encoded(key_of(prefix), false);
  std::vector<std::string> urls;
  std::string next;
  do {
    http_object page_of = bucket;
    page_of.target.path = base;
    if (!next.empty()) page_of.target.path += "&continuation-token=" + uri_encoded(next, false);
    const auto answer = co_await ask(*stack, tasks, std::move(page_of));
    if (!answer) co_return answer.error();
    auto page = parse_s3_listing(answer->body);
    if (!page) co_return error(page.error()).at(to_string(bucket.target));
    for (const std::string& key : page->keys) urls.push_back(prefix.origin() + "/" + key);
    next = std::move(page->next);
  } while (!next.empty());
  co_return urls;
}

std::string key_of(const url& where) {
  return where.path.empty() ? "" : where.path.substr(1);
}

result<url> parse_endpoint(const std::string& text, std::string_view variable) {
  auto endpoint = parse_url(text);
  if (!endpoint || (endpoint->scheme != "http" && endpoint->scheme != "https")) {
    return error(errc::usage, std::string(variable) + " is not an http: or https: URL").at(text);
  }
  while (endpoint->path.ends_with('/')) endpoint->path.pop_back();
  return endpoint;
}

}  // namespace millrace
