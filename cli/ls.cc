#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"

namespace millrace::cli {

action add_ls(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("ls", "per sample: key, byte offset, extensions with sizes");
  auto arguments = std::make_shared<shard_arguments>();
  arguments->add_to(*command);
  const auto json = std::make_shared<bool>();
  command->add_flag("--json", *json, "print one JSON object on the last line");
  return [arguments, json](const environment& e) {
    engine eng(arguments->engine(e));
    auto data = eng.run(samples_in_order(arguments->urls(e)));
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
    return 0;
  };
}

}  // namespace millrace::cli
