#include <unistd.h>

#include <cerrno>

#include "cli/command.h"
#include "io/shard_spec.h"
#include "pipeline/prefetch.h"
#include "pipeline/raw_bytes.h"

namespace millrace::cli {
namespace {

void write_all(std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t n = write(STDOUT_FILENO, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw failure(error(errc::io_failed, "cannot write to stdout").cause(errno));
    data = data.subspan(static_cast<std::size_t>(n));
  }
}

}  // namespace

action add_cat(CLI::App& app) {
  CLI::App* command = app.add_subcommand("cat", "bytes to stdout, through the engine");
  auto specs = std::make_shared<std::vector<std::string>>();
  command->add_option("URL", *specs, "paths, URLs, brace ranges, '::' lists, @FILE, '-'")
      ->required();
  return [specs](const environment& e) {
    engine eng(engine_options::from(e.variables));
    for (auto data = eng.run(raw_bytes(expand_shards(*specs).value())); auto piece = data.next();) {
      write_all(piece->span());
    }
    return 0;
  };
}

}  // namespace millrace::cli
