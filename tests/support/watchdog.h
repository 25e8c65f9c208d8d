#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <utility>

namespace millrace::testing {

// If the work has not ended after `patience`, it hangs: the program prints its name, and aborts.
class watchdog {
 public:
  explicit watchdog(std::string what, std::chrono::seconds patience = std::chrono::seconds(90))
      : thread_([what = std::move(what), patience, ended = done_.get_future()] {
          if (ended.wait_for(patience) == std::future_status::ready) return;
          std::fprintf(stderr, "hangs: %s\n", what.c_str());
          std::abort();
        }) {}
  ~watchdog() {
    done_.set_value();
    thread_.join();
  }
  watchdog(const watchdog&) = delete;
  watchdog& operator=(const watchdog&) = delete;

 private:
  std::promise<void> done_;
  std::thread thread_;
};

// Returns or throws the result of `f`, under a watchdog.
template <class F>
auto bounded(const std::string& what, F f,
             std::chrono::seconds patience = std::chrono::seconds(90)) {
  const watchdog watched(what, patience);
  return f();
}

}  // namespace millrace::testing
