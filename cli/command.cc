#include "cli/command.h"

#include "io/shard_urls.h"
#include "pipeline/group.h"
#include "pipeline/lanes.h"
#include "pipeline/shards.h"

namespace millrace::cli {

void shard_arguments::add_to(CLI::App& app, bool required) {
  app.add_option("SHARD", specs,
                 "shards: paths, URLs, brace ranges, '::' lists, @FILE, '-' for stdin; of stores "
                 "also prefixes that end with '/' and '*'")
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

plan<sample> samples_in_order(std::vector<std::string> urls) {
  const shard_list_options in_order{.lanes = 1, .shuffle = false};
  return interleaved(shards(std::move(urls), in_order) | untar() | group_by_key());
}

}  // namespace millrace::cli
