#include "tools/bench/measure.h"

#include <algorithm>

#include "engine/host/cpu_time.h"

namespace millrace {
namespace {

steady_clock::duration duration(double seconds) {
  return std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

stopwatch_pair::stopwatch_pair() : begin_(steady_clock::now()), cpu_begin_(process_cpu_seconds()) {}

double stopwatch_pair::seconds() const {
  return seconds_since(begin_);
}
double stopwatch_pair::cpu_seconds() const {
  return process_cpu_seconds() - cpu_begin_;
}

std::vector<double> rates_over_time(const std::function<std::uint64_t()>& given,
                                    const std::vector<std::future<void>>& running, double seconds,
                                    double interval_s, const std::stop_token& stop) {
  std::vector<double> rates;
  std::uint64_t before = 0;
  const auto begin = steady_clock::now();
  auto last = begin;
  bool all_ended = false;
  for (int i = 1; !all_ended && !stop.stop_requested() && last - begin < duration(seconds); ++i) {
    const auto next = begin + duration(std::min(i * interval_s, seconds));
    all_ended = std::ranges::all_of(
        running, [&](const auto& r) { return r.wait_until(next) == std::future_status::ready; });
    const auto now = steady_clock::now();
    const double took = std::chrono::duration<double>(now - last).count();
    const std::uint64_t sum = given();
    if (took > interval_s / 10) rates.push_back(static_cast<double>(sum - before) / 1e6 / took);
    before = sum;
    last = now;
  }
  return rates;
}

}  // namespace millrace
