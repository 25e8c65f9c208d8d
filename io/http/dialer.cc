#include "io/http/dialer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/scope.h"
#include "io/http/private_host.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

constexpr auto kept = 60s;
constexpr auto head_start = 250ms;
constexpr std::size_t most_names = 1024;

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

struct dialer::known_name {
  explicit known_name(const asio::any_io_executor& executor) : changed(executor) {}

  std::vector<address> addresses;
  time_source::time_point fresh_until{};
  bool asking = false;
  std::uint64_t answers = 0;       // so far
  std::optional<error> no_answer;  // instead of the last answer
  condition changed;
};

// The state that the attempts of one dial share.
struct dialer::race {
  explicit race(std::shared_ptr<network> n, const asio::any_io_executor& executor)
      : over(std::move(n)), changed(executor) {}
  std::shared_ptr<network> over;
  condition changed;
  dialed winner;
  std::optional<error> last;
  std::size_t failures = 0;
};

dialer::dialer(std::shared_ptr<network> over, time_source& time)
    : network_(std::move(over)), time_(time) {}

std::shared_ptr<dialer::known_name> dialer::name_of(const std::string& host,
                                                    const std::string& port,
                                                    const asio::any_io_executor& executor) {
  const std::string name = host + ":" + port;
  if (const auto found = names_.find(name); found != names_.end()) return found->second;
  if (names_.size() >= most_names) {
    std::erase_if(names_, [](const auto& one) { return one.second.use_count() == 1; });
  }
  return names_[name] = std::make_shared<known_name>(executor);
}

awaitable<result<std::vector<address>>> dialer::addresses_of(std::shared_ptr<known_name> known,
                                                             std::string host, std::string port,
                                                             time_source::time_point deadline) {
  const error late =
      error(errc::timed_out, fmt::format("no address for {} in time", host)).retryable();
  const std::uint64_t before = known->answers;
  for (;;) {
    const bool is_fresh = time_.now() < known->fresh_until;
    // A failure during the wait is a failure of this request, too.
    const bool answered = known->answers != before;
    if (is_fresh || (answered && !known->addresses.empty())) co_return known->addresses;
    if (answered) co_return *known->no_answer;
    if (!known->asking) break;
    if (time_.now() >= deadline) co_return late;
    co_await first_of(known->changed.wait(), time_.sleep_until(deadline));
  }
  struct mark {
    explicit mark(known_name& name) : of(name) { of.asking = true; }
    ~mark() {
      of.asking = false;
      of.changed.notify_all();
    }
    mark(const mark&) = delete;
    mark& operator=(const mark&) = delete;
    known_name& of;
  } const asking(*known);
  auto found = co_await until(time_, deadline, network_->resolve(host, port), late);
  if (found) {
    known->addresses = interleaved_families(*found);
    known->fresh_until = time_.now() + kept;
  } else if (time_.now() < deadline || known->addresses.empty()) {
    known->no_answer = found.error();
  }
  // This deadline is not that of the other waiting requests: one of them tries again.
  if (found || time_.now() < deadline) ++known->answers;
  if (!found && known->addresses.empty()) co_return found.error();
  co_return known->addresses;
}

awaitable<void> dialer::attempt(std::shared_ptr<race> in, address where,
                                time_source::time_point deadline) {
  const bool is_private = is_private_address(where.ip);
  auto made = co_await in->over->connect(std::move(where), deadline);
  if (made && !in->winner.stream) in->winner = {std::move(*made), is_private};
  if (!made) {
    in->last = made.error();
    ++in->failures;
  }
  in->changed.notify_all();
}

awaitable<result<dialer::dialed>> dialer::connect_to_first(scope& tasks,
                                                           std::vector<address> addresses,
                                                           time_source::time_point deadline) {
  if (addresses.size() == 1) {
    const bool is_private = is_private_address(addresses.front().ip);
    auto made = co_await network_->connect(addresses.front(), deadline);
    if (!made) co_return made.error();
    co_return dialed{std::move(*made), is_private};
  }
  const auto in = std::make_shared<race>(network_, co_await this_executor);
  std::vector<scope::task> attempts;  // the others are stopped when this is destroyed
  auto next = time_.now();
  while (!in->winner.stream && in->failures < addresses.size()) {
    const bool all_failed = in->failures == attempts.size();
    if (attempts.size() < addresses.size() && (all_failed || time_.now() >= next)) {
      attempts.push_back(tasks.spawn_stoppable(attempt(in, addresses[attempts.size()], deadline)));
      next = time_.now() + head_start;
      continue;
    }
    if (attempts.size() == addresses.size()) {
      co_await in->changed.wait();
    } else {
      co_await first_of(in->changed.wait(), time_.sleep_until(next));
    }
  }
  if (!in->winner.stream) co_return *in->last;
  co_return std::move(in->winner);
}

awaitable<result<dialer::dialed>> dialer::dial(scope& tasks, std::string host, std::string port,
                                               bool public_only, time_source::time_point deadline) {
  const auto known = name_of(host, port, co_await this_executor);
  auto found = co_await addresses_of(known, host, port, deadline);
  if (!found) co_return found.error();
  std::vector<address> addresses = std::move(*found);
  if (public_only) {
    std::erase_if(addresses, [](const address& a) { return is_private_address(a.ip); });
    if (addresses.empty()) {
      co_return error(errc::protocol,
                      fmt::format("a redirect to the private address of {} is not followed", host))
          .hint("http_options.private_redirects (MILLRACE_HTTP_PRIVATE_REDIRECTS=on) follows it");
    }
  }
  auto made = co_await connect_to_first(tasks, std::move(addresses), deadline);
  if (!made) known->fresh_until = {};  // the server may have moved
  co_return made;
}

awaitable<result<dialer::dialed>> dialer::dial_unix(std::string path,
                                                    time_source::time_point deadline) {
  auto made = co_await network_->connect({.ip = {}, .port = {}, .path = std::move(path)}, deadline);
  if (!made) co_return made.error();
  co_return dialed{std::move(*made), true};
}

}  // namespace millrace
