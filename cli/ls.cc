#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"

namespace millrace::cli {

action add_ls(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("ls", "per sample: key, byte offset, extensions with sizes");
  auto walk = std::make_shared<sample_walk>();
  walk->add_to(*command);
  const auto json = std::make_shared<bool>();
  command->add_flag("--json", *json, "print one JSON object on the last line");
  return [walk, json](const environment& e) {
    engine eng(walk->shards.engine(e));
    auto data = eng.run(walk->samples(e));
    auto list = nlohmann::json::array();
    for (const sample& s : data) {
      if (*json) {
        auto fields = nlohmann::json::object();
        for (const field& f : s.fields) fields[f.extension] = f.data.size();
        list.push_back(
            {{"key", s.key}, {"shard", *s.url}, {"offset", s.where.offset}, {"fields", fields}});
        continue;
      }
      std::string fields;
      for (const field& f : s.fields) {
        fields += fmt::format("{}{}:{}", fields.empty() ? "" : " ", f.extension, f.data.size());
      }
      fmt::print("{}\t{}\t{}\n", s.key, s.where.offset, fields);
    }
    if (*json) {
      const nlohmann::json all{{"samples", list.size()}, {"list", std::move(list)}};
      fmt::print("{}\n", all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
    return sample_walk::tell_of_damage(data.counts());
  };
}

}  // namespace millrace::cli
