#include "cli/commands.h"

namespace millrace::cli {

std::map<std::string, action> add_commands(CLI::App& app, std::span<const known_command> commands) {
  std::map<std::string, action> actions;
  for (const known_command& c : commands) {
    actions[c.name] = c.add(app);
    if (c.group != nullptr) app.get_subcommand(c.name)->group(c.group);
  }
  return actions;
}

}  // namespace millrace::cli
