#include "train/ranks/lifeline.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/parsed_number.h"
#include "engine/base/words.h"
#include "engine/host/start_thread.h"
#include "train/files.h"

namespace millrace {
namespace {

// A host that answers nothing for this long is gone.
constexpr int idle_s = 2;
constexpr int probe_s = 1;
constexpr int probes = 2;
constexpr int unanswered_ms = 4000;
constexpr int connecting_ms = 10'000;
// Longer than any line that ranks send.
constexpr std::size_t longest_line = 128;
// Connections that have not said their rank, beyond the number of ranks.
constexpr std::ptrdiff_t most_strangers = 64;
constexpr std::string_view bye = "bye\n";
constexpr std::string_view failed = "failed\n";

void watch_connection(int socket) {
  const auto set = [socket](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, idle_s);
  set(IPPROTO_TCP, TCP_KEEPINTVL, probe_s);
  set(IPPROTO_TCP, TCP_KEEPCNT, probes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, unanswered_ms);
}

// A line fits into the buffer of a connection on which hardly anything is sent.
void send_line(int socket, std::string_view line) {
  [[maybe_unused]] const auto sent =
      send(socket, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::optional<int> number_in(std::string_view text) {
  const auto value = parsed_number<int>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

// -1 and errno if it cannot be reached.
int connected(const addrinfo& to) {
  const int s = socket(to.ai_family, to.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s < 0) return -1;
  watch_connection(s);
  int why = connect(s, to.ai_addr, to.ai_addrlen) == 0 ? 0 : errno;
  if (why == EINPROGRESS) {
    pollfd output{.fd = s, .events = POLLOUT, .revents = 0};
    socklen_t size = sizeof why;
    if (poll(&output, 1, connecting_ms) == 0) {
      why = ETIMEDOUT;
    } else {
      getsockopt(s, SOL_SOCKET, SO_ERROR, &why, &size);
    }
  }
  if (why == 0) return s;
  close(s);
  errno = why;
  return -1;
}

int connected_to(const std::string& host, int port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) {
    errno = EHOSTUNREACH;
    return -1;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, &freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    if (const int s = connected(*one); s >= 0) return s;
  }
  return -1;
}

// Listens at a free port, for IPv6 and IPv4 where the host has both.
int listening(int& port) {
  for (const int family : {AF_INET6, AF_INET}) {
    const int s = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0) continue;
    const int off = 0;
    if (family == AF_INET6) setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    sockaddr_storage at{};
    at.ss_family = static_cast<sa_family_t>(family);
    socklen_t size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    if (bind(s, address, size) == 0 && listen(s, SOMAXCONN) == 0 &&
        getsockname(s, address, &size) == 0) {
      port = ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&at)->sin6_port
                                      : reinterpret_cast<sockaddr_in*>(&at)->sin_port);
      return s;
    }
    close(s);
  }
  return -1;
}

// The address of this end of a connection.
std::string address_of(int socket) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  std::array<char, NI_MAXHOST> text{};
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  if (getsockname(socket, address, &size) != 0 ||
      getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  const std::string_view whole(text.data());
  constexpr std::string_view mapped = "::ffff:";  // IPv4 on a socket of both
  return std::string(whole.starts_with(mapped) ? whole.substr(mapped.size()) : whole);
}

[[noreturn]] void cannot(const char* what, int why) {
  throw failure(error(errc::peer_lost, what)
                    .cause(why)
                    .hint("see that ranks can connect to each other at any port"));
}

int new_event() {
  const int event = eventfd(0, EFD_CLOEXEC);
  if (event < 0) cannot("no event for the lifeline of the ranks", errno);
  return event;
}

}  // namespace

bool is_of_itself(const std::string& address) {
  return address.empty() || address.starts_with("127.") || address == "::1";
}

void wait_while_refused(const std::string& host, int port, steady_clock::time_point until) {
  constexpr int longest_ms = 500;
  for (int ms = 10; steady_clock::now() < until; ms = std::min(2 * ms, longest_ms)) {
    const int s = connected_to(host, port);
    if (s >= 0) close(s);
    if (s >= 0 || errno != ECONNREFUSED) return;
    poll(nullptr, 0, ms);
  }
}

lifeline::lifeline(int others, end_process lost)
    : lost_(std::move(lost)), is_first_(true), others_(others) {
  listening_ = listening(at_.port);
  if (listening_ < 0) cannot("cannot listen for the lifelines of the other ranks", errno);
  at_.key = unique_name();
  wake_ = new_event();
  thread_ = start_thread("mr-lifeline", [this] { watch(); });
}

lifeline::lifeline(const job_place& own, const place& first, end_process lost)
    : lost_(std::move(lost)), is_first_(false), at_(first) {
  const int s = connected_to(own.master_address, first.port);
  if (s < 0) cannot("cannot connect to rank 0's lifeline", errno);
  send_line(s, fmt::format("{} {}\n", first.key, own.rank));
  peers_.push_back({.socket = s, .rank = 0, .said = {}});
  add_address(s);
  wake_ = new_event();
  thread_ = start_thread("mr-lifeline", [this] { watch(); });
}

lifeline::~lifeline() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_, &one, sizeof one);
  thread_.join();
  for (const peer& p : peers_) {
    send_line(p.socket, has_ended_ ? bye : failed);
    close(p.socket);
  }
  if (listening_ >= 0) close(listening_);
  close(wake_);
}

void lifeline::end() {
  has_ended_ = true;
}

void lifeline::hold(bool is_held) {
  is_held_ = is_held;
}

std::optional<int> lifeline::lost_within(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  known_.wait_for(lock, time, [this] { return gone_.has_value(); });
  return gone_;
}

std::string lifeline::address(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  const auto have_come = [&] { return std::ssize(addresses_) >= (is_first_ ? others_ : 1); };
  if (!known_.wait_for(lock, time, have_come)) return "";
  const auto found = std::ranges::find_if_not(addresses_, is_of_itself);
  return found == addresses_.end() ? addresses_.front() : *found;
}

void lifeline::add_address(int socket) {
  const std::string own = address_of(socket);
  const std::scoped_lock lock(mutex_);
  addresses_.push_back(own);
  known_.notify_all();
}

void lifeline::watch() {
  for (;;) {
    std::vector<pollfd> inputs{{.fd = wake_, .events = POLLIN, .revents = 0},
                               {.fd = listening_, .events = POLLIN, .revents = 0}};
    for (const peer& p : peers_) inputs.push_back({.fd = p.socket, .events = POLLIN, .revents = 0});
    const int come = poll(inputs.data(), inputs.size(), ms_until_end());
    if (come < 0) continue;  // EINTR
    if (inputs[0].revents != 0) return;
    if (come == 0) end_if_due();
    const std::size_t known = peers_.size();
    if (inputs[1].revents != 0) accept_one();
    std::vector<peer> left;
    std::vector<peer> gone;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      peer& p = peers_[i];
      if (i >= known || inputs[i + 2].revents == 0 || hear(p)) {
        left.push_back(std::move(p));
        continue;
      }
      close(p.socket);
      if (p.rank >= 0) gone.push_back(std::move(p));
    }
    peers_ = std::move(left);
    close_when_all_have_come();
    // One that was killed is more of a reason than one that failed.
    std::ranges::sort(gone, {}, &peer::has_failed);
    for (const peer& p : gone) tell_lost(p.rank, p.has_failed);
  }
}

// -1: nothing is due.
int lifeline::ms_until_end() const {
  if (!ends_at_) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*ends_at_ - steady_clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

void lifeline::end_if_due() {
  if (!ends_at_ || steady_clock::now() < *ends_at_) return;
  ends_at_.reset();
  if (is_held_) {
    ends_at_ = steady_clock::now() + std::chrono::seconds(1);
  } else if (lost_) {
    lost_(*lost_within({}));
  }
}

// Strangers cannot take what descriptors there are.
void lifeline::close_when_all_have_come() {
  const auto named = std::ranges::count_if(peers_, [](const peer& p) { return p.rank >= 0; });
  if (listening_ >= 0 && named >= others_) close(std::exchange(listening_, -1));
}

void lifeline::accept_one() {
  const int s = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (s < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
    close(std::exchange(listening_, -1));  // the ranks that come fail
  }
  if (s < 0) return;
  const auto unnamed = std::ranges::count_if(peers_, [](const peer& p) { return p.rank < 0; });
  if (unnamed >= others_ + most_strangers) {
    close(s);
    return;
  }
  watch_connection(s);
  peers_.push_back({.socket = s, .rank = -1, .said = {}});
}

// Reads what a peer says. False if it is gone, or no rank; a peer that has said that it ends is not
// watched any longer.
bool lifeline::hear(peer& from) {
  std::array<char, longest_line> bytes{};
  const ssize_t got = recv(from.socket, bytes.data(), bytes.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) return false;
  from.said.append(bytes.data(), static_cast<std::size_t>(got));
  for (std::size_t end = from.said.find('\n'); end != from.said.npos; end = from.said.find('\n')) {
    const std::string line = from.said.substr(0, end + 1);
    from.said.erase(0, end + 1);
    if (line == bye) {
      from.rank = -1;
      return false;
    }
    if (line == failed) {
      from.has_failed = true;
      return false;
    }
    // "KEY RANK\n"; from rank 0 "KEY RANK failed\n" as well.
    const auto words = split(line.substr(0, end), ' ');
    const auto number = words.size() < 2 ? std::nullopt : number_in(words[1]);
    if (!number || words[0] != at_.key) return false;
    if (is_first_) {
      from.rank = *number;
      add_address(from.socket);
    } else {
      tell_lost(*number, words.size() > 2);  // as rank 0 says
    }
  }
  return from.said.size() < longest_line;
}

// On rank 0, tells the others first.
void lifeline::tell_lost(int rank, bool has_failed) {
  if (is_first_) {
    for (const peer& p : peers_) {
      send_line(p.socket, fmt::format("{} {}{}\n", at_.key, rank, has_failed ? " failed" : ""));
    }
  }
  {
    const std::scoped_lock lock(mutex_);
    if (!gone_) gone_ = rank;
  }
  known_.notify_all();
  const auto due = steady_clock::now() + (has_failed ? patience_with_failed : patience);
  ends_at_ = std::min(ends_at_.value_or(due), due);
}

}  // namespace millrace
