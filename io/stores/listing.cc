#include "io/stores/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <future>

#include "io/stores/store.h"

namespace millrace {
namespace {

bool is_store(std::string_view scheme) {
  return scheme == "s3" || scheme == "gs" || scheme == "az" || scheme == "ais" || scheme == "hf";
}

awaitable<result<std::vector<std::string>>> list_one(store_table* stores, scope* tasks, url where,
                                                     std::string pattern) {
  const auto star = where.path.find('*');
  if (star != std::string::npos) where.path.erase(star);
  auto found = co_await stores->at(where.scheme)->list(*tasks, where);
  if (!found) co_return found;
  std::erase_if(*found, [&](const std::string& url) {
    return url.ends_with('/') || (star != std::string::npos && !matches_pattern(url, pattern));
  });
  if (found->empty()) {
    co_return error(errc::not_found, "no object's name begins like that").at(pattern);
  }
  co_return found;
}

awaitable<result<std::vector<std::string>>> list_all(std::vector<std::string> urls,
                                                     const source_options* options) {
  scope tasks(co_await asio::this_coro::executor);
  auto stack = std::make_shared<http_stack>(
      options->http, real_network(options->http.receive_buffer_bytes), real_time());
  store_table stores = object_stores(stack);
  std::vector<std::string> out;
  std::optional<error> failed;
  for (std::string& url : urls) {
    if (!is_listing(url)) {
      out.push_back(std::move(url));
      continue;
    }
    auto where = parse_url(url);
    auto listed = where ? co_await list_one(&stores, &tasks, std::move(*where), url)
                        : result<std::vector<std::string>>(where.error());
    if (!listed) {
      failed = listed.error();
      break;
    }
    std::ranges::move(*listed, std::back_inserter(out));
  }
  tasks.stop();
  co_await tasks.join();
  if (failed) co_return *failed;
  co_return out;
}

}  // namespace

bool is_listing(const std::string& url) {
  const auto scheme = url.find("://");
  if (scheme == std::string::npos || !is_store(std::string_view(url).substr(0, scheme)))
    return false;
  return url.ends_with('/') || url.find('*', scheme + 3) != std::string::npos;
}

bool matches_pattern(std::string_view text, std::string_view pattern) {
  // The last star may take one character more each time that what follows it does not fit.
  std::size_t t = 0;
  std::size_t p = 0;
  std::size_t star = pattern.npos;
  std::size_t taken = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != pattern.npos && text[taken] != '/') {
      p = star + 1;
      t = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

result<std::vector<std::string>> with_listings(std::vector<std::string> urls,
                                               const source_options& options) {
  if (std::ranges::none_of(urls, is_listing)) return urls;
  asio::io_context context;
  auto done = asio::co_spawn(context, list_all(std::move(urls), &options), asio::use_future);
  context.run();
  return done.get();
}

}  // namespace millrace
