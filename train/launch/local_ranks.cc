#include "train/launch/local_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/words.h"
#include "engine/host/clock.h"
#include "engine/host/host.h"
#include "engine/host/log.h"
#include "train/files.h"
#include "train/launch/rank_process.h"
#include "train/loop/control.h"

namespace millrace {
namespace {

using std::chrono::seconds;

// After one rank has failed: for the others to notice, then to end when they are asked to.
constexpr seconds to_notice{5};
constexpr seconds to_end{120};    // one may be writing a large checkpoint
constexpr seconds to_wonder{10};  // a part of it, after which a line says what is waited for
// For what is left in a pipe that a rank's own children hold open.
constexpr seconds to_drain{1};
// For a reader of stderr that does not read, after the end of ranks that have succeeded or may be
// started again.
constexpr seconds to_read{20};
// Signals within this time are one request: some senders signal a process and then its group.
constexpr std::chrono::milliseconds one_request{500};

int code_of(int status) {
  return WIFSIGNALED(status) ? exit_code_of_signal(WTERMSIG(status)) : WEXITSTATUS(status);
}

std::string text_of(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
  const char* const name = sigabbrev_np(WTERMSIG(status));
  return fmt::format("was killed by SIG{}",
                     name != nullptr ? name : std::to_string(WTERMSIG(status)));
}

// Whether ranks that ended so may do better when they are started again. Reading may succeed later
// if it did before: else it is more likely a wrong name.
bool may_succeed_again(int status, bool has_begun, bool is_done) {
  if (WIFSIGNALED(status) || code_of(status) == exit_code(errc::peer_lost)) return true;
  return code_of(status) == exit_code(errc::timed_out) && has_begun && !is_done;
}

// Whether nobody listens at this port of the host.
bool is_free(int port) {
  const int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (s < 0) return false;
  const int on = 1;
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool is_bound = bind(s, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
  close(s);
  return is_bound;
}

// Below those that the kernel gives to clients, so that none takes it before rank 0 listens.
int free_port() {
  constexpr int first = 15000;
  constexpr int ports = 10000;
  std::random_device random;
  for (int tries = 0; tries < ports; ++tries) {
    const int port = first + static_cast<int>(random() % ports);
    if (is_free(port)) return port;
  }
  throw failure(error(errc::io_failed, "no port is free for rank 0").hint("set MASTER_PORT"));
}

bool asks_to_end(int signal) {
  return signal != SIGCHLD && signal != SIGUSR1 && signal != SIGTSTP;
}

// The signals of this process, and those of the ends of its children, as input to poll for.
class signal_input {
 public:
  signal_input() {
    std::signal(SIGPIPE, SIG_IGN);
    sigset_t watched;
    sigemptyset(&watched);
    for (const int one : {SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP}) {
      sigaddset(&watched, one);
    }
    // Under nohup it stays ignored.
    struct sigaction hangup{};
    sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) sigaddset(&watched, SIGHUP);
    sigprocmask(SIG_BLOCK, &watched, nullptr);
    input_ = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    if (input_ < 0) throw failure(error(kind_of(errno), "signalfd failed").cause(errno));
  }
  ~signal_input() { close(input_); }
  signal_input(const signal_input&) = delete;
  signal_input& operator=(const signal_input&) = delete;

  int descriptor() const { return input_; }
  // The next that has come; nullopt: none.
  std::optional<int> next() const {
    signalfd_siginfo got{};
    if (read(input_, &got, sizeof got) != static_cast<ssize_t>(sizeof got)) return std::nullopt;
    return static_cast<int>(got.ssi_signo);
  }
  // The signal that asks to end within this time; 0: none does.
  int within(seconds time) const {
    const auto until = steady_clock::now() + time;
    for (;;) {
      while (const auto signal = next()) {
        if (asks_to_end(*signal)) return *signal;
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now());
      if (left.count() <= 0) return 0;
      pollfd input{.fd = input_, .events = POLLIN, .revents = 0};
      poll(&input, 1, static_cast<int>(left.count()));
    }
  }

 private:
  int input_ = -1;
};

// Says what happens to the ranks, without waiting for a reader of stderr: what it does not take
// is counted, and told when it takes something again.
class notices {
 public:
  void count_dropped(std::uint64_t lines) { dropped_ += lines; }
  void say(const std::string& line) {
    if (!stderr_takes_line()) {
      ++dropped_;
      return;
    }
    if (dropped_ > 0) {
      log_notice(fmt::format("{} dropped, because nobody read stderr for {} s",
                             counted(std::exchange(dropped_, 0), "line"), to_read.count()));
    }
    log_notice(line);
  }

 private:
  std::uint64_t dropped_ = 0;
};

// One attempt of all ranks of this host.
class attempt {
 public:
  attempt(const launch_options& options, const std::vector<std::string>& words,
          const job_place& host, int restarts, const signal_input& signals, notices& told)
      : signals_(signals), told_(told), may_be_last_(restarts == options.restarts) {
    const int port = host.world_size == 1 ? free_port() : host.master_port;
    const std::string job = unique_name();
    const int threads = std::max(1, allowed_cpus() / options.ranks);
    for (int local = 0; local < options.ranks; ++local) {
      const int rank = host.rank * options.ranks + local;
      std::vector<std::pair<std::string, std::string>> variables{
          {"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(host.world_size * options.ranks)},
          {"LOCAL_RANK", std::to_string(local)},
          {"LOCAL_WORLD_SIZE", std::to_string(options.ranks)},
          {"MASTER_ADDR", host.master_address},
          {"MASTER_PORT", std::to_string(port)},
          {"TORCHELASTIC_RESTART_COUNT", std::to_string(restarts)},
          {"LOCAL_STARTER_JOB", host.world_size == 1 ? job : host.job}};
      if (options.ranks > 1 && variables_of_process().count("OMP_NUM_THREADS") == 0) {
        variables.emplace_back("OMP_NUM_THREADS", std::to_string(threads));
      }
      ranks_.push_back(std::make_unique<rank_process>(rank, words, variables));
    }
  }

  // The status of the rank that failed first, with its number; nullopt: all have succeeded.
  std::optional<std::pair<int, int>> wait() {
    while (!is_over()) {
      poll_once();
      take_signals();
      look_at_ends();
      end_the_rest();
    }
    return cause_;
  }
  // The signal that asked the ranks to end; 0: none.
  int asked() const { return asked_; }
  bool has_begun() const {
    return std::ranges::any_of(ranks_, [](const auto& r) { return r->has_begun(); });
  }
  bool is_done() const {
    return std::ranges::any_of(ranks_, [](const auto& r) { return r->is_done(); });
  }
  bool has_saved() const {
    return std::ranges::any_of(ranks_, [](const auto& r) { return r->has_saved(); });
  }
  // Drops the lines that stderr has not taken, and returns how many.
  std::uint64_t drop_lines() {
    std::uint64_t dropped = 0;
    for (const auto& r : ranks_) dropped += r->drop_lines();
    return dropped;
  }
  // Whether all ranks ended in the same way.
  bool all_ended_alike() const {
    return std::ranges::all_of(
        ranks_, [&](const auto& r) { return r->status() == ranks_.front()->status(); });
  }

 private:
  bool all_have_ended() const {
    return std::ranges::all_of(ranks_, [](const auto& r) { return r->status().has_value(); });
  }
  bool is_over() {
    if (!all_have_ended()) return false;
    const auto now = steady_clock::now();
    if (!ended_at_) ended_at_ = now;
    const bool is_drained =
        std::ranges::all_of(ranks_, [](const auto& r) { return r->lines() < 0 && !r->has_line(); });
    if (waits_for_stderr()) return !says_why() && now - *ended_at_ >= to_read;
    return is_drained || now - *ended_at_ >= to_drain;
  }
  bool waits_for_stderr() const {
    return asked_ == 0 && std::ranges::any_of(ranks_, [](const auto& r) { return r->has_line(); });
  }
  // Whether the last lines say why the job failed: a reader of stderr has time until the end is
  // asked for. Otherwise it would hold up a restart, or what comes after a success.
  bool says_why() const { return may_be_last_ && cause_; }

  // The time until something has to be done unasked; -1: nothing.
  int patience_ms() const {
    const auto left = [](steady_clock::time_point since, seconds limit) {
      const auto rest =
          std::chrono::ceil<std::chrono::milliseconds>(since + limit - steady_clock::now());
      return static_cast<int>(std::max<std::int64_t>(rest.count(), 0));
    };
    if (ended_at_ && waits_for_stderr()) return says_why() ? -1 : left(*ended_at_, to_read);
    if (ended_at_) return left(*ended_at_, to_drain);
    // One that is killed may take its time: a device holds it up.
    constexpr int looks_again_ms = 1000;
    if (terminated_at_) {
      return std::max(left(*terminated_at_, is_told_ ? to_end : to_wonder), looks_again_ms);
    }
    if (failed_at_) return left(*failed_at_, to_notice);
    return -1;
  }

  void poll_once() {
    std::vector<pollfd> inputs{{.fd = signals_.descriptor(), .events = POLLIN, .revents = 0}};
    for (const auto& r : ranks_) {
      // Lines that stderr does not take yet stay where they are.
      inputs.push_back(r->has_line() ? pollfd{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0}
                                     : pollfd{.fd = r->lines(), .events = POLLIN, .revents = 0});
    }
    if (poll(inputs.data(), inputs.size(), patience_ms()) <= 0) return;
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      if (inputs[i].revents != 0) ranks_[i - 1]->pass_lines();
    }
  }

  void take_signals() {
    while (const auto signal = signals_.next()) {
      if (*signal == SIGTSTP) {
        stop_for_a_while();
      } else if (*signal == SIGUSR1) {
        save_once();
      } else if (asks_to_end(*signal)) {
        ask_to_end(*signal);
      }
    }
  }

  // Ctrl-Z: the ranks are in other process groups.
  void stop_for_a_while() {
    for (const auto& r : ranks_) r->signal(SIGSTOP);
    raise(SIGSTOP);
    for (const auto& r : ranks_) r->signal(SIGCONT);
  }

  // It is enough that one rank is asked; two might be asked in different steps.
  void save_once() {
    const auto one =
        std::ranges::find_if(ranks_, [](const auto& r) { return !r->status().has_value(); });
    if (one != ranks_.end()) (*one)->signal(SIGUSR1);
  }

  void ask_to_end(int signal) {
    for (const auto& r : ranks_) r->signal(signal);
    const auto now = steady_clock::now();
    if (asked_ == 0) {
      asked_ = signal;
      asked_at_ = now;
    } else if ((signal == SIGINT || signal == SIGTERM) && now - asked_at_ > one_request) {
      asked_at_ = now;
      // A second request ends ranks at once unless they hang, a third one ends any.
      if (++asked_again_ < 2) return;
      for (const auto& r : ranks_) r->signal(SIGKILL);
    }
  }

  // The only look at the ranks, so that all that a round decides is of one moment. It comes after
  // SIGCHLD was taken: one that ends later sends another.
  void look_at_ends() {
    for (const auto& r : ranks_) {
      r->look();
      const auto status = r->status();
      if (!status) continue;
      // When they are asked to end, the others follow the first one.
      if (!failed_at_ && (*status != 0 || asked_ != 0)) failed_at_ = steady_clock::now();
      if (*status == 0) continue;
      // A rank that lost another one is not what has to be said, if that other one is of this host.
      const bool is_consequence = code_of(*status) == exit_code(errc::peer_lost);
      const bool is_explained = cause_ && code_of(cause_->second) != exit_code(errc::peer_lost);
      // Nor is one that was ended because of that.
      if (!cause_ || (!is_consequence && !is_explained && !terminated_at_)) {
        cause_ = {r->rank(), *status};
      }
    }
  }

  // Of ranks that do not notice by themselves that one has failed.
  void end_the_rest() {
    const auto now = steady_clock::now();
    if (terminated_at_ && now - *terminated_at_ >= to_end) {
      for (const auto& r : ranks_) r->signal(SIGKILL);
    } else if (terminated_at_ && !is_told_ && now - *terminated_at_ >= to_wonder) {
      is_told_ = true;
      say_who_is_left();
    } else if (!terminated_at_ && failed_at_ && now - *failed_at_ >= to_notice) {
      // Those that were asked already may be writing a checkpoint.
      if (asked_ == 0) {
        for (const auto& r : ranks_) r->signal(SIGTERM);
      }
      terminated_at_ = now;
    }
  }

  void say_who_is_left() {
    std::vector<std::string> left;
    for (const auto& r : ranks_) {
      if (!r->status()) left.push_back(std::to_string(r->rank()));
    }
    if (left.empty()) return;
    told_.say(fmt::format(
        "{} {} still {}, asked to end {} s ago; one may be writing a checkpoint, and what "
        "still runs in {} s is killed",
        left.size() == 1 ? "rank" : "ranks", fmt::join(left, ", "),
        left.size() == 1 ? "runs" : "run", to_wonder.count(), (to_end - to_wonder).count()));
  }

  const signal_input& signals_;
  notices& told_;
  bool may_be_last_;  // no attempt follows
  std::vector<std::unique_ptr<rank_process>> ranks_;
  std::optional<std::pair<int, int>> cause_;
  std::optional<steady_clock::time_point> failed_at_;
  std::optional<steady_clock::time_point> terminated_at_;
  bool is_told_ = false;  // who has not ended
  std::optional<steady_clock::time_point> ended_at_;
  int asked_ = 0;
  int asked_again_ = 0;
  steady_clock::time_point asked_at_;
};

// The time to wait before ranks are started again after so many failures in a row: not at all after
// the first, then 1 s, 2 s, and so on up to a minute.
seconds back_off(int failures) {
  constexpr int most = 60;
  return seconds(failures < 2 ? 0 : std::min(1 << std::min(failures - 2, 10), most));
}

}  // namespace

int run_local_ranks(const launch_options& options, const std::vector<std::string>& words,
                    const job_place& host) {
  const signal_input signals;
  notices told;
  std::vector<std::string> given = words;
  int failures = 0;  // in a row, to read or to begin
  bool has_saved = false;
  bool has_begun = false;
  for (int restarts = 0;; ++restarts) {
    attempt ranks(options, given, host, restarts, signals, told);
    const auto failed = ranks.wait();
    told.count_dropped(ranks.drop_lines());
    if (!failed) return 0;
    const auto [rank, status] = *failed;
    const int code = code_of(status);
    const bool was_ended = WIFSIGNALED(status) || code == exit_code(errc::peer_lost);
    if (ranks.asked() != 0) return was_ended ? exit_code_of_signal(ranks.asked()) : code;
    const bool are_all = options.ranks > 1 && ranks.all_ended_alike();
    const std::string what =
        fmt::format("{} {}", are_all ? "each rank" : fmt::format("rank {}", rank), text_of(status));
    if (!may_succeed_again(status, ranks.has_begun(), ranks.is_done()) ||
        restarts == options.restarts) {
      told.say(restarts == 0
                   ? what
                   : fmt::format("{}, after {}", what,
                                 counted(static_cast<std::uint64_t>(restarts), "restart")));
      return code;
    }
    const bool could_not_read = code == exit_code(errc::timed_out);
    failures = could_not_read || !ranks.has_begun() ? failures + 1 : 0;
    const seconds delay = back_off(failures);
    has_saved = has_saved || ranks.has_saved();
    has_begun = has_begun || ranks.has_begun();
    given = words;
    const std::vector<std::string> none;
    const auto& more = has_saved ? options.to_resume : has_begun ? options.to_begin_again : none;
    given.insert(given.end(), more.begin(), more.end());
    told.say(fmt::format("{}: restart {} of {}, {}{}", what, restarts + 1, options.restarts,
                         has_saved ? "from the newest checkpoint" : "with nothing saved yet",
                         delay.count() > 0 ? fmt::format(", in {} s", delay.count()) : ""));
    if (const int asked = signals.within(delay); asked != 0) return exit_code_of_signal(asked);
  }
}

}  // namespace millrace
