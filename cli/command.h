#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/settings.h"
#include "pipeline/engine.h"
#include "pipeline/ledger.h"

namespace millrace::cli {

// What every command works with.
struct environment {
  settings variables;
};

// Adds a command to `app`: its flags, and what to run when it is chosen. The action returns the
// exit code; a `failure` that it throws is printed and turned into one.
using action = std::function<int(const environment&)>;
using add_command = action (*)(CLI::App& app);

action add_bench(CLI::App& app);
action add_bench_decode(CLI::App& bench);
action add_bench_disk(CLI::App& bench);
action add_bench_http(CLI::App& bench);
action add_bench_load(CLI::App& bench);
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
action add_summary(CLI::App& app);
action add_tune(CLI::App& app);
action add_verify(CLI::App& app);

// Shards as a command's positional arguments, --base and --allow-pipe.
struct shard_arguments {
  std::vector<std::string> specs;
  std::string base;
  bool allow_pipe = false;

  void add_to(CLI::App& app, bool required = true);
  // How to read them: as the variables say and, where it is given, --allow-pipe.
  engine_options engine(const environment& e) const;
  // Their URLs; throws `failure`.
  std::vector<std::string> urls(const environment& e) const;
};

// What `ls` and `digest` walk over: the samples of shards, in the list's own order, key by key as
// they stand in the archives.
struct sample_walk {
  shard_arguments shards;
  bool resync = false;

  void add_to(CLI::App& app);
  plan<sample> samples(const environment& e) const;
  // What was passed over, to stderr; the exit code.
  static int tell_of_damage(const ledger& counts);
};

}  // namespace millrace::cli
