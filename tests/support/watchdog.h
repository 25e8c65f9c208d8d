#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>

namespace millrace::testing {

// What `f` returns or throws. Where it has not ended after `patience` it hangs: the program says
// what it was about, and aborts.
template <class F>
auto bounded(const std::string& what, F f,
             std::chrono::seconds patience = std::chrono::seconds(90)) {
  std::promise<void> done;
  std::thread watchdog([&, ended = done.get_future()] {
    if (ended.wait_for(patience) == std::future_status::ready) return;
    std::fprintf(stderr, "hangs: %s\n", what.c_str());
    std::abort();
  });
  const struct at_end {
    std::promise<void>& done;
    std::thread& watchdog;
    ~at_end() {
      done.set_value();
      watchdog.join();
    }
  } ends{done, watchdog};
  return f();
}

}  // namespace millrace::testing
