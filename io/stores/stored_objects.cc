#include "io/stores/stored_objects.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <vector>

#include "engine/scope.h"
#include "engine/spawn_on.h"
#include "engine/words.h"
#include "io/http/transport.h"
#include "io/names/url.h"
#include "io/stores/known_stores.h"
#include "io/stores/store.h"
#include "io/stores/upload.h"

namespace millrace {
namespace {

// What a call does with the store of its URL, once that is prepared.
struct call {
  http_stack& stack;
  scope& tasks;
  object_store& store;
  url where;
};

// Prepares the store and does `work` with it. The connections end with this coroutine: one that is
// kept alive would keep its I/O thread waiting.
template <class T, class... Arguments>
awaitable<result<T>> with_store(const source_options* options, const known_store* known, url where,
                                awaitable<result<T>> (*work)(call of, Arguments...),
                                Arguments... given) {
  scope tasks(co_await this_executor);
  const auto stack = std::make_shared<http_stack>(
      options->http, real_network(options->http.receive_buffer_bytes), real_time());
  const std::shared_ptr<object_store> store = known->make(stack);
  co_await store->prepare();
  result<T> done = co_await work(call{*stack, tasks, *store, std::move(where)}, given...);
  tasks.stop();
  co_await tasks.join();
  co_return done;
}

// Runs `work` on this thread to its end. `work` is a function with value parameters.
template <class T, class... Arguments>
result<T> run(const source_options& options, const std::string& url_text,
              awaitable<result<T>> (*work)(call of, Arguments...), Arguments... given) {
  auto where = parse_url(url_text);
  if (!where) return where.error();
  asio::io_context context;
  auto done = spawn_on(context.get_executor(),
                       with_store(&options, store_of(url_text), std::move(*where), work, given...));
  context.run();
  return done.get();
}

awaitable<result<std::vector<listed_object>>> list_below(call of) {
  return of.store.list(of.tasks, std::move(of.where));
}

awaitable<result<void>> put_object(call of, std::string_view content, upload_terms terms) {
  return upload(of.stack, of.tasks, *of.store.uploads(), std::move(of.where), content, terms);
}

awaitable<result<void>> remove_object(call of) {
  return delete_object(of.stack, of.tasks, *of.store.uploads(), std::move(of.where));
}

}  // namespace

bool names_server(std::string_view text) {
  const std::string scheme = scheme_of(text);
  return is_web_scheme(scheme) || is_of_store(scheme);
}

result<void> check_has_two_slashes(std::string_view text) {
  const auto end = text.find(':');
  if (end == std::string_view::npos || names_server(text)) return {};
  const std::string scheme = lowered(text.substr(0, end));
  if (!is_web_scheme(scheme) && !is_of_store(scheme)) return {};
  std::string_view rest = text.substr(end + 1);
  rest.remove_prefix(std::min(rest.find_first_not_of('/'), rest.size()));
  return error(errc::usage, "this is neither a URL nor a plain path")
      .at(text)
      .hint(fmt::format("write {}://{}, or ./{} for a folder of that name", scheme, rest, text));
}

result<void> check_writable(const std::string& url) {
  const known_store* const store = store_of(url);
  if (store == nullptr) {
    std::vector<std::string> writable;
    for (const known_store* s : known_stores) {
      if (s->why_not_written.empty()) writable.push_back(fmt::format("{}://", s->scheme));
    }
    return error(errc::usage, "millrace does not write to HTTP servers")
        .at(url)
        .hint(fmt::format("use a folder, or a store: {}", fmt::join(writable, ", ")));
  }
  if (!store->why_not_written.empty()) {
    return error(errc::usage, fmt::format("millrace does not write to {}://", store->scheme))
        .at(url)
        .hint(store->why_not_written);
  }
  const auto where = parse_url(url);
  if (!where) return where.error();
  if (where->host.empty()) {
    return error(errc::usage, "the URL names no bucket")
        .at(url)
        .hint(fmt::format("write {}://BUCKET/PREFIX", store->scheme));
  }
  if (!where->userinfo.empty() || where->path.find('?') != std::string::npos) {
    return error(errc::usage, "a URL to write below has neither a password nor a '?'")
        .at(url)
        .hint("credentials are in the store's variables");
  }
  return {};
}

stored_objects::stored_objects(std::string prefix, const source_options& options)
    : prefix_(std::move(prefix)), options_(options) {
  if (const auto where = parse_url(prefix_)) prefix_ = to_string(*where);  // as listings have it
  while (prefix_.ends_with('/')) prefix_.pop_back();
}

result<std::map<std::string, std::uint64_t>> stored_objects::list() const {
  const std::string begin = prefix_ + "/";
  const auto found = run(options_, begin, list_below);
  if (!found) return found.error();
  std::map<std::string, std::uint64_t> names;
  for (const listed_object& o : *found) {
    if (o.url.size() > begin.size() && o.url.starts_with(begin)) {
      names[o.url.substr(begin.size())] = o.bytes.value_or(0);
    }
  }
  return names;
}

result<void> stored_objects::put(const std::string& name, std::string_view content,
                                 existing there) const {
  upload_terms terms;
  terms.only_if_absent = there == existing::refused;
  return run(options_, url_of(name), put_object, content, terms);
}

result<void> stored_objects::remove(const std::string& name) const {
  return run(options_, url_of(name), remove_object);
}

}  // namespace millrace
