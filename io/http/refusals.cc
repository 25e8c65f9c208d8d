#include "io/http/refusals.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/names/shard_name.h"

namespace millrace {
namespace {

// Whether both are equal up to the length of the shorter.
bool begin_alike(std::string_view a, std::string_view b) {
  const std::size_t n = std::min(a.size(), b.size());
  return a.substr(0, n) == b.substr(0, n);
}

}  // namespace

bool is_transient(int status) {
  return status == 408 || status == 425 || status == 429 || status == 500 || status == 502 ||
         status == 503 || status == 504;
}

error status_error(int status, const url& target, std::string_view name) {
  const bool is_missing = status == 404 || status == 410;
  const bool is_refused = status == 401 || status == 403;
  const errc kind = is_missing   ? errc::not_found
                    : is_refused ? errc::not_allowed
                                 : errc::http_status;
  error why = error(kind, fmt::format("the server answered {}", status)).skippable();
  if (!is_missing && !is_refused) return why;
  if (name.empty() && target.path.ends_with('/')) {
    return why.hint("HTTP cannot list folders: name the shards, as in x-{000000..000009}.tar");
  }
  if (is_refused) return why.hint("check the credentials");
  return why.hint(name.empty() || is_shard_name(name)
                      ? "check the URL"
                      : "check the URL; one that names all archives below it ends with '/'");
}

error unidentified_part() {
  return error(errc::protocol,
               "the server sends the object in parts, with neither its length nor an ETag or a "
               "Last-Modified to identify it by")
      .skippable()
      .hint("have the server send Content-Range with the object's length");
}

bool may_be_error_page(std::string_view front) {
  return begin_alike(front, "<?xml") || begin_alike(front, "<Error>");
}

bool is_error_page(std::string_view front) {
  return may_be_error_page(front) && front.find("<Error>") != std::string_view::npos;
}

bool asks_for_tls(std::string_view body) {
  constexpr std::string_view known[] = {
      "plain HTTP request was sent to HTTPS port",
      "Client sent an HTTP request to an HTTPS server",
      "speaking plain HTTP to an SSL-enabled server port",
  };
  return std::ranges::any_of(known,
                             [&](auto text) { return body.find(text) != std::string_view::npos; });
}

}  // namespace millrace
