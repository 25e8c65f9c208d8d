#include "io/source.h"

#include <fmt/format.h>

#include "io/file_source.h"
#include "io/http_source.h"

namespace millrace {

source_options source_options::from(const settings& s) {
  return {
      .extent_bytes = s.bytes("MILLRACE_READ_EXTENT"),
      .read_ahead = s.integer("MILLRACE_READ_AHEAD"),
      .read_timeout = s.seconds("MILLRACE_READ_TIMEOUT"),
      .http_connect_timeout = s.seconds("MILLRACE_HTTP_CONNECT_TIMEOUT"),
      .http_first_byte_timeout = s.seconds("MILLRACE_HTTP_FIRST_BYTE_TIMEOUT"),
      .http_progress_timeout = s.seconds("MILLRACE_HTTP_PROGRESS_TIMEOUT"),
      .http_attempts = s.integer("MILLRACE_HTTP_ATTEMPTS"),
      .http_backoff = s.seconds("MILLRACE_HTTP_BACKOFF"),
  };
}

void source_registry::add(std::string scheme, source_factory factory) {
  factories_[std::move(scheme)] = std::move(factory);
}

awaitable<result<std::unique_ptr<byte_source>>> source_registry::open(source_context context,
                                                                      std::string text,
                                                                      std::uint64_t offset) const {
  auto where = parse_url(text);
  if (!where) co_return where.error();
  const auto found = factories_.find(where->scheme);
  if (found == factories_.end()) {
    std::string known;
    for (const auto& [scheme, factory] : factories_) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", scheme);
    }
    co_return error(errc::unsupported, fmt::format("no source for '{}:'", where->scheme))
        .at(text)
        .hint("this build reads " + known);
  }
  co_return co_await found->second(std::move(context), std::move(text), std::move(*where), offset);
}

source_registry standard_sources() {
  source_registry made;
  made.add("file", open_file_source);
  made.add("-", open_stdin_source);
  made.add("http", http_source_factory(make_http_client()));
  return made;
}

}  // namespace millrace
