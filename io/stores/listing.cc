#include "io/stores/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <future>
#include <tuple>

#include "engine/coroutines/scope.h"
#include "engine/coroutines/spawn_on.h"
#include "io/http/transport.h"
#include "io/names/shard_name.h"
#include "io/stores/known_stores.h"
#include "io/stores/store.h"

namespace millrace {
namespace {

// Whether a store's URL has neither a key nor the '/' before it.
bool is_bucket(std::string_view url) {
  const auto name = url.find("://") + 3;
  return name < url.size() && url.find_first_of("/*?", name) == url.npos;
}

// The error at the user's name, with the request that was made for it.
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

// Keeps the objects below `prefix` that were asked for: those that match `pattern` or, if the
// pattern is the prefix itself, the shards. In byte order, each once: not every store sorts, and a
// page may repeat objects of the previous one.
void keep_described(std::vector<listed_object>& found, std::string_view prefix,
                    std::string_view pattern) {
  const bool by_prefix = pattern.find('*') == pattern.npos;
  std::erase_if(found, [&](const listed_object& o) {
    if (!o.url.starts_with(prefix) || o.url.ends_with('/')) return true;
    return by_prefix ? !is_shard_name(std::string_view(o.url).substr(prefix.size()))
                     : !matches_pattern(o.url, pattern);
  });
  std::ranges::sort(found, {}, [](const auto& o) { return std::tie(o.url, o.bytes); });
  const auto again = std::ranges::unique(found, {}, &listed_object::url);
  found.erase(again.begin(), again.end());
}

// The error if the listing has none of the objects that were asked for.
error nothing_described(const std::string& pattern, bool lists_any) {
  if (!lists_any) {
    return error(errc::not_found, "no object has this prefix")
        .at(pattern)
        .hint("check the bucket and the prefix");
  }
  if (pattern.find('*') != std::string::npos) {
    return error(errc::not_found, "no object matches this pattern")
        .at(pattern)
        .hint("check the prefix; '*' stands for any characters but '/'");
  }
  return error(errc::not_found, "no archive has this prefix")
      .at(pattern)
      .hint(fmt::format("{}; for other names, write a pattern: PREFIX/*", shard_names_told));
}

awaitable<result<std::vector<listed_object>>> list_one(store_table* stores, scope* tasks, url where,
                                                       std::string pattern) {
  const auto star = where.path.find('*');
  if (star != std::string::npos) where.path.erase(star);
  // held over co_await: the table is complete, and nothing is added or removed.
  object_store* const store = stores->at(where.scheme).get();
  co_await store->prepare();
  auto found = co_await store->list(*tasks, where);
  if (!found) co_return refused(found.error(), pattern);
  const bool lists_any = !found->empty();
  keep_described(*found, to_string(where), pattern);
  if (found->empty()) co_return nothing_described(pattern, lists_any);
  // Names in a listing are keys, whatever they look like.
  const std::string_view mark = store->option_mark();
  for (listed_object& o : *found) {
    if (!mark.empty() && o.url.find(mark) != std::string::npos) o.url += mark;
  }
  co_return found;
}

awaitable<result<std::vector<std::string>>> list_all(std::vector<std::string> urls,
                                                     const source_options* options,
                                                     object_sizes* sizes) {
  scope tasks(co_await this_executor);
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
    if (is_bucket(url)) url += '/';
    auto where = parse_url(url);
    const std::string pattern = where ? to_string(*where) : "";
    auto listed = where ? co_await list_one(&stores, &tasks, std::move(*where), pattern)
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
  if (store_of(url) == nullptr) return false;
  return url.ends_with('/') || is_bucket(url) || url.find('*') != std::string::npos;
}

result<std::vector<std::string>> with_listings(std::vector<std::string> urls,
                                               const source_options& options, object_sizes* sizes) {
  if (std::ranges::none_of(urls, is_listing)) return urls;
  asio::io_context context;
  auto done = spawn_on(context.get_executor(), list_all(std::move(urls), &options, sizes));
  context.run();
  return done.get();
}

}  // namespace millrace
