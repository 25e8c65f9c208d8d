#include "io/http/dialer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace millrace {
namespace {

using namespace std::chrono_literals;

constexpr auto kept = 60s;
constexpr auto head_start = 250ms;

}  // namespace

std::vector<address> interleaved_families(const std::vector<address>& found) {
  if (found.empty()) return {};
  std::vector<address> first;
  std::vector<address> second;
  for (const address& a : found) {
    (a.is_v6() == found.front().is_v6() ? first : second).push_back(a);
  }
  std::vector<address> out;
  for (std::size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (i < first.size()) out.push_back(first[i]);
    if (i < second.size()) out.push_back(second[i]);
  }
  return out;
}

// What the attempts of one dial share.
struct dialer::race {
  explicit race(std::shared_ptr<network> n, const asio::any_io_executor& executor)
      : over(std::move(n)), changed(executor) {}
  std::shared_ptr<network> over;
  condition changed;
  std::unique_ptr<byte_stream> winner;
  std::optional<error> last;
  std::size_t failures = 0;
};

dialer::dialer(std::shared_ptr<network> over, time_source& time)
    : network_(std::move(over)), time_(time) {}

awaitable<result<std::vector<address>>> dialer::addresses_of(std::string host, std::string port,
                                                             time_source::time_point deadline) {
  const std::string name = host + ":" + port;
  known_name& known = names_[name];
  if (!known.addresses.empty() && time_.now() < known.fresh_until) co_return known.addresses;
  auto found = co_await until(
      time_, deadline, network_->resolve(host, port),
      error(errc::timed_out, fmt::format("no address of {} in time", host)).retryable());
  if (found) {
    known = {interleaved_families(*found), time_.now() + kept};
  } else if (known.addresses.empty()) {
    co_return found.error();
  }
  co_return known.addresses;
}

awaitable<void> dialer::attempt(std::shared_ptr<race> in, address where,
                                time_source::time_point deadline) {
  auto made = co_await in->over->connect(std::move(where), deadline);
  if (made && !in->winner) in->winner = std::move(*made);
  if (!made) {
    in->last = made.error();
    ++in->failures;
  }
  in->changed.notify_all();
}

awaitable<result<std::unique_ptr<byte_stream>>> dialer::dial(scope& tasks, std::string host,
                                                             std::string port,
                                                             time_source::time_point deadline) {
  auto found = co_await addresses_of(host, port, deadline);
  if (!found) co_return found.error();
  const std::vector<address> addresses = std::move(*found);
  if (addresses.size() == 1) co_return co_await network_->connect(addresses.front(), deadline);
  const auto in = std::make_shared<race>(network_, co_await asio::this_coro::executor);
  std::vector<scope::task> attempts;  // the losers end with this
  auto next = time_.now();
  while (!in->winner && in->failures < addresses.size()) {
    const bool all_failed = in->failures == attempts.size();
    if (attempts.size() < addresses.size() && (all_failed || time_.now() >= next)) {
      attempts.push_back(tasks.spawn_stoppable(attempt(in, addresses[attempts.size()], deadline)));
      next = time_.now() + head_start;
      continue;
    }
    if (attempts.size() == addresses.size()) {
      co_await in->changed.wait();
    } else {
      using namespace asio::experimental::awaitable_operators;
      co_await (in->changed.wait() || time_.sleep_until(next));
    }
  }
  if (!in->winner) {
    names_.erase(host + ":" + port);  // perhaps it has moved
    co_return *in->last;
  }
  co_return std::move(in->winner);
}

awaitable<result<std::unique_ptr<byte_stream>>> dialer::dial_unix(
    std::string path, time_source::time_point deadline) {
  co_return co_await network_->connect({.ip = {}, .port = {}, .path = std::move(path)}, deadline);
}

}  // namespace millrace
