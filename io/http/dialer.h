#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/coroutines/async.h"
#include "engine/coroutines/scope.h"
#include "io/http/transport.h"

namespace millrace {

// The order in which addresses are tried: the families alternate, starting with the first address's
// family (RFC 8305, 4). Pure.
std::vector<address> interleaved_families(const std::vector<address>& found);

// Makes connections by name. Answers of the resolver are kept for a minute, or until none of the
// addresses can be reached; if a later look-up fails, the last answer is used. Concurrent requests
// for a name share one look-up. Addresses are tried in parallel: each starts a quarter of a second
// after the previous one, or as soon as that has failed. The first to connect wins (RFC 8305,
// "Happy Eyeballs"). One I/O thread.
class dialer {
 public:
  // `time` outlives the dialer.
  dialer(std::shared_ptr<network> over, time_source& time);

  struct dialed {
    std::unique_ptr<byte_stream> stream;
    bool is_private = false;  // is_private_address() of the peer
  };
  // The attempts run in `tasks`. `public_only`: skips private addresses. Fails with connect_failed,
  // timed_out, no_descriptors, or protocol if all addresses are private and were skipped.
  awaitable<result<dialed>> dial(scope& tasks, std::string host, std::string port, bool public_only,
                                 time_source::time_point deadline);
  awaitable<result<dialed>> dial_unix(std::string path, time_source::time_point deadline);

 private:
  struct race;
  struct known_name;
  // Keep a copy of the pointer: another coroutine may erase the name while this one waits.
  std::shared_ptr<known_name> name_of(const std::string& host, const std::string& port,
                                      const asio::any_io_executor& executor);
  awaitable<result<std::vector<address>>> addresses_of(std::shared_ptr<known_name> known,
                                                       std::string host, std::string port,
                                                       time_source::time_point deadline);
  awaitable<result<dialed>> connect_to_first(scope& tasks, std::vector<address> addresses,
                                             time_source::time_point deadline);
  static awaitable<void> attempt(std::shared_ptr<race> in, address where,
                                 time_source::time_point deadline);

  std::shared_ptr<network> network_;
  time_source& time_;
  std::map<std::string, std::shared_ptr<known_name>> names_;
};

}  // namespace millrace
