#include "tools/inspect/digest.h"

#include <fmt/format.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "engine/base/words.h"

namespace millrace::cli {
namespace {

int digest(const environment& e, const sample_walk& walk, bool json) {
  const auto urls = walk.shards.urls(e);
  const std::stop_token stop = stop_requested();  // before this, a signal ends it at once
  engine eng(walk.shards.engine(e));
  auto data = eng.run(walk.samples(urls));
  std::atomic<std::uint64_t> shard = 0;
  progress shown("digest", sample_walk::work_of(urls),
                 [&] { return work_done{data.stats().sources.bytes, shard}; });
  sample_digest digest;
  std::uint64_t samples = 0;
  std::uint64_t payload = 0;
  const bool whole = take_until_stopped(data, stop, [&](const sample& s) {
    digest.add(s);
    ++samples;
    payload += s.payload_bytes();
    shard = static_cast<std::uint64_t>(s.where.shard);
  });
  shown.end();
  const std::string hash = digest.finish();
  if (json) {
    print_json(
        {{"samples", samples}, {"bytes", payload}, {"sha256", hash}, {"interrupted", !whole}});
  } else {
    fmt::print("{}{}\n{}\n", whole ? "" : "stopped after ", counted(samples, "sample"), hash);
  }
  const int code = sample_walk::report_damage(data.counts());
  return whole ? code : exit_code_of_interrupt();
}

}  // namespace

action add_digest(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("digest", "prints the number of samples and a SHA-256 over them");
  auto walk = std::make_shared<sample_walk>();
  walk->add_to(*command);
  const auto json = std::make_shared<bool>();
  add_json(*command, *json);
  command->footer("Example:\n  millrace digest train-{000000..000146}.tar");
  return [walk, json](const environment& e) { return digest(e, *walk, *json); };
}

}  // namespace millrace::cli
