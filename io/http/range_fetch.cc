#include "io/http/range_fetch.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/hints.h"
#include "engine/base/units.h"
#include "engine/coroutines/timer.h"
#include "engine/host/log.h"
#include "io/http/client.h"
#include "io/http/header_values.h"
#include "io/http/refusals.h"

namespace millrace {
namespace {

// The least that a waiting reader gets while more is to come.
constexpr std::size_t least_piece = 128_KiB;

// Buffers of whole pages, so that the buffers of a part are together as large as the part.
std::size_t whole_pages(std::size_t size) {
  return std::max(size / page_bytes * page_bytes, page_bytes);
}

double seconds_of(steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

range_fetch::range_fetch(source_context context, std::shared_ptr<http_stack> stack,
                         http_object object, byte_range range, object_version known,
                         memory_reservation reserved, int priority,
                         std::shared_ptr<fetch_signals> signals)
    : context_(std::move(context)),
      stack_(std::move(stack)),
      origin_(stack_->origin_of(object.target)),
      under_way_(origin_.under_way),
      object_(std::move(object)),
      begin_(range.begin),
      reserved_(std::move(reserved)),
      priority_(priority),
      signals_(std::move(signals)),
      transfer_(object_, range, std::move(known), stack_->options(), stack_->time(),
                stack_->next_seed()),
      ramp_(whole_pages(std::min(context_.options.chunk_bytes, context_.memory->limit() / 2))),
      started_(stack_->time().now()),
      counted_(started_) {}

double range_fetch::seconds() const {
  return seconds_of(stack_->time().now() - started_);
}

void range_fetch::finish() {
  under_way_.end();
  used_.clear();
  reserved_ = {};
  filling_ = {};
  notify();
}

awaitable<void> range_fetch::run(std::shared_ptr<range_fetch> self) {
  for (;;) {
    const http_transfer::action next = co_await self->attempt();
    if (const auto* why = std::get_if<error>(&next)) {
      self->failed = *why;
      co_return self->finish();
    }
    if (std::holds_alternative<http_transfer::finished>(next)) {
      self->ended = true;
      const double took = self->seconds();
      self->origin_.hedges.completed(self->received(), took);
      self->origin_.part.completed(self->received(), self->first_byte_s_,
                                   took - self->first_byte_s_);
      co_return self->finish();
    }
    if (const auto* again = std::get_if<http_transfer::ask_again>(&next)) {
      if (again->from_begin) self->throw_away();
      co_await self->pause(*again);
    }
  }
}

bytes range_fetch::take_ready() {
  gave_out();
  bytes piece = std::move(ready.front());
  ready.pop_front();
  taken_ += piece.size();
  return piece;
}

void range_fetch::drop_ready(std::size_t n) {
  gave_out();
  taken_ += n;
  bytes& first = ready.front();
  first = first.slice(n);
  if (first.empty()) ready.pop_front();
}

// Drops what has arrived; none of it was given out, and the next request may bring something else.
void range_fetch::throw_away() {
  std::uint64_t had = filled_ - given_;
  for (const bytes& piece : ready) had += piece.size();
  context_.counters.wasted_bytes += had;
  context_.counters.bytes -= had;
  ready.clear();
  filling_ = {};
  filled_ = given_ = 0;
  // The next request brings as much; it keeps this memory, so that it need not wait for any.
  for (buffer& whole : used_) reserved_.put_back(std::move(whole));
  used_.clear();
  begun_body_ = false;
}

awaitable<void> range_fetch::pause(http_transfer::ask_again how) {
  steady_clock::duration time = how.pause;
  time_source& clock = stack_->time();
  if (how.is_retry) time = std::max(time, origin_.retries.take(clock.now()));
  if (time.count() > 0) co_await clock.sleep(time);
}

awaitable<result<http_request>> range_fetch::next_request() {
  http_request request{.target = transfer_.target(),
                       .method = "GET",
                       .fields = transfer_.request_fields(),
                       .body = {},
                       .priority = priority_,
                       .fresh_connection = fresh_connection_,
                       .public_only = transfer_.public_only()};
  if (transfer_.may_send_secrets()) {
    const auto add = [&](const http_fields& more) {
      request.fields.insert(request.fields.end(), more.begin(), more.end());
    };
    add(object_.fields);
    if (object_.secrets) {
      auto secret = co_await object_.secrets->sign(context_.tasks, request);
      if (!secret) co_return secret.error();
      add(*secret);
    }
  }
  co_return request;
}

// Whether to ask for new credentials, once, and retry.
awaitable<bool> range_fetch::is_refused(const response_head& head) {
  const bool refused = head.status == 401 || head.status == 403 || head.status == 400;
  if (!refused || refused_once_ || !object_.secrets || !transfer_.may_send_secrets()) {
    co_return false;
  }
  refused_once_ = true;
  co_return co_await object_.secrets->refused();
}

// Adds the server's code, if the answer's body is a store's error page.
awaitable<error> range_fetch::with_code(error why, http_exchange& exchange) {
  std::string page(4096, '\0');
  const auto got = co_await exchange.read_body(std::as_writable_bytes(std::span(page)));
  page.resize(got ? *got : 0);
  if (transfer_.target().scheme == "http" && asks_for_tls(page)) {
    co_return transfer_.described(error(errc::protocol, "this port speaks TLS")
                                      .skippable()
                                      .hint("write https:// for http://"));
  }
  const std::string code = error_code_in(page);
  if (code.empty()) co_return why;
  // `why` has only a redacted URL; described() sets the URL itself.
  error more(why.kind(), fmt::format("{} ({})", why.what(), code));
  co_return transfer_.described(more.skippable().hint(why.what_to_do()));
}

// One request, up to the end of its body or a failure.
awaitable<http_transfer::action> range_fetch::attempt() {
  if (is_set_aside_) {
    const auto room = co_await have_room(nullptr);
    if (!room) co_return room.error();
    is_set_aside_ = false;
  }
  auto request = co_await next_request();
  if (!request) co_return after_failure(request.error());
  ++context_.counters.requests;
  auto outcome = co_await stack_->client().send(context_.tasks, std::move(*request));
  if (!outcome) co_return after_failure(outcome.error());
  if (outcome->stale_connection) {
    fresh_connection_ = true;
    co_return transfer_.on_stale_connection();
  }
  fresh_connection_ = false;
  http_exchange& exchange = *outcome->exchange;
  const response_head& head = exchange.head();
  if (co_await is_refused(head)) co_return http_transfer::ask_again{};
  const double first_byte = seconds_of(exchange.time_to_head());
  context_.counters.first_bytes.add(first_byte);
  context_.counters.first_byte_wait_s += first_byte;
  if (first_byte_s_ == 0) first_byte_s_ = first_byte;
  http_transfer::action next = transfer_.on_head(head);
  if (const auto* again = std::get_if<http_transfer::ask_again>(&next)) {
    if (again->is_retry) {
      ++context_.counters.retries;
      tell(*again->why, again->pause);
    }
    co_return next;
  }
  if (const auto* why = std::get_if<error>(&next); why != nullptr && head.status >= 400) {
    co_return co_await with_code(*why, exchange);
  }
  if (!std::holds_alternative<http_transfer::take_body>(next)) co_return next;
  refused_once_ = false;
  origin_.retries.succeeded();
  is_object_ = false;
  if (head.status == 206) on_object();
  co_return co_await take_body(exchange);
}

// The answer is the object's. For an answer of 200, that is not known before its first bytes: it
// may be an error page, and its head is then the page's.
void range_fetch::on_object() {
  if (std::exchange(is_object_, true)) return;
  if (transfer_.ignores_ranges()) origin_.ignores_ranges = true;
  begun_body_ = true;
  notify();
}

// Includes bytes that the answer repeats before the next one, which pass through the same buffers.
std::uint64_t range_fetch::bytes_to_come() const {
  const auto end = transfer_.end();
  if (!end) return ~std::uint64_t{0};
  return *end - std::min(*end, transfer_.offset()) + transfer_.to_discard();
}

// Ensures room for the next bytes. False: leave the connection of `held` to other requests, which
// wait for one. `held` is null if there is no connection.
awaitable<result<bool>> range_fetch::have_room(http_exchange* held) {
  if (filling_ && filled_ < filling_.size()) co_return true;
  const std::uint64_t left = bytes_to_come();
  const auto size = static_cast<std::size_t>(std::clamp<std::uint64_t>(left, 1, ramp_.next()));
  if (reserved_.left() >= size) {
    filling_ = reserved_.take(size);
    if (!transfer_.has_given_out()) used_.push_back(filling_);
  } else {
    reserved_ = {};
    // Half of it before a connection is made: it should be worth making.
    const auto ahead = static_cast<std::size_t>(context_.options.read_ahead);
    const std::size_t full = held != nullptr ? ahead : (ahead + 1) / 2;
    if (ready.size() < full) filling_ = context_.memory->try_acquire(size);
    if (!filling_) {
      auto room = co_await wait_for_room(held, full, size);
      if (!room) co_return room.error();
      if (!*room) co_return false;
      filling_ = std::move(*room);
    }
  }
  filled_ = given_ = 0;
  co_return true;
}

// Waits until fewer than `full` pieces are ready, then for memory; returns none if the connection
// of `held` is wanted. The reader whose turn it is may itself wait for a connection, so it must not
// be kept from one here (io/http/pool.h).
awaitable<result<buffer>> range_fetch::wait_for_room(http_exchange* held, std::size_t full,
                                                     std::size_t size) {
  const bool may_end = transfer_.may_be_set_aside() && !origin_.ignores_ranges;
  const paused_exchange paused(held, may_end ? &signals_->changed : nullptr);
  while (ready.size() >= full) {
    if (paused.is_wanted()) co_return buffer();
    co_await signals_->changed.wait();
  }
  const stopwatch waited(context_.counters.memory_wait_s);
  if (held == nullptr || !may_end) co_return co_await context_.memory->acquire(size);
  auto memory = co_await unless_first(until_wanted(held), context_.memory->acquire(size));
  if (!memory) co_return buffer();
  co_return std::move(*memory);
}

awaitable<void> range_fetch::until_wanted(http_exchange* held) {
  while (!held->is_wanted()) co_await signals_->changed.wait();
}

http_transfer::action range_fetch::set_aside() {
  is_set_aside_ = true;
  if (!std::exchange(origin_.takes_turns, true)) {
    log_notice(fmt::format(
        "{}: more objects are read than there are connections to the server ({}), so they take "
        "turns; http_options.connections (MILLRACE_HTTP_CONNECTIONS) sets the number",
        object_.target.origin(), stack_->options().connections));
  }
  return transfer_.on_set_aside();
}

// Counts the bytes that arrived, and moves those that are wanted to the front.
std::optional<http_transfer::action> range_fetch::take_piece(std::span<std::byte> piece) {
  const std::string_view text(reinterpret_cast<const char*>(piece.data()), piece.size());
  if (auto page = transfer_.on_front(text)) {
    ++context_.counters.retries;
    return page;
  }
  if (!transfer_.holds_front()) on_object();
  const auto unwanted = static_cast<std::size_t>(transfer_.on_body(piece.size()));
  if (unwanted > 0) std::ranges::copy(piece.subspan(unwanted), piece.begin());
  const std::size_t kept = piece.size() - unwanted;
  context_.counters.bytes += kept;
  context_.counters.wasted_bytes += unwanted;
  origin_.hedges.received(kept);
  filled_ += kept;
  return std::nullopt;
}

// Measures how many requests this server is worth.
void range_fetch::count_buffer() {
  const auto now = stack_->time().now();
  const bool limited = origin_.waiting > 0 && origin_.under_way >= origin_.requests.depth();
  origin_.requests.completed(filled_, seconds_of(now.time_since_epoch()),
                             seconds_of(now - counted_), limited);
  counted_ = now;
}

// Hands over the buffer's bytes: when it is full, when no more will arrive, and earlier to a reader
// that waits.
void range_fetch::give(bool all) {
  const std::size_t more = filled_ - given_;
  if (transfer_.holds_front()) return;
  if (more == 0 || (!all && filled_ < filling_.size() && !(is_awaited && more >= least_piece)))
    return;
  ready.push_back(bytes(filling_.owner(), given_, more));
  given_ = filled_;
  if (filled_ == filling_.size()) {
    filling_ = {};
    count_buffer();
  }
  notify();
}

// The answer ended, as announced or earlier.
http_transfer::action range_fetch::at_its_end() {
  auto next = transfer_.on_end();
  const auto* again = std::get_if<http_transfer::ask_again>(&next);
  if (again == nullptr || !again->from_begin) {
    on_object();
    give(true);
  }
  return next;
}

// All requested bytes are here: returns what the rest of the answer means; nullopt: more is to
// come.
awaitable<std::optional<http_transfer::action>> range_fetch::at_end(http_exchange& exchange) {
  const auto end = transfer_.end();
  if (!end || transfer_.offset() < *end) co_return std::nullopt;
  // If the server sends the whole object instead of a range, the rest is not read, and the
  // connection ends.
  if (transfer_.ignores_ranges() && transfer_.may_end_within()) co_return at_its_end();
  std::byte beyond{};
  const auto got = co_await exchange.read_body({&beyond, 1});
  if (got && *got > 0) {
    give(true);
    co_return after_failure(error(errc::protocol, "the server sent more than it announced")
                                .hint(std::string("check the server; ") + new_names_hint));
  }
  co_return at_its_end();
}

awaitable<http_transfer::action> range_fetch::take_body(http_exchange& exchange) {
  for (;;) {
    if (auto done = co_await at_end(exchange)) co_return *done;
    const auto room = co_await have_room(&exchange);
    if (!room) co_return room.error();
    if (!*room) co_return set_aside();
    const auto free = filling_.span().subspan(filled_);
    const auto place = free.first(std::min<std::uint64_t>(free.size(), bytes_to_come()));
    const auto got = co_await exchange.read_body(place);
    if (!got) {
      give(true);
      co_return after_failure(got.error());
    }
    if (*got == 0) {
      auto next = at_its_end();
      if (std::holds_alternative<http_transfer::ask_again>(next)) {
        ++context_.counters.retries;
        ++context_.counters.resumed;
      }
      co_return next;
    }
    if (auto page = take_piece(place.first(*got))) co_return *page;
    give(false);
  }
}

http_transfer::action range_fetch::after_failure(const error& why) {
  if (why.kind() == errc::stopped) return why;
  auto next = transfer_.on_failure(why);
  if (const auto* again = std::get_if<http_transfer::ask_again>(&next)) {
    ++context_.counters.retries;
    if (received() > 0) ++context_.counters.resumed;
    if (why.kind() == errc::timed_out) ++context_.counters.stalls;
    tell(why, again->pause);
  }
  return next;
}

// Logs the first retry as a notice, so that the user knows why it takes longer; later ones as debug
// messages.
void range_fetch::tell(const error& why, std::chrono::milliseconds pause) {
  error of_object = why;
  if (why.where().empty()) of_object.at(to_string(object_.target));
  const std::string line = fmt::format("{} (byte {}); retrying in {} ms", of_object.message(),
                                       transfer_.offset(), pause.count());
  told_ ? log_debug(line) : log_notice(line);
  told_ = true;
}

}  // namespace millrace
