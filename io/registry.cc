#include "io/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <utility>

#include "engine/base/words.h"
#include "engine/coroutines/scope.h"
#include "io/names/rewrites.h"

namespace millrace {
namespace {

// The exception that the program's code has thrown, as an error with its URL.
awaitable<error> thrown_at(std::exception_ptr thrown, std::string url) {
  error why = co_await error_unless_stopped(std::move(thrown), "the source");
  if (why.where().empty()) why.at(url);
  co_return why;
}

// An error of the program's source. Where bytes cannot be read, a policy may skip the shard, as
// with the sources of the library.
error told_by_source(error why) {
  if (is_read_failure(why.kind())) why.skippable();
  return why;
}

class guarded_source final : public byte_source {
 public:
  guarded_source(std::unique_ptr<byte_source> from, std::string url)
      : from_(std::move(from)), url_(std::move(url)) {}
  awaitable<result<bytes>> read() override {
    std::exception_ptr thrown;
    try {
      auto piece = co_await from_->read();
      if (!piece) co_return told_by_source(piece.error());
      co_return std::move(*piece);
    } catch (...) {
      thrown = std::current_exception();
    }
    co_return co_await thrown_at(std::move(thrown), url_);
  }

 private:
  std::unique_ptr<byte_source> from_;
  std::string url_;
};

awaitable<result<std::unique_ptr<byte_source>>> open_guarded(source_factory factory,
                                                             source_context context,
                                                             std::string text, url where,
                                                             byte_range range) {
  std::exception_ptr thrown;
  try {
    auto opened = co_await factory(std::move(context), text, std::move(where), range);
    if (!opened) co_return told_by_source(opened.error());
    if (*opened) co_return std::make_unique<guarded_source>(std::move(*opened), text);
    co_return error(errc::usage, "the source factory of this scheme returned no source")
        .at(text)
        .hint("return a source, or an error");
  } catch (...) {
    thrown = std::current_exception();
  }
  co_return co_await thrown_at(std::move(thrown), text);
}

}  // namespace

void source_registry::add(std::string scheme, source_factory factory) {
  const auto is_of_scheme = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '-' || c == '.';
  };
  if (!factory || scheme.empty() || !std::ranges::all_of(scheme, is_of_scheme)) {
    throw failure(
        error(errc::usage, fmt::format("a source of the scheme '{}'{}", scheme,
                                       factory ? "" : " without a factory"))
            .hint(
                "name it as in URLs, with letters, digits, '+', '-' and '.', and give a function"));
  }
  add_unguarded(
      std::move(scheme), [factory = std::move(factory)](source_context context, std::string text,
                                                        url where, byte_range range) {
        return open_guarded(factory, std::move(context), std::move(text), std::move(where), range);
      });
}

void source_registry::add_unguarded(std::string scheme, source_factory factory) {
  factories_[lowered(scheme)] = std::move(factory);  // as URLs are read
}

awaitable<result<std::unique_ptr<byte_source>>> source_registry::open(source_context context,
                                                                      std::string text,
                                                                      byte_range range) const {
  text = rewritten(text, context.options.rewrites);
  auto where = parse_url(text);
  if (!where) co_return where.error();
  const auto found = factories_.find(where->scheme);
  if (found == factories_.end()) {
    std::string known;
    for (const auto& [scheme, factory] : factories_) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", scheme);
    }
    co_return error(errc::unsupported, fmt::format("'{}:' URLs are not supported", where->scheme))
        .at(text)
        .hint("this build supports " + known);
  }
  co_return co_await found->second(std::move(context), std::move(text), std::move(*where), range);
}

}  // namespace millrace
