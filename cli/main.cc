#include <fmt/format.h>

#include <cstdio>
#include <map>

#include "cli/command.h"
#include "engine/log.h"

namespace {

using namespace millrace;

// One line, whatever the message: the kind, what is wrong, and where to look.
int usage_error(const CLI::ParseError& wrong) {
  std::string what = wrong.what();
  for (char& c : what) c = c == '\n' ? ' ' : c;
  fmt::print(stderr, "millrace: usage: {}; see `millrace --help` and `millrace COMMAND --help`\n",
             what);
  return exit_code(errc::usage);
}

int report(const error& why) {
  fmt::print(stderr, "millrace: {}\n", why.message());
  return exit_code(why.kind());
}

int run(int argc, char** argv, char** environment) {
  CLI::App app("Streams WebDataset shards from disks and servers, and looks after them.",
               "millrace");
  app.require_subcommand(1);
  app.set_version_flag("--version", "millrace " MILLRACE_VERSION);
  std::map<std::string, cli::action> actions{
      {"bench", cli::add_bench(app)},   {"cache", cli::add_cache(app)},
      {"cat", cli::add_cat(app)},       {"digest", cli::add_digest(app)},
      {"doctor", cli::add_doctor(app)}, {"env", cli::add_env(app)},
      {"fake", cli::add_fake(app)},     {"index", cli::add_index(app)},
      {"ls", cli::add_ls(app)},         {"pack", cli::add_pack(app)},
      {"sim", cli::add_sim(app)},       {"summary", cli::add_summary(app)},
      {"tune", cli::add_tune(app)},     {"verify", cli::add_verify(app)}};
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    return app.exit(asked);  // --help, --version
  } catch (const CLI::ParseError& wrong) {
    return usage_error(wrong);
  }
  auto variables = settings::from_environment(environment);
  if (!variables) return report(variables.error());
  set_log_level(variables->text("MILLRACE_LOG"));
  const cli::environment e{std::move(*variables)};
  const int code = actions.at(app.get_subcommands().front()->get_name())(e);
  if (std::fflush(stdout) != 0) {
    return report(error(errc::io_failed, "cannot write to stdout").cause(errno));
  }
  return code;
}

}  // namespace

int main(int argc, char** argv, char** environment) {
  try {
    return run(argc, argv, environment);
  } catch (const failure& f) {
    std::fflush(stdout);
    return report(f.why());
  } catch (const std::exception& e) {
    return report(error(errc::internal, e.what()));
  }
}
