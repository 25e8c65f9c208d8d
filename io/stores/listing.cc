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

// Where the user named it, and what was asked for that.
error refused(const error& why, const std::string& pattern) {
  const std::string asked = redacted(why.where());
  error told(why.kind(), asked.empty() || asked == pattern
                             ? why.what()
                             : fmt::format("{} (the request: GET {})", why.what(), asked));
  if (why.kind() == errc::not_found) {
    return told.at(pattern).hint(
        "check the name of the bucket or repository, and the endpoint that was asked");
  }
  return told.at(pattern).hint(why.what_to_do().empty()
                                   ? "check the name, the prefix and the credentials"
                                   : why.what_to_do());
}

awaitable<result<std::vector<listed_object>>> list_one(store_table* stores, scope* tasks, url where,
                                                       std::string pattern) {
  const auto star = where.path.find('*');
  if (star != std::string::npos) where.path.erase(star);
  // held over co_await: the table is made whole, and nothing is added or taken out.
  object_store* const store = stores->at(where.scheme).get();
  auto found = co_await store->list(*tasks, where);
  if (!found) co_return refused(found.error(), pattern);
  std::erase_if(*found, [&](const listed_object& o) {
    return o.url.ends_with('/') || (star != std::string::npos && !matches_pattern(o.url, pattern));
  });
  if (found->empty()) {
    co_return error(errc::not_found, "no object has this prefix")
        .at(pattern)
        .hint("check the bucket and the prefix");
  }
  // What a store names are keys, whatever they look like.
  const std::string_view mark = store->option_mark();
  for (listed_object& o : *found) {
    if (!mark.empty() && o.url.find(mark) != std::string::npos) o.url += mark;
  }
  co_return found;
}

awaitable<result<std::vector<std::string>>> list_all(std::vector<std::string> urls,
                                                     const source_options* options,
                                                     object_sizes* sizes) {
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
                        : result<std::vector<listed_object>>(where.error());
    if (!listed) {
      failed = listed.error();
      break;
    }
    for (listed_object& o : *listed) {
      if (sizes != nullptr && o.bytes) (*sizes)[o.url] = *o.bytes;
      out.push_back(std::move(o.url));
    }
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
                                               const source_options& options, object_sizes* sizes) {
  if (std::ranges::none_of(urls, is_listing)) return urls;
  asio::io_context context;
  auto done = asio::co_spawn(context, list_all(std::move(urls), &options, sizes), asio::use_future);
  context.run();
  return done.get();
}

}  // namespace millrace
