#include "io/http_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/log.h"
#include "engine/timer.h"
#include "io/read_ahead.h"

namespace millrace {
namespace {

using queue = read_ahead_source::queue;

// Reads one object into `ahead`. Its own object so that the steps share what they work on.
class fetcher {
 public:
  fetcher(source_context context, std::shared_ptr<http_client> client, url where,
          std::uint64_t offset, std::shared_ptr<queue> ahead)
      : context_(std::move(context)),
        client_(std::move(client)),
        transfer_(std::move(where), offset,
                  {.attempts = context_.options.http_attempts,
                   .first_pause = context_.options.http_backoff,
                   .redirects = 5},
                  reinterpret_cast<std::uintptr_t>(ahead.get())),
        ahead_(std::move(ahead)),
        extents_(context_.options.chunk_bytes) {}

  awaitable<void> run() {
    for (;;) {
      const http_transfer::action next = co_await attempt();
      if (const auto* failed = std::get_if<error>(&next)) co_return ahead_->fail(*failed);
      if (std::holds_alternative<http_transfer::finished>(next)) co_return ahead_->close();
      if (const auto* again = std::get_if<http_transfer::ask_again>(&next)) {
        if (again->pause.count() > 0) co_await sleep_for(again->pause);
      }
      if (abandoned_) co_return;
    }
  }

 private:
  // One request, up to the end of its body or a failure.
  awaitable<http_transfer::action> attempt() {
    const http_timeouts limits{.connect = context_.options.http_connect_timeout,
                               .first_byte = context_.options.http_first_byte_timeout,
                               .progress = context_.options.http_progress_timeout};
    http_client::request request{.target = transfer_.target(),
                                 .range = transfer_.range(),
                                 .if_range = transfer_.if_range(),
                                 .fresh_connection = fresh_connection_};
    ++context_.counters.requests;
    auto outcome = co_await client_->get(std::move(request), limits);
    if (!outcome) co_return failed(outcome.error());
    if (outcome->stale_connection) {
      fresh_connection_ = true;
      co_return transfer_.on_stale_connection();
    }
    fresh_connection_ = false;
    http_exchange& exchange = *outcome->exchange;
    http_transfer::action next = transfer_.on_head(exchange.head());
    if (!std::holds_alternative<http_transfer::take_body>(next)) {
      if (std::holds_alternative<http_transfer::ask_again>(next)) ++context_.counters.retries;
      co_return next;
    }
    co_return co_await take_body(exchange);
  }

  awaitable<http_transfer::action> take_body(http_exchange& exchange) {
    for (;;) {
      const std::uint64_t left = transfer_.total().value_or(~std::uint64_t{0}) - transfer_.offset();
      const auto size =
          static_cast<std::size_t>(std::clamp<std::uint64_t>(left, 1, extents_.next()));
      auto extent = co_await context_.memory->acquire(size);
      if (!extent) co_return extent.error();
      // Fill the extent: many small slices would cost more than they gain, and hold more memory.
      std::size_t filled = 0;
      bool body_ended = false;
      std::optional<error> broken;
      while (filled < size && !body_ended && !broken) {
        const auto got = co_await exchange.read_body(extent->span().subspan(filled));
        if (!got) {
          broken = got.error();
        } else if (*got == 0) {
          body_ended = true;
        } else {
          filled += keep_wanted(extent->span().subspan(filled, *got));
        }
      }
      if (filled > 0) {
        context_.counters.bytes += filled;
        const auto taken = co_await ahead_->push(std::move(*extent).freeze(filled));
        abandoned_ = !taken || !*taken;
        if (abandoned_) co_return http_transfer::ask_again{};
      }
      if (broken) co_return failed(*broken);
      if (body_ended) co_return ended();
    }
  }

  // Moves the wanted bytes of `piece` to its front; how many they are.
  std::size_t keep_wanted(std::span<std::byte> piece) {
    const auto unwanted = static_cast<std::size_t>(transfer_.on_body(piece.size()));
    std::ranges::copy(piece.subspan(unwanted), piece.begin());
    return piece.size() - unwanted;
  }

  http_transfer::action ended() {
    auto next = transfer_.on_end();
    if (std::holds_alternative<http_transfer::ask_again>(next)) ++context_.counters.retries;
    return next;
  }

  http_transfer::action failed(const error& why) {
    if (why.kind() == errc::stopped) return why;
    auto next = transfer_.on_failure(why);
    if (const auto* again = std::get_if<http_transfer::ask_again>(&next)) {
      ++context_.counters.retries;
      const std::string line = fmt::format("{} (byte {}); asking again in {} ms", why.message(),
                                           transfer_.offset(), again->pause.count());
      // The first time the user is told why it takes so long; later times only on request.
      told_ ? log_debug(line) : log_notice(line);
      told_ = true;
    }
    return next;
  }

  source_context context_;
  std::shared_ptr<http_client> client_;
  http_transfer transfer_;
  std::shared_ptr<queue> ahead_;
  extent_ramp extents_;
  bool fresh_connection_ = false;
  bool abandoned_ = false;
  bool told_ = false;
};

awaitable<void> fetch(std::shared_ptr<fetcher> whole) {
  co_await whole->run();
}

awaitable<result<std::unique_ptr<byte_source>>> open_http(std::shared_ptr<http_client> client,
                                                          source_context context,
                                                          std::string /*text*/, url where,
                                                          std::uint64_t offset) {
  const auto capacity = static_cast<std::size_t>(std::max(1, context.options.read_ahead - 1));
  auto ahead = std::make_shared<queue>(context.io.executor(), capacity);
  auto source = std::make_unique<read_ahead_source>(ahead);
  scope& tasks = context.tasks;
  source->produced_by(tasks.spawn_stoppable(fetch(std::make_shared<fetcher>(
      std::move(context), std::move(client), std::move(where), offset, std::move(ahead)))));
  co_return std::unique_ptr<byte_source>(std::move(source));
}

}  // namespace

source_factory http_source_factory(std::shared_ptr<http_client> client) {
  return [client = std::move(client)](source_context context, std::string text, url where,
                                      std::uint64_t offset) {
    return open_http(client, std::move(context), std::move(text), std::move(where), offset);
  };
}

}  // namespace millrace
