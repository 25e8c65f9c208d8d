#include "train/loop/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/host/standard_error.h"

namespace millrace {
namespace {

constexpr std::size_t averaged = 100;

double mean(const std::deque<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void keep_last(std::deque<double>& values, double next) {
  values.push_back(next);
  if (values.size() > averaged) values.pop_front();
}

}  // namespace

std::string clock_time(double seconds) {
  constexpr std::int64_t minute = 60;
  const auto all = static_cast<std::int64_t>(std::llround(seconds));
  const std::int64_t minutes = all / minute;
  if (minutes < minute) return fmt::format("{}:{:02}", minutes, all % minute);
  return fmt::format("{}:{:02}:{:02}", minutes / minute, minutes % minute, all % minute);
}

reporter::reporter(int rank, int world_size, double log_every_s)
    : rank_(rank),
      world_size_(world_size),
      log_every_s_(log_every_s),
      terminal_(rank == 0 && isatty(STDERR_FILENO) != 0) {}

std::string reporter::metrics_of(const std::string& file, int rank) {
  return rank == 0 ? file : fmt::format("{}.rank{}", file, rank);
}

bool reporter::wants_loss() const {
  const double since = seconds_since(last_log_);
  return metrics_.is_open() || terminal_ || (rank_ == 0 && since >= log_every_s_);
}

std::string reporter::line(const step_report& s) const {
  const double rate = seconds_ > 0 ? static_cast<double>(images_) / seconds_ : 0;
  const std::string of = s.epoch_batches > 0 ? fmt::format("/{}", s.epoch_batches) : "";
  const std::string each = world_size_ > 1 ? fmt::format(" ({:.0f} a rank)", rate) : "";
  const double left = steps_ > 0 ? seconds_ / static_cast<double>(steps_) *
                                       static_cast<double>(std::max<std::int64_t>(s.steps_left, 0))
                                 : 0;
  return fmt::format(
      "rank {} epoch {} {:5}{} loss {:.3f} (mean {:.3f}) acc {:.3f} lr {:.3g} {} samples, {:.0f} "
      "images/s{}, {:.0f} % waiting for data{}",
      rank_, s.epoch, s.batch, of, loss_sum_ / static_cast<double>(losses_read_), mean(losses_),
      mean(accuracies_), s.lr, s.samples, rate * world_size_, each,
      seconds_ > 0 ? 100 * waiting_ / seconds_ : 0.0,
      s.steps_left < 0 ? "" : fmt::format(", {} left", clock_time(left)));
}

void reporter::step(const step_report& s) {
  if (s.loss) {
    keep_last(losses_, *s.loss);
    keep_last(accuracies_, s.accuracy);
    loss_sum_ += *s.loss;
    ++losses_read_;
  }
  seconds_ += s.seconds;
  waiting_ += s.waiting;
  images_ += s.batch_size;
  ++steps_;
  if (!s.loss) return;  // the next step whose loss is read writes metrics and line
  if (metrics_.is_open()) {
    nlohmann::json line{{"step", s.step},       {"epoch", s.epoch},     {"batch", s.batch},
                        {"samples", s.samples}, {"loss", *s.loss},      {"accuracy", s.accuracy},
                        {"lr", s.lr},           {"seconds", s.seconds}, {"waiting", s.waiting}};
    if (!s.keys.empty()) line["keys"] = s.keys;
    metrics_.add(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  if (rank_ != 0) return;
  const auto now = steady_clock::now();
  if (std::chrono::duration<double>(now - last_log_).count() >= log_every_s_) {
    clear_progress();
    to_stderr("{}\n", line(s));
    last_log_ = now;
    seconds_ = waiting_ = loss_sum_ = 0;
    images_ = steps_ = losses_read_ = 0;
  } else if (terminal_) {
    to_stderr("\r{}\033[K", line(s));
    progress_shown_ = true;
  }
}

void reporter::clear_progress() {
  if (progress_shown_) to_stderr("\r\033[K");
  progress_shown_ = false;
}

void reporter::note(const std::string& json_line, const std::string& text) {
  clear_progress();
  if (!text.empty()) to_stderr("{}\n", text);
  if (!json_line.empty()) metrics_.add(json_line);
}

void reporter::skipped(const ledger& counts, const std::string& of) {
  for (const auto& one : counts.first_skipped) {
    note("", fmt::format("rank {} skipped{}: {}", rank_, of, one));
  }
  const auto listed = counts.first_skipped.size();
  if (counts.skipped_in_all() <= listed) return;
  note("", fmt::format("rank {} skipped{}: {} more; the file of --skipped lists all", rank_, of,
                       counts.skipped_in_all() - listed));
}

}  // namespace millrace
