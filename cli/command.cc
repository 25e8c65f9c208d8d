#include "cli/command.h"

#include "io/shard_spec.h"
#include "pipeline/group.h"
#include "pipeline/lanes.h"
#include "pipeline/shards.h"

namespace millrace::cli {

void shard_arguments::add_to(CLI::App& app) {
  app.add_option("SHARD", specs,
                 "shards: paths, URLs, brace ranges, '::' lists, @FILE, '-' for stdin")
      ->required();
  app.add_flag("--json", json, "print one JSON object on the last line");
}

plan<sample> samples_in_order(const std::vector<std::string>& specs) {
  auto urls = expand_shards(specs).value();
  const shard_list_options in_order{.lanes = 1, .shuffle = false};
  return interleaved(shards(std::move(urls), in_order) | untar() | group_by_key());
}

}  // namespace millrace::cli
