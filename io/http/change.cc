#include "io/http/change.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "io/http/client.h"
#include "io/http/header_values.h"
#include "io/http/refusals.h"
#include "io/http/retry_policy.h"

namespace millrace {
namespace {

// The most of an answer's body that is read: error pages and results of uploads are short.
constexpr std::size_t most_answer_bytes = 1UL << 20;

// The codes of stores for a request that failed on its way, whatever the status says.
constexpr std::array<std::string_view, 6> passing_codes = {
    "RequestTimeout", "BadDigest",        "XAmzContentSHA256Mismatch",
    "Md5Mismatch",    "OperationAborted", "ConditionalRequestConflict"};

bool is_success(int status) {
  return status == 200 || status == 201 || status == 202 || status == 204;
}

// The outcome of one attempt.
struct attempt {
  result<http_answer> answer = error();
  std::optional<std::string> retry_after;
  bool is_stale = false;    // a kept connection was dead: costs no attempt
  bool is_refused = false;  // 4xx: other credentials may help
};

error redirected(const http_answer& answer, int status) {
  error why(errc::protocol,
            fmt::format("the server answered {}: a redirect of a write is not followed", status));
  const auto region = told_region(answer.head.field("x-amz-bucket-region").value_or(""));
  return why.hint(region ? fmt::format("the bucket is in {}: set AWS_REGION", *region)
                         : "check the endpoint that was asked");
}

// The error of an answer that is not a success; retryable if the request may be repeated.
error refusal(const http_answer& answer, const http_change& what) {
  const int status = answer.head.status;
  if (status / 100 == 3) return redirected(answer, status);
  const std::string code = error_code_in(answer.body);
  const bool is_passing = is_transient(status) || is_success(status) ||
                          std::ranges::find(passing_codes, code) != passing_codes.end();
  const error plain = status_error(status, what.object.target, what.object.name);
  const bool is_there = status == 412 || code == "BlobAlreadyExists";
  const bool is_unknown = status == 501 || code == "NotImplemented";
  error why(is_there     ? errc::changed
            : is_unknown ? errc::unsupported
                         : plain.kind(),
            fmt::format("the server answered {}{} to {}", status,
                        code.empty() ? "" : fmt::format(" ({})", code), what.method));
  why.retryable(is_passing);
  if (plain.kind() == errc::not_allowed) {
    return why.hint("check the credentials, and that they permit to write, list and delete there");
  }
  if (plain.kind() == errc::not_found) return why.hint("check the bucket's name and the endpoint");
  return why;
}

awaitable<attempt> try_once(http_stack& stack, scope& tasks, const http_change& what, bool fresh) {
  attempt out;
  http_request request{.target = what.object.target,
                       .method = what.method,
                       .fields = what.object.fields,
                       .body = std::string(what.body),
                       .priority = 0,
                       .fresh_connection = fresh,
                       .public_only = false,
                       .slow_answer = what.slow_answer};
  request.fields.insert(request.fields.end(), what.fields.begin(), what.fields.end());
  if (what.object.secrets) {
    const auto secret = co_await what.object.secrets->sign(tasks, request);
    if (!secret) {
      out.answer = secret.error();
      co_return out;
    }
    request.fields.insert(request.fields.end(), secret->begin(), secret->end());
  }
  auto sent = co_await stack.client().send(tasks, std::move(request));
  if (!sent) {
    out.answer = sent.error();
    co_return out;
  }
  out.is_stale = sent->stale_connection;
  if (out.is_stale) co_return out;
  http_answer answer{.head = sent->exchange->head(), .body = {}};
  const auto broken = co_await read_whole_body(*sent->exchange, most_answer_bytes, answer.body);
  answer.body.erase(0, answer.body.find_first_not_of(" \t\r\n"));  // S3's, to fill the time
  out.retry_after = answer.head.field("retry-after");
  out.is_refused = answer.head.status / 100 == 4;
  if (broken && is_success(answer.head.status)) {
    out.answer = *broken;
  } else if (is_success(answer.head.status) && !is_error_page(answer.body)) {
    out.answer = std::move(answer);
  } else {
    out.answer = refusal(answer, what);
  }
  co_return out;
}

}  // namespace

awaitable<result<http_answer>> request_change(http_stack& stack, scope& tasks, http_change what) {
  const std::string name =
      what.object.name.empty() ? to_string(what.object.target) : what.object.name;
  retry_policy retries(stack.options(), stack.time(), stack.next_seed());
  bool fresh = false;
  bool refused_once = false;
  for (;;) {
    attempt done = co_await try_once(stack, tasks, what, fresh);
    fresh = done.is_stale;
    if (fresh) continue;
    if (done.answer) co_return std::move(*done.answer);
    error why = done.answer.error();
    if (!why.is_retryable()) {
      if (done.is_refused && what.object.secrets && !std::exchange(refused_once, true) &&
          co_await what.object.secrets->refused()) {
        continue;
      }
      co_return why.at(name);
    }
    const auto decided = retries.on_failure(false, done.retry_after);
    if (const auto* const no_more = std::get_if<retry_policy::no_more>(&decided)) {
      co_return error(why.kind(), fmt::format("{} ({})", why.what(), no_more->why))
          .at(name)
          .hint(no_more_attempts_hint);
    }
    const auto pause = std::get<retry_policy::again>(decided).pause;
    if (pause.count() > 0) co_await stack.time().sleep(pause);
  }
}

}  // namespace millrace
