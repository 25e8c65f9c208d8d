#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <map>
#include <span>
#include <string>

#include "cli/command.h"

namespace millrace::cli {

action add_bench(CLI::App& app);
action add_cache(CLI::App& app);
action add_cat(CLI::App& app);
action add_digest(CLI::App& app);
action add_doctor(CLI::App& app);
action add_env(CLI::App& app);
action add_fake(CLI::App& app);
action add_index(CLI::App& app);
action add_ls(CLI::App& app);
action add_pack(CLI::App& app);
action add_sim(CLI::App& app);
action add_state(CLI::App& app);
action add_summary(CLI::App& app);
action add_tune(CLI::App& app);
action add_verify(CLI::App& app);

action add_bench_decode(CLI::App& bench);
action add_bench_disk(CLI::App& bench);
action add_bench_http(CLI::App& bench);
action add_bench_load(CLI::App& bench);

struct known_command {
  const char* name;
  const char* group;  // its heading in the help; nullptr: that of all subcommands
  add_command add;
};

// Adds the commands to `app`. The actions by the commands' names.
std::map<std::string, action> add_commands(CLI::App& app, std::span<const known_command> commands);

// A new command is a row here, a declaration above, and a file that defines it. The help prints
// groups in the order of their first rows.
inline constexpr std::array known_commands = {
    known_command{"cat", "Look at shards", add_cat},
    known_command{"digest", "Look at shards", add_digest},
    known_command{"ls", "Look at shards", add_ls},
    known_command{"summary", "Look at shards", add_summary},
    known_command{"verify", "Look at shards", add_verify},
    known_command{"fake", "Make shards and indices", add_fake},
    known_command{"index", "Make shards and indices", add_index},
    known_command{"pack", "Make shards and indices", add_pack},
    known_command{"state", "Resume runs", add_state},
    known_command{"bench", "Measure and plan", add_bench},
    known_command{"sim", "Measure and plan", add_sim},
    known_command{"tune", "Measure and plan", add_tune},
    known_command{"cache", "This host", add_cache},
    known_command{"doctor", "This host", add_doctor},
    known_command{"env", "This host", add_env},
};

// The commands of `millrace bench`.
inline constexpr std::array known_benches = {
    known_command{"decode", nullptr, add_bench_decode},
    known_command{"disk", nullptr, add_bench_disk},
    known_command{"http", nullptr, add_bench_http},
    known_command{"load", nullptr, add_bench_load},
};

}  // namespace millrace::cli
