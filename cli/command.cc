#include "cli/command.h"

#include <fmt/format.h>

#include "io/shard_urls.h"
#include "pipeline/group.h"
#include "pipeline/on_error.h"
#include "pipeline/shards.h"

namespace millrace::cli {

void shard_arguments::add_to(CLI::App& app, bool required) {
  app.add_option("SHARD", specs,
                 "shards: paths, URLs, brace ranges, '::' lists, @FILE, '-' for stdin; folders and "
                 "prefixes of stores, which end with '/'; '*'")
      ->required(required);
  app.add_option("--base", base,
                 "what relative names stand behind, or within, in the place of %s or {}");
  app.add_flag("--allow-pipe", allow_pipe, "pipe: URLs may run commands (MILLRACE_ALLOW_PIPE=1)");
}

engine_options shard_arguments::engine(const environment& e) const {
  engine_options how = engine_options::from(e.variables);
  how.source.allow_pipe |= allow_pipe;
  return how;
}

std::vector<std::string> shard_arguments::urls(const environment& e) const {
  return find_shards(specs, base, engine(e).source).value();
}

void sample_walk::add_to(CLI::App& app) {
  shards.add_to(app);
  app.add_flag("--resync", resync,
               "go on behind damage, with the next header that is one, and say what was lost");
}

plan<sample> sample_walk::samples(const environment& e) const {
  const shard_list_options in_order{.lanes = 1, .shuffle = false};
  return millrace::shards(shards.urls(e), in_order) | untar({.resync = resync}) | group_by_key() |
         on_error(resync ? skip_errors() : fail_on_error());
}

int sample_walk::tell_of_damage(const ledger& counts) {
  const std::uint64_t all = counts.skipped_in_all();
  if (all == 0) return 0;
  for (const std::string& what : counts.first_skipped) fmt::print(stderr, "millrace: {}\n", what);
  if (all > counts.first_skipped.size()) {
    fmt::print(stderr, "millrace: and {} more\n", all - counts.first_skipped.size());
  }
  fmt::print(stderr, "millrace: {}\n", counts.summary());
  return exit_code(errc::integrity);
}

}  // namespace millrace::cli
