// The one translation unit that includes Beast.
#include "io/http/response_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http.hpp>
#include <boost/beast/src.hpp>
#include <cstring>
#include <optional>

#include "engine/coroutines/async.h"

namespace millrace {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

constexpr std::uint32_t head_limit = 64 * 1024;
constexpr int most_interim_responses = 16;

error broken(std::string_view what) {
  return error(errc::protocol, fmt::format("the server's answer is not HTTP/1.1: {}", what))
      .retryable();
}

}  // namespace

struct response_reader::state {
  explicit state(bool without_body) : head_only(without_body) { begin(); }

  void begin() {
    parser.emplace();
    parser->body_limit(boost::none);
    parser->header_limit(head_limit);
    parser->skip(head_only);
  }

  bool head_only;
  std::optional<http::response_parser<http::buffer_body>> parser;
  std::optional<response_head> head;
  std::optional<std::uint64_t> left;  // of a body with a known length
  bool until_end = false;             // the body ends when the connection does
  bool ended = false;
  std::optional<error> failed;  // the rest of the body is broken
  int interim = 0;
};

response_reader::response_reader(bool head_only) : state_(std::make_unique<state>(head_only)) {}
response_reader::~response_reader() = default;

bool response_reader::has_head() const {
  return state_->head.has_value();
}
const response_head& response_reader::head() const {
  return *state_->head;
}
response_head& response_reader::head() {
  return *state_->head;
}

result<std::size_t> response_reader::put_head(std::string_view pending) {
  std::size_t used = 0;
  while (!state_->head) {
    auto& parser = *state_->parser;
    error_code failed;
    used += parser.put(boost::asio::buffer(pending.substr(used)), failed);
    if (failed == http::error::need_more) {
      if (pending.size() - used > head_limit) return broken("a head of more than 64 KiB");
      return used;
    }
    if (failed) return broken(failed.message());
    if (!parser.is_header_done()) return used;
    const auto& message = parser.get();
    if (message.result_int() / 100 == 1 && message.result_int() != 101) {
      if (++state_->interim > most_interim_responses) return broken("too many interim answers");
      state_->begin();
      continue;
    }
    response_head head;
    head.status = static_cast<int>(message.result_int());
    for (const auto& f : message) {
      const bool names_version =
          f.name() == http::field::etag || f.name() == http::field::last_modified;
      if (names_version && !is_validator(f.value())) continue;  // ignored
      head.fields.push_back({std::string(f.name_string()), std::string(f.value())});
    }
    if (const auto length = parser.content_length()) head.content_length = *length;
    const bool bodiless = state_->head_only || head.status == 204 || head.status == 304;
    if (bodiless) {
      state_->left = 0;
    } else if (!parser.chunked()) {
      state_->left = head.content_length;
      state_->until_end = !head.content_length;
    }
    state_->head = std::move(head);
  }
  return used;
}

result<std::size_t> response_reader::take_body(std::string& pending, std::span<std::byte> into) {
  state& s = *state_;
  if (s.failed) return *s.failed;
  if (pending.empty() || s.ended) return std::size_t{0};
  if (s.left || s.until_end) {
    const auto got = static_cast<std::size_t>(
        std::min<std::uint64_t>({pending.size(), into.size(), s.left.value_or(into.size())}));
    std::memcpy(into.data(), pending.data(), got);
    pending.erase(0, got);
    took_directly(got);
    return got;
  }
  auto& body = s.parser->get().body();
  body.data = into.data();
  body.size = into.size();
  body.more = true;
  error_code failed;
  std::size_t used = 0;
  while (used < pending.size() && !s.parser->is_done() && body.size > 0) {
    const std::size_t n =
        s.parser->put(boost::asio::buffer(std::string_view(pending).substr(used)), failed);
    used += n;
    if (failed == http::error::need_buffer) break;
    if (failed && failed != http::error::need_more) {
      s.failed = broken(failed.message());
      break;
    }
    if (n == 0) break;
  }
  if (used == 0 && pending.size() > head_limit)
    s.failed = broken("a chunk's head of more than 64 KiB");
  pending.erase(0, used);
  s.ended = s.parser->is_done();
  const std::size_t got = into.size() - body.size;
  if (got == 0 && s.failed) return *s.failed;  // else it is reported after the bytes before it
  return got;
}

std::size_t response_reader::direct_bytes(std::size_t wanted) const {
  if (state_->until_end) return wanted;
  return static_cast<std::size_t>(std::min<std::uint64_t>(state_->left.value_or(0), wanted));
}

void response_reader::took_directly(std::size_t bytes) {
  if (state_->left) *state_->left -= bytes;
}

bool response_reader::put_end() {
  if (!state_->until_end) return false;
  state_->ended = true;
  return true;
}

bool response_reader::is_done() const {
  return state_->ended || state_->left == std::uint64_t{0};
}

bool response_reader::may_be_reused() const {
  return is_done() && !state_->until_end && state_->parser->keep_alive();
}

}  // namespace millrace
