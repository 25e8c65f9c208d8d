#include "io/http/name_lookup.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <mutex>
#include <optional>

#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/posted_call.h"
#include "engine/host/start_thread.h"

namespace millrace {

// Written by the thread, then read by the I/O thread: the thread posts when it is done. The last of
// the two to end frees it.
struct name_lookups::answer {
  std::mutex mutex;
  std::optional<wake_up> told;  // guarded by `mutex`; empty once no request waits
  std::vector<std::string> addresses;
  int failed = 0;  // the result of getaddrinfo()
  int os_errno = 0;
};

// Used only on the I/O thread.
struct name_lookups::look_up {
  look_up(std::shared_ptr<answer> a, std::shared_ptr<condition> c)
      : heard(std::move(a)), ended(std::move(c)) {}
  ~look_up() {
    const std::scoped_lock lock(heard->mutex);
    heard->told.reset();
  }
  look_up(const look_up&) = delete;
  look_up& operator=(const look_up&) = delete;

  std::shared_ptr<answer> heard;
  std::shared_ptr<condition> ended;
  bool done = false;
};

namespace {

std::string text_of(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    return text;
  }
  if (address.sa_family != AF_INET6) return {};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  return v6.sin6_scope_id == 0 ? text : fmt::format("{}%{}", text, v6.sin6_scope_id);
}

// Blocks. Returns 0 and addresses, or the error of getaddrinfo().
int ask_resolver(const std::string& host, std::vector<std::string>& into) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (failed != 0) return failed;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (auto text = text_of(*at->ai_addr); !text.empty()) into.push_back(std::move(text));
  }
  freeaddrinfo(found);
  return into.empty() ? EAI_NONAME : 0;
}

error no_address(const std::string& host, int failed, int os_errno) {
  if (failed == EAI_SYSTEM && os_errno == EMFILE) {
    return error(kind_of(os_errno), "no file descriptor is left for a name look-up")
        .cause(os_errno);
  }
  if (failed == EAI_MEMORY) return out_of_memory();
  const char* const why = failed == EAI_SYSTEM ? std::strerror(os_errno) : gai_strerror(failed);
  error e(errc::connect_failed, fmt::format("cannot find the address of {} ({})", host, why));
  if (failed == EAI_NONAME || failed == EAI_NODATA) return e.hint("check the host's name");
  return e.retryable();
}

}  // namespace

name_lookups::~name_lookups() = default;

result<std::shared_ptr<name_lookups::look_up>> name_lookups::start(
    const std::string& host, const asio::any_io_executor& home) {
  auto heard = std::make_shared<answer>();
  auto made = std::make_shared<look_up>(heard, one_ended_);
  heard->told.emplace(home, [asked_by = std::weak_ptr(made)] {
    const auto asker = asked_by.lock();
    if (!asker) return;
    asker->done = true;
    asker->ended->notify_all();
  });
  try {
    auto look_up_there = [heard = std::move(heard), host] {
      std::vector<std::string> addresses;
      int failed = EAI_MEMORY;
      try {
        failed = ask_resolver(host, addresses);
      } catch (const std::bad_alloc&) {
        addresses.clear();
      }
      const int os_errno = errno;
      const std::scoped_lock lock(heard->mutex);
      heard->addresses = std::move(addresses);
      heard->failed = failed;
      heard->os_errno = os_errno;
      if (heard->told) heard->told->ask();
    };
    start_thread("mr-names", std::move(look_up_there)).detach();
  } catch (const failure& f) {
    return error(f.why()).retryable();
  }
  return made;
}

awaitable<result<std::vector<std::string>>> name_lookups::addresses_of(std::string host) {
  boost::system::error_code not_an_address;
  asio::ip::make_address(host, not_an_address);
  if (!not_an_address) co_return std::vector<std::string>{host};
  const auto home = co_await this_executor;
  if (!one_ended_) one_ended_ = std::make_shared<condition>(home);
  std::shared_ptr<look_up> mine;
  while (!mine) {
    std::erase_if(running_, [](const auto& one) { return one.second->done; });
    if (const auto other = running_.find(host); other != running_.end()) {
      mine = other->second;
    } else if (running_.size() < most) {
      auto started = start(host, home);
      if (!started) co_return started.error();
      running_.emplace(host, *started);
      mine = std::move(*started);
    } else {
      co_await one_ended_->wait();
    }
  }
  while (!mine->done) co_await one_ended_->wait();
  const answer& heard = *mine->heard;
  if (heard.failed != 0) co_return no_address(host, heard.failed, heard.os_errno);
  co_return heard.addresses;
}

}  // namespace millrace
