#include "pipeline/digest.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"

namespace millrace::cli {

action add_digest(CLI::App& app) {
  CLI::App* command = app.add_subcommand("digest", "number of samples and a sha256 over them");
  auto walk = std::make_shared<sample_walk>();
  walk->add_to(*command);
  const auto json = std::make_shared<bool>();
  command->add_flag("--json", *json, "print one JSON object on the last line");
  return [walk, json](const environment& e) {
    engine eng(walk->shards.engine(e));
    auto data = eng.run(walk->samples(e));
    sample_digest digest;
    std::uint64_t samples = 0;
    std::uint64_t payload = 0;
    for (const sample& s : data) {
      digest.add(s);
      ++samples;
      payload += s.payload_bytes();
    }
    const std::string hash = digest.finish();
    if (*json) {
      const nlohmann::json all{{"samples", samples}, {"bytes", payload}, {"sha256", hash}};
      fmt::print("{}\n", all.dump());
    } else {
      fmt::print("{} samples\n{}\n", samples, hash);
    }
    return sample_walk::tell_of_damage(data.counts());
  };
}

}  // namespace millrace::cli
