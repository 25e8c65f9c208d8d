#include "train/train_main.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/error_object.h"
#include "engine/base/settings.h"
#include "engine/host/job_place.h"
#include "engine/host/log.h"
#include "engine/host/program.h"
#include "engine/host/standard_error.h"
#include "train/command_line/flag_names.h"
#include "train/command_line/parse_options.h"
#include "train/job/trainer.h"
#include "train/launch/error_file.h"
#include "train/launch/local_ranks.h"
#include "train/launch/rank_process.h"
#include "train/loop/signals.h"
#include "train/ranks/distributed.h"
#include "train/ranks/torch_error.h"

namespace millrace {
namespace {

// As it is reported: in the program's words, without the secrets of the command line, `words`.
error as_reported(const error& failed, std::span<char* const> words) {
  return in_train_words(with_range_hint(without_secrets(failed, words), words));
}

// The report for programs: torchrun's file, and with --json an object on stdout, by the job's first
// rank. Any thread.
void report_to_programs(const error& why, bool as_json) {
  write_error_file(why);
  if (!as_json) return;
  const std::string line = error_object(why) + "\n";
  // Where stdout is what failed, the line on stderr has said so.
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

// One line on stderr, and the report for programs. Returns the exit code.
int report(const error& failed, std::span<char* const> words, bool as_json) {
  const error why = as_reported(failed, words);
  to_stderr("millrace: {}\n", why.message());
  report_to_programs(why, as_json);
  return exit_code(why.kind());
}

// Known before the command line is understood, and where it cannot be.
bool wants_json(int argc, char** argv) {
  if (is_other_rank(variables_of_process())) return false;
  return std::any_of(argv + 1, argv + std::max(1, argc),
                     [](const char* word) { return std::string_view(word) == "--json"; });
}

// Starts the ranks of this host.
int launch(const train_options& o, const std::vector<std::string>& words) {
  const auto variables = variables_of_process();
  if (variables.contains("TORCHELASTIC_RUN_ID")) {
    throw failure(error(errc::usage,
                        "--nproc cannot be combined with torchrun, which starts ranks "
                        "itself")
                      .hint("leave one of them out"));
  }
  const job_place host = job_place::from(variables, o.local_ranks);
  if (host.local_rank > 0 && host.is_numbered_on_host) {
    throw failure(error(errc::usage, fmt::format("--nproc: this is process {} of its host, by {}",
                                                 host.local_rank, host.launcher))
                      .hint("start one process on each host, or leave out --nproc"));
  }
  if (host.world_size > 1 && (host.master_address.empty() || host.master_port == 0)) {
    throw failure(error(errc::usage, "nothing says at which host and port rank 0 is")
                      .hint("set MASTER_ADDR and MASTER_PORT, the same on all hosts"));
  }
  if (!o.recipe.empty() && !std::filesystem::is_regular_file(o.recipe)) {
    throw failure(error(errc::usage, "--recipe is not a file that each rank of --nproc can read")
                      .at(o.recipe)
                      .hint("write it to a file"));
  }
  if (host.world_size > 1) log_notice("host " + text_of(host).substr(std::strlen("rank ")));
  return run_local_ranks(
      {.ranks = o.local_ranks,
       .restarts = o.restarts,
       .to_begin_again =
           o.resume.empty() ? std::vector<std::string>{"--overwrite"} : std::vector<std::string>(),
       .to_resume = {"--overwrite=false", "--resume", "auto"}},
      words, host);
}

int run(int argc, char** argv, char** environment, std::vector<known_model> own) {
  const parsed_options parsed = parse_train_options(argc, argv, std::move(own));
  if (parsed.exit_code) return *parsed.exit_code;  // --help, --version
  auto variables = read_settings(environment);
  if (!variables) throw failure(variables.error());
  set_log_sink([](std::string_view line) {
    to_stderr("millrace: {}\n", in_train_words(std::string(line)));
  });
  const auto* level = variables->find("MILLRACE_LOG");
  if (level != nullptr) set_log_level(level->text);
  if (!is_started_rank() && parsed.options.local_ranks > 0) {
    return launch(parsed.options, {argv, argv + argc});
  }
  signal_watch signals;
  engine_options engine = engine_options::from(*variables);
  engine.in_words = in_train_words<std::string>;
  engine.source.allow_pipe |= parsed.options.allow_pipe;
  train_control control = signals.control();
  control.writing_begins = tell_writing_begins;
  control.checkpoint_is_saved = tell_checkpoint_is_saved;
  control.training_ends = tell_training_is_done;
  const std::span<char* const> words(argv, static_cast<std::size_t>(argc));
  const bool as_json = parsed.options.json && !is_other_rank(variables_of_process());
  control.process_ends = [words, as_json](const error& why) {
    report_to_programs(as_reported(why, words), as_json);
  };
  try {
    return train(parsed.options, engine, control);
  } catch (const c10::Error& e) {
    throw failure(error_of_torch(e));
  }
}

}  // namespace

int train_main(int argc, char** argv, char** environment, std::vector<known_model> own) {
  open_standard_streams();
  try {
    const int code = run(argc, argv, environment, std::move(own));
    flush_stdout();
    return code;
  } catch (...) {
    return exit_code_of_caught([&](const error& why) {
      std::fflush(stdout);
      const std::span words(argv, static_cast<std::size_t>(argc));
      return report(why, words, wants_json(argc, argv));
    });
  }
}

}  // namespace millrace
