#include "cli/command.h"
#include "cli/commands.h"

namespace millrace::cli {

action add_bench(CLI::App& app) {
  CLI::App* bench =
      app.add_subcommand("bench", "measures disks, servers, decoding, and the whole loader");
  bench->require_subcommand(1);
  return [bench, kinds = add_commands(*bench, known_benches)](const environment& e) {
    return kinds.at(bench->get_subcommands().front()->get_name())(e);
  };
}

}  // namespace millrace::cli
