#include "io/http/ask.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "io/http/client.h"
#include "io/http/header_values.h"
#include "io/http/transfer.h"

namespace millrace {
namespace {

// The limit for the body of a refusal.
constexpr std::size_t most_error_bytes = 64UL << 10;

error with_code(const error& why, const std::string& code, const url& target) {
  if (code.empty()) return why;
  return error(why.kind(), fmt::format("{} ({})", why.what(), code))
      .at(to_string(target))
      .hint(why.what_to_do());
}

// Status 416.
error no_byte() {
  return error(errc::protocol, "the server answered 416: the object has no bytes").skippable();
}

}  // namespace

awaitable<result<http_answer>> ask(http_stack& stack, scope& tasks, http_object object,
                                   std::string method, std::string body, std::size_t most) {
  http_transfer transfer(object, {}, {}, stack.options(), stack.time(), stack.next_seed());
  bool fresh = false;
  bool refused_once = false;
  for (;;) {
    http_request request{.target = transfer.target(),
                         .method = method,
                         .fields = object.fields,
                         .body = body,
                         .priority = 0,
                         .fresh_connection = fresh,
                         .public_only = transfer.public_only()};
    if (!transfer.may_send_secrets() && !body.empty()) {  // it may be a secret itself
      co_return error(errc::protocol, "a redirect to another host is not followed with a body")
          .at(to_string(object.target));
    }
    if (!transfer.may_send_secrets()) request.fields.clear();
    if (object.secrets && transfer.may_send_secrets()) {
      const auto secret = co_await object.secrets->sign(tasks, request);
      if (!secret) co_return secret.error();
      request.fields.insert(request.fields.end(), secret->begin(), secret->end());
    }
    auto outcome = co_await stack.client().send(tasks, std::move(request));
    fresh = outcome && outcome->stale_connection;
    if (fresh) continue;
    http_transfer::action next = http_transfer::take_body{};
    http_answer answer;
    if (!outcome) {
      next = transfer.on_failure(outcome.error());
    } else {
      answer.head = outcome->exchange->head();
      next = transfer.on_head(answer.head);
      const bool is_empty = std::holds_alternative<http_transfer::finished>(next);
      if (is_empty && most > 0) next = transfer.described(no_byte());
      const bool succeeds = std::holds_alternative<http_transfer::take_body>(next);
      const bool wants_body = succeeds || std::holds_alternative<error>(next);
      std::optional<error> broken;
      if ((succeeds || is_empty) && most == 0) {
        // Its end is known at once, and the connection is kept.
        std::byte none{};
        if (method == "HEAD") (void)co_await outcome->exchange->read_body({&none, 1});
        co_return answer;
      }
      if (wants_body)
        broken = co_await read_whole_body(*outcome->exchange, std::max(most, most_error_bytes),
                                          answer.body);
      if (broken && broken->kind() == errc::too_large)
        co_return broken->at(to_string(object.target));
      if (succeeds) {
        const auto failed = broken ? std::optional(transfer.on_failure(*broken))
                                   : transfer.on_whole_body(answer.body);
        if (!failed) co_return answer;
        next = *failed;
        answer.body.clear();  // of an error page that is already reported
      }
      const bool refused = answer.head.status / 100 == 4 && object.secrets && !refused_once;
      if (refused && std::holds_alternative<error>(next)) {
        refused_once = true;
        if (co_await object.secrets->refused()) continue;
      }
    }
    if (const auto* why = std::get_if<error>(&next)) {
      co_return with_code(*why, error_code_in(answer.body), object.target);
    }
    const auto* again = std::get_if<http_transfer::ask_again>(&next);
    if (again != nullptr && again->pause.count() > 0) co_await stack.time().sleep(again->pause);
  }
}

}  // namespace millrace
