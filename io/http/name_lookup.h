#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"

namespace millrace {

// Looks up addresses by the C library's resolver (its files, its DNS), which has no deadline and
// cannot be stopped. Each look-up therefore runs on its own thread, which is abandoned when no
// request waits for it any more, and ends when the resolver returns. Concurrent requests for a name
// share a look-up. One I/O thread.
class name_lookups {
 public:
  name_lookups() = default;
  ~name_lookups();
  name_lookups(const name_lookups&) = delete;
  name_lookups& operator=(const name_lookups&) = delete;

  // IP addresses as text, never empty. Ends at once when it is cancelled. Fails with
  // connect_failed, which is retryable unless the name is known not to exist, with no_descriptors,
  // or with no_memory, also if the host refuses a thread.
  awaitable<result<std::vector<std::string>>> addresses_of(std::string host);

  // The most look-ups under way at once, including abandoned ones; further ones wait.
  static constexpr std::size_t most = 16;

 private:
  struct answer;
  struct look_up;
  result<std::shared_ptr<look_up>> start(const std::string& host,
                                         const asio::any_io_executor& home);

  std::shared_ptr<condition> one_ended_;
  std::map<std::string, std::shared_ptr<look_up>> running_;
};

}  // namespace millrace
