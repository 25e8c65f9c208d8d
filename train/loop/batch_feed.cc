#include "train/loop/batch_feed.h"

#include <chrono>
#include <utility>

#include "engine/coroutines/async.h"

namespace millrace {

batch_feed::batch_feed(loader<host_batch>& from, std::stop_token stop)
    : from_(from), stop_(std::move(stop)) {}

std::optional<host_batch> batch_feed::next() {
  if (stop_.stop_requested()) return std::nullopt;
  const auto start = steady_clock::now();
  std::optional<host_batch> b;
  try {
    b = from_.next();
  } catch (const failure& f) {
    if (f.kind() != errc::stopped || !stop_.stop_requested()) failed_ = f.why();
  }
  waited_ += seconds_since(start);
  return b;
}

double batch_feed::take_waited() {
  return std::exchange(waited_, 0);
}

}  // namespace millrace
