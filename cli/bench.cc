#include <map>

#include "cli/command.h"

namespace millrace::cli {

action add_bench(CLI::App& app) {
  CLI::App* bench =
      app.add_subcommand("bench", "measures disks, servers, decoding, and the whole loader");
  bench->require_subcommand(1);
  const std::map<std::string, action> kinds{{"decode", add_bench_decode(*bench)},
                                            {"disk", add_bench_disk(*bench)},
                                            {"http", add_bench_http(*bench)},
                                            {"load", add_bench_load(*bench)}};
  return [bench, kinds](const environment& e) {
    return kinds.at(bench->get_subcommands().front()->get_name())(e);
  };
}

}  // namespace millrace::cli
