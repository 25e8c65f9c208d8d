#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/scope.h"
#include "io/http/transport.h"

namespace millrace {

// The order in which addresses are tried: the families in turn, beginning with the first address's
// (RFC 8305, 4). Pure.
std::vector<address> interleaved_families(const std::vector<address>& found);

// Makes connections by name. Answers of the resolver are kept for a minute; where it fails later,
// the last answer serves. Addresses are tried side by side, each a quarter of a second after the
// one before, or as soon as that one has failed; the first to connect wins (RFC 8305, "Happy
// Eyeballs"). One I/O thread.
class dialer {
 public:
  // `time` outlives the dialer.
  dialer(std::shared_ptr<network> over, time_source& time);

  // The attempts run in `tasks`. Fails with connect_failed, timed_out or no_descriptors.
  awaitable<result<std::unique_ptr<byte_stream>>> dial(scope& tasks, std::string host,
                                                       std::string port,
                                                       time_source::time_point deadline);
  awaitable<result<std::unique_ptr<byte_stream>>> dial_unix(std::string path,
                                                            time_source::time_point deadline);

 private:
  struct race;
  struct known_name {
    std::vector<address> addresses;
    time_source::time_point fresh_until;
  };
  awaitable<result<std::vector<address>>> addresses_of(std::string host, std::string port,
                                                       time_source::time_point deadline);
  static awaitable<void> attempt(std::shared_ptr<race> in, address where,
                                 time_source::time_point deadline);

  std::shared_ptr<network> network_;
  time_source& time_;
  std::map<std::string, known_name> names_;
};

}  // namespace millrace
