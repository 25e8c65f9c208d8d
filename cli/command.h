#pragma once

#include <CLI/CLI.hpp>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cli/progress.h"
#include "engine/settings.h"
#include "io/shard_urls.h"
#include "pipeline/engine.h"
#include "pipeline/ledger.h"

namespace millrace::cli {

// The environment of every command.
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

// Gives each item of `data` to `each`, to the end, until `each` returns false, where it returns
// anything, or until `stop`; false where it was stopped.
template <class T, class Function>
bool take_until_stopped(loader<T>& data, std::stop_token stop, Function each) {
  const std::stop_callback stopping(std::move(stop), [&data] { data.stop(); });
  try {
    for (T& item : data) {
      if constexpr (std::is_void_v<std::invoke_result_t<Function&, T&>>) {
        each(item);
      } else if (!each(item)) {
        break;
      }
    }
  } catch (const failure& f) {
    if (f.kind() != errc::stopped) throw;
    return false;
  }
  return true;
}

// For CLI::Option::check: a number from `least` to `most`, both included.
CLI::Validator whole_in_range(std::int64_t least, std::int64_t most);
CLI::Validator in_range(double least, double most);
template <std::integral A, std::integral B>
CLI::Validator in_range(A least, B most) {
  return whole_in_range(static_cast<std::int64_t>(least), static_cast<std::int64_t>(most));
}
CLI::Validator above_zero();
// 0 to 2^64 - 1: not -1, which would be taken for the last of them.
CLI::Validator seed_number();

// --json, the same for every command.
void add_json(CLI::App& app, bool& json);
bool is_utf8(const std::string& text);
// The object of --json on a line of its own. Bytes that are not UTF-8 are replaced, and in the
// names of members written as \xff.
void print_json(const nlohmann::json& object, std::FILE* to = stdout);

// The same object where one of its members is a list that grows with the input: its items are
// written as they come, before the other members, and none is kept. Where it is given up after an
// item (by what was thrown), the line is closed as an object, and the error's own line follows.
class json_list {
 public:
  explicit json_list(std::string name) : name_(std::move(name)) {}
  ~json_list();
  json_list(const json_list&) = delete;
  json_list& operator=(const json_list&) = delete;

  void add(const nlohmann::json& item);
  // Call once, last. `rest`: an object, not an empty one, with the other members.
  void end(const nlohmann::json& rest);

 private:
  void begin();

  std::string name_;
  bool begun_ = false;
  bool has_items_ = false;
  bool ended_ = false;
};

// Prints the report of a benchmark, by `print` or as the object of --json. One that was interrupted
// before it had figures prints that alone. The exit code.
int end_of_bench(bool has_figures, bool interrupted, bool json,
                 const std::function<nlohmann::json()>& to_json,
                 const std::function<void()>& print);

// The inputs that `specs` name: existing files and folders as they are, everything else as URLs of
// shards. Throws `failure`.
std::vector<std::string> paths_and_urls(const std::vector<std::string>& specs,
                                        const std::string& base, const source_options& options);
// The same for local files alone, as paths. Throws `failure` (usage) with `refused` and `hint` for
// what is no local file.
std::vector<std::string> paths_alone(const std::vector<std::string>& specs,
                                     const source_options& options, const char* refused,
                                     const char* hint);

// Shards as a command's positional arguments, --base and --allow-pipe.
struct shard_arguments {
  std::vector<std::string> specs;
  std::string base;
  bool allow_pipe = false;

  void add_to(CLI::App& app, bool required = true);
  // The options for reading them: the variables and, where it is given, --allow-pipe.
  engine_options engine(const environment& e) const;
  // Their URLs; throws `failure`. `facts` as find_shards() has it.
  std::vector<std::string> urls(const environment& e, listing_facts* facts = nullptr) const;
};

// One of `urls` that names the same shard as another one does, of local files by their paths ("a"
// and "./a"); none where all are apart. Without I/O.
std::optional<std::string> repeated_shard(const std::vector<std::string>& urls);

// What `ls` and `digest` walk over: the samples of shards, in the list's own order, key by key as
// they stand in the archives.
struct sample_walk {
  shard_arguments shards;
  bool resync = false;

  void add_to(CLI::App& app);
  plan<sample> samples(const std::vector<std::string>& urls) const;
  // How much there is to read, for progress.
  static amount_of_work work_of(const std::vector<std::string>& urls);
  // Reports skipped data on stderr, and returns the exit code.
  static int tell_of_damage(const ledger& counts);
};

}  // namespace millrace::cli
