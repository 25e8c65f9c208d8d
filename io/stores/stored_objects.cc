#include "io/stores/stored_objects.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <vector>

#include "engine/base/words.h"
#include "engine/coroutines/scope.h"
#include "engine/coroutines/spawn_on.h"
#include "io/http/ask.h"
#include "io/http/transport.h"
#include "io/names/url.h"
#include "io/stores/known_stores.h"
#include "io/stores/store.h"
#include "io/stores/upload.h"

namespace millrace {
namespace {

// The work of a call with the store of its URL, once that is prepared.
struct call {
  http_stack& stack;
  scope& tasks;
  object_store& store;
  url where;
};

awaitable<result<std::vector<listed_object>>> list_below(call of) {
  return of.store.list(of.tasks, std::move(of.where));
}

awaitable<result<std::string>> get_object(call of, std::size_t most) {
  auto object = of.store.locate(of.where);
  if (!object) co_return object.error();
  object->name = to_string(of.where);
  auto answer = co_await ask(of.stack, of.tasks, std::move(*object), "GET", {}, most);
  if (!answer) co_return error(answer.error()).at(to_string(of.where));
  co_return std::move(answer->body);
}

awaitable<result<void>> put_object(call of, std::string_view content, upload_terms terms) {
  return upload(of.stack, of.tasks, *of.store.uploads(), std::move(of.where), content, terms);
}

awaitable<result<void>> remove_object(call of) {
  return delete_object(of.stack, of.tasks, *of.store.uploads(), std::move(of.where));
}

// A URL as listings have it, without a '/' at its end.
std::string normal(const std::string& text) {
  const auto where = parse_url(text);
  std::string out = where ? to_string(*where) : text;
  while (out.ends_with('/')) out.pop_back();
  return out;
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

// Connections, credentials, and the loop in which they are used.
class stored_objects::reach {
 public:
  reach(const source_options& options, const std::string& prefix)
      : stack_(std::make_shared<http_stack>(
            options.http, real_network(options.http.receive_buffer_bytes), real_time())),
        store_(store_of(prefix)->make(stack_)) {}

  // Runs `work` on this thread to its end. `work` is a function with value parameters.
  template <class T, class... Arguments>
  result<T> run(const std::string& url_text, awaitable<result<T>> (*work)(call of, Arguments...),
                Arguments... given) {
    auto where = parse_url(url_text);
    if (!where) return where.error();
    const std::scoped_lock one_at_a_time(mutex_);
    context_.restart();
    auto done = spawn_on(context_.get_executor(), with_store(std::move(*where), work, given...));
    const auto is_done = [&] {
      return done.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    };
    // A connection that is kept would keep the loop waiting.
    while (!is_done() && context_.run_one() > 0) {
    }
    return done.get();
  }

 private:
  template <class T, class... Arguments>
  awaitable<result<T>> with_store(url where, awaitable<result<T>> (*work)(call of, Arguments...),
                                  Arguments... given) {
    scope tasks(co_await this_executor);
    co_await store_->prepare();
    result<T> done = co_await work(call{*stack_, tasks, *store_, std::move(where)}, given...);
    tasks.stop();
    co_await tasks.join();
    co_return done;
  }

  std::mutex mutex_;
  asio::io_context context_;
  std::shared_ptr<http_stack> stack_;
  std::shared_ptr<object_store> store_;
};

stored_objects::stored_objects(std::string prefix, const source_options& options)
    : prefix_(normal(prefix)), options_(options) {}
stored_objects::~stored_objects() = default;

stored_objects::session::session(const stored_objects& of) : of_(of) {
  const std::scoped_lock lock(of_.mutex_);
  ++of_.sessions_;
}
stored_objects::session::~session() {
  const std::scoped_lock lock(of_.mutex_);
  if (--of_.sessions_ == 0) of_.shared_.reset();
}

std::shared_ptr<stored_objects::reach> stored_objects::reached() const {
  const std::scoped_lock lock(mutex_);
  if (sessions_ == 0) return std::make_shared<reach>(options_, prefix_);
  if (!shared_) shared_ = std::make_shared<reach>(options_, prefix_);
  return shared_;
}

std::string stored_objects::name_of(const std::string& text) const {
  const std::string at = normal(text);
  const std::string begin = prefix_ + "/";
  if (!at.starts_with(begin)) return {};
  return at.substr(std::min(at.find_first_not_of('/', begin.size()), at.size()));
}

result<std::map<std::string, std::uint64_t>> stored_objects::list(const std::string& begin) const {
  const std::string all = url_of("");
  const auto found = reached()->run(url_of(begin), list_below);
  if (!found) return found.error();
  std::map<std::string, std::uint64_t> names;
  for (const listed_object& o : *found) {
    if (o.url.size() > all.size() && o.url.starts_with(all + begin)) {
      names[o.url.substr(all.size())] = o.bytes.value_or(0);
    }
  }
  return names;
}

result<std::optional<std::string>> stored_objects::get(const std::string& name,
                                                       std::size_t most) const {
  auto found = reached()->run(url_of(name), get_object, most);
  if (!found && found.error().kind() == errc::not_found) return std::optional<std::string>();
  if (!found) return found.error();
  return std::optional(std::move(*found));
}

result<void> stored_objects::put(const std::string& name, std::string_view content,
                                 existing there) const {
  upload_terms terms;
  terms.only_if_absent = there == existing::refused;
  return reached()->run(url_of(name), put_object, content, terms);
}

result<void> stored_objects::remove(const std::string& name) const {
  return reached()->run(url_of(name), remove_object);
}

}  // namespace millrace
