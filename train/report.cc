#include "train/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/error.h"

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

// A write that a kill broke off at a page's border leaves half a line: the next one must not join
// it.
void cut_off_half_line(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return;  // opening it for writing tells why, if there is more to it than a new file
  std::uintmax_t whole = 0;
  std::uintmax_t size = 0;
  for (std::string line; std::getline(in, line);) {
    size += line.size() + (in.eof() ? 0 : 1);
    if (!in.eof()) whole = size;
  }
  if (whole != size) std::filesystem::resize_file(file, whole);
}

}  // namespace

reporter::reporter(int rank, double log_every_s, const std::string& metrics_file, bool append)
    : rank_(rank), log_every_s_(log_every_s), terminal_(isatty(STDERR_FILENO) != 0) {
  if (metrics_file.empty()) return;
  const std::string file = rank == 0 ? metrics_file : fmt::format("{}.rank{}", metrics_file, rank);
  if (append) cut_off_half_line(file);
  metrics_.open(file, append ? std::ios::app : std::ios::trunc);
  if (!metrics_) {
    throw failure(error(errc::io_failed, "cannot write metrics").at(file).cause(errno));
  }
}

bool reporter::wants_loss() const {
  const double since = std::chrono::duration<double>(steady_clock::now() - last_log_).count();
  return metrics_.is_open() || terminal_ || since >= log_every_s_;
}

std::string reporter::line(const step_report& s) const {
  return fmt::format(
      "rank {} epoch {:5}/{:9} loss {:8.3f} acc {:8.3f} {:9}  {:.0f} images/s, {:.0f} % waiting "
      "for data",
      rank_, s.epoch, s.batch, mean(losses_), mean(accuracies_), s.samples,
      seconds_ > 0 ? static_cast<double>(images_) / seconds_ : 0.0,
      seconds_ > 0 ? 100 * waiting_ / seconds_ : 0.0);
}

void reporter::step(const step_report& s) {
  const bool looked = wants_loss();
  if (looked) {
    keep_last(losses_, s.loss);
    keep_last(accuracies_, s.accuracy);
  }
  seconds_ += s.seconds;
  waiting_ += s.waiting;
  images_ += s.batch_size;
  if (metrics_.is_open()) {
    metrics_ << nlohmann::json{{"step", s.step},      {"epoch", s.epoch},
                               {"batch", s.batch},    {"samples", s.samples},
                               {"loss", s.loss},      {"accuracy", s.accuracy},
                               {"lr", s.lr},          {"seconds", s.seconds},
                               {"waiting", s.waiting}}
                    .dump()
             << '\n'
             << std::flush;  // what was reported is there when it is killed
  }
  const auto now = steady_clock::now();
  if (std::chrono::duration<double>(now - last_log_).count() >= log_every_s_) {
    clear_progress();
    fmt::print(stderr, "{}\n", line(s));
    last_log_ = now;
    seconds_ = waiting_ = 0;
    images_ = 0;
  } else if (terminal_ && rank_ == 0) {
    fmt::print(stderr, "\r{}\033[K", line(s));
    progress_shown_ = true;
  }
}

void reporter::clear_progress() {
  if (progress_shown_) fmt::print(stderr, "\r\033[K");
  progress_shown_ = false;
}

void reporter::note(const std::string& json_line, const std::string& text) {
  clear_progress();
  if (!text.empty()) fmt::print(stderr, "{}\n", text);
  if (metrics_.is_open() && !json_line.empty()) metrics_ << json_line << '\n' << std::flush;
}

}  // namespace millrace
