#pragma once

#include <fmt/format.h>

#include "engine/base/units.h"
#include "engine/coroutines/async.h"
#include "engine/host/log.h"
#include "engine/threads/runtime.h"
#include "io/http/object_source.h"
#include "tests/support/simulated_network.h"

namespace millrace::testing {

// The bytes that a reader got, and why it got no more.
struct outcome {
  std::string content;
  std::optional<error> failed;
  bool ended = false;  // false: it was stopped
};

// The range that a request asks for, for an object of `size` bytes.
std::optional<byte_range> range_of(const std::string& request, std::uint64_t size);

// The value of a request's field; empty if it does not have it.
std::string field_of(const std::string& request, const std::string& name);

// An answer with everything that was requested, from a server that sends a version, in pieces of 64
// KiB, each `gap` after the previous one.
std::vector<sent> answer(const std::string& request, const std::string& content,
                         std::chrono::microseconds gap = {}, const std::string& more = {},
                         const std::string& version = "ETag: \"v1\"\r\n");

// The real client and transfers, on one thread, over a simulated network in simulated time.
class simulated_client {
 public:
  simulated_client() {
    set_log_level(log_level::quiet);
    net->add("h", {"10.0.0.1"});
  }
  ~simulated_client() { set_log_level(log_level::notice); }
  simulated_client(const simulated_client&) = delete;
  simulated_client& operator=(const simulated_client&) = delete;

  std::shared_ptr<http_stack> make_stack() {
    return std::make_shared<http_stack>(options, net, time);
  }
  // Reads with a stack of its own; throws if that takes more than `limit`.
  outcome read(const std::string& target, byte_range range = {},
               steady_clock::duration limit = std::chrono::hours(24));

  // Reads to the end, to an error, or until `running` is stopped; `into` and this outlive it.
  awaitable<void> read_all(std::shared_ptr<http_stack> stack, url target, byte_range range,
                           outcome* into);

  asio::io_context context;
  simulated_time time{context};
  std::shared_ptr<simulated_network> net = std::make_shared<simulated_network>(time);
  runtime threads{{.cpu_threads = 1}};
  http_options options{.split = 1};
  source_options source{.chunk_bytes = 64_KiB};
  source_counters counters;
  std::shared_ptr<opened_version> version;  // for tests that open an object several times
  std::size_t memory_bytes = 8_MiB;
  bool keeps_one =
      false;  // the reader keeps a piece until it has the next, as readers of archives do
  std::size_t left_in_memory = 0;  // not given back by readers: a fault
  scope* running = nullptr;        // of the last started reader, while it runs

 private:
  awaitable<void> read_pieces(std::shared_ptr<http_stack> stack, scope* tasks,
                              std::shared_ptr<memory_share> memory, url target, byte_range range,
                              outcome* into);
};

}  // namespace millrace::testing
