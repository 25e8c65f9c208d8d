#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "engine/base/random.h"
#include "engine/coroutines/time_source.h"

namespace millrace {

struct http_options;

// The hint of an error after the last attempt.
inline constexpr const char* no_more_attempts_hint =
    "check the server and the network; http_options.attempts (MILLRACE_HTTP_ATTEMPTS) sets the "
    "number of attempts";

// Decides whether a transfer makes another request after one that failed, and when. May be called
// at the end of each request, for as long as the transfer takes. No I/O.
class retry_policy {
 public:
  // `time` outlives it. Of the options, it keeps the number of attempts and the first pause.
  retry_policy(const http_options& options, time_source& time, std::uint64_t jitter_seed);

  struct again {
    std::chrono::milliseconds pause{0};  // before it
    bool is_retry = false;               // the last one gained little: takes from the retry_budget
  };
  struct no_more {
    std::string why;  // "attempt 6 of 6"
  };
  using decision = std::variant<again, no_more>;

  // The request under way brought bytes of the object.
  void gained(std::uint64_t bytes);
  // The request failed. `restarts`: all that was gained must be fetched again. `retry_after`: the
  // value of that field of the answer.
  decision on_failure(bool restarts, const std::optional<std::string>& retry_after = std::nullopt);
  // The request ended well, and another one is needed for the rest.
  decision on_end();

 private:
  bool gains_too_little() const;
  std::chrono::milliseconds pause();

  int most_attempts_;
  std::chrono::milliseconds first_pause_;
  time_source& time_;
  random_stream jitter_;
  std::uint64_t gained_ = 0;  // bytes since the last decision
  int attempts_ = 0;          // in a row without a byte
  int crumbs_ = 0;            // in a row that gained little
  int restarts_ = 0;
};

}  // namespace millrace
