#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <map>
#include <stop_token>
#include <thread>

#include "engine/log.h"
#include "engine/settings.h"
#include "io/shard_urls.h"
#include "pipeline/engine.h"
#include "pipeline/wids/shard_index.h"
#include "train/options.h"
#include "train/trainer.h"

namespace {

using namespace millrace;

// Waits for SIGINT and SIGTERM on a thread of its own and turns the first into a stop request; a
// second one ends the program at once.
class signal_watch {
 public:
  signal_watch() {
    sigemptyset(&watched_);
    sigaddset(&watched_, SIGINT);
    sigaddset(&watched_, SIGTERM);
    sigaddset(&watched_, SIGUSR1);  // our own: ends the watch
    // Blocked before any other thread is made, so that all of them inherit it.
    pthread_sigmask(SIG_BLOCK, &watched_, nullptr);
    thread_ = std::thread([this] { watch(); });
  }
  ~signal_watch() {
    pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
  }
  signal_watch(const signal_watch&) = delete;
  signal_watch& operator=(const signal_watch&) = delete;

  std::stop_token token() const { return stop_.get_token(); }
  int exit_code() const { return 128 + signal_.load(); }

 private:
  void watch() {
    for (;;) {
      int got = 0;
      sigwait(&watched_, &got);
      if (got == SIGUSR1) return;
      if (signal_.exchange(got) != 0) std::_Exit(128 + got);
      fmt::print(stderr, "\nmillrace: {}: ending after this step (again: at once)\n",
                 got == SIGINT ? "SIGINT" : "SIGTERM");
      stop_.request_stop();
    }
  }

  sigset_t watched_{};
  std::stop_source stop_;
  std::atomic<int> signal_ = 0;
  std::thread thread_;
};

int report(const error& why) {
  fmt::print(stderr, "millrace: {}\n", why.message());
  return exit_code(why.kind());
}

// What the index says of the training shards, which it names itself where the command line does
// not.
void read_lengths(train_options& options, const engine_options& how) {
  engine eng(how);
  shard_index said = read_index(eng, options.index, options.base);
  shard_index used;
  if (options.shards.empty()) {
    for (const auto& s : said.shards) options.shards.push_back(s.url);
    used = std::move(said);
  } else {
    const auto file_of = [](const std::string& url) { return url.substr(url.rfind('/') + 1); };
    std::map<std::string, const shard_index::shard*> by_file;
    for (const auto& s : said.shards) by_file[file_of(s.url)] = &s;
    for (const std::string& url : options.shards) {
      const auto it = by_file.find(file_of(url));
      if (it == by_file.end()) {
        throw failure(error(errc::usage, "the index does not list the shard " + redacted(url))
                          .at(options.index));
      }
      used.shards.push_back(*it->second);
    }
  }
  options.lengths = std::make_shared<const shard_index>(std::move(used));
}

int run(int argc, char** argv, char** environment) {
  const parsed_options parsed = parse_train_options(argc, argv);
  if (parsed.exit_code) return *parsed.exit_code;
  auto variables = settings::from_environment(environment);
  if (!variables) return report(variables.error());
  set_log_level(variables->text("MILLRACE_LOG"));
  const signal_watch signals;
  engine_options engine = engine_options::from(*variables);
  engine.source.allow_pipe |= parsed.options.allow_pipe;
  train_options options = parsed.options;
  for (auto* shards : {&options.shards, &options.val_shards}) {
    if (!shards->empty()) *shards = find_shards(*shards, options.base, engine.source).value();
  }
  if (!options.index.empty()) read_lengths(options, engine);
  return train(options, engine, signals.token(), [&] { return signals.exit_code(); });
}

}  // namespace

int main(int argc, char** argv, char** environment) {
  try {
    return run(argc, argv, environment);
  } catch (const failure& f) {
    return report(f.why());
  } catch (const std::exception& e) {
    return report(error(errc::internal, e.what()));
  }
}
