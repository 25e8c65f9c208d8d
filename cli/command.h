#pragma once

#include <CLI/CLI.hpp>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/progress.h"
#include "engine/base/settings.h"
#include "io/shard_urls.h"
#include "pipeline/plan/ledger.h"
#include "pipeline/run/engine.h"
#include "tools/jobs/take_until_stopped.h"

namespace millrace::cli {

// The environment of every command.
struct environment {
  settings variables;
};

// `why` with the commands' flags and variables in the place of the library's options: for each
// error that is printed.
error in_program_words(const error& why);

// Adds a command to `app`: its flags, and what to run when it is chosen. The action returns the
// exit code; if it throws a `failure`, that is printed and turned into an exit code.
using action = std::function<int(const environment&)>;
using add_command = action (*)(CLI::App& app);

// For CLI::Option::check: a number from `least` to `most`, inclusive.
CLI::Validator whole_in_range(std::int64_t least, std::int64_t most);
CLI::Validator in_range(double least, double most);
template <std::integral A, std::integral B>
CLI::Validator in_range(A least, B most) {
  return whole_in_range(static_cast<std::int64_t>(least), static_cast<std::int64_t>(most));
}
CLI::Validator above_zero();
// 0 to 2^64 - 1. Refuses -1, which would otherwise wrap around to the maximum.
CLI::Validator seed_number();

// Refuses an empty text as the value of any option or argument of `app` and its commands: a
// variable of a script that is not set would otherwise switch the option off. Call it last.
void refuse_empty_values(CLI::App& app);

// --json, the same for every command.
void add_json(CLI::App& app, bool& json);
// Prints the object of --json on its own line. Bytes that are not UTF-8 are replaced; in the names
// of members they are written as \xff.
void print_json(const nlohmann::json& object, std::FILE* to = stdout);

// The percentiles of durations for --json, in ms.
nlohmann::json durations_json(const latency_histogram& durations);
// The figures of sources for --json: each by its name, and durations in ms.
nlohmann::json sources_json(const source_counters& counters);

// The same as print_json() for an object with one list that grows with the input: its items are
// printed as they come, before the other members, and none is kept. If an exception ends it after
// an item, the destructor completes the object, and the error's own line follows.
class json_list {
 public:
  explicit json_list(std::string name) : name_(std::move(name)) {}
  ~json_list();
  json_list(const json_list&) = delete;
  json_list& operator=(const json_list&) = delete;

  void add(const nlohmann::json& item);
  // Call once, last. `rest`: a non-empty object with the other members.
  void end(const nlohmann::json& rest);

 private:
  void begin();

  std::string name_;
  bool begun_ = false;
  bool has_items_ = false;
  bool ended_ = false;
};

// Prints the report of a benchmark, by `print` or as the object of --json; if it was interrupted
// before it had figures, only that. Returns the exit code.
int end_of_bench(bool has_figures, bool interrupted, bool json,
                 const std::function<nlohmann::json()>& to_json,
                 const std::function<void()>& print);

// The inputs that `specs` name: existing files and folders unchanged, everything else as URLs of
// shards. Throws `failure`.
std::vector<std::string> paths_and_urls(const std::vector<std::string>& specs,
                                        const std::string& base, const source_options& options);
// The same for local files only, as paths. Throws `failure` (usage) with `refused` and `hint` for
// anything else.
std::vector<std::string> paths_alone(const std::vector<std::string>& specs,
                                     const source_options& options, const char* refused,
                                     const char* hint);

// Shards as a command's positional arguments, --base and --allow-pipe.
struct shard_arguments {
  std::vector<std::string> specs;
  std::string base;
  bool allow_pipe = false;

  void add_to(CLI::App& app, bool required = true);
  // The options for reading them: the variables and --allow-pipe.
  engine_options engine(const environment& e) const;
  // Their URLs; throws `failure`. `facts` as find_shards() has it.
  std::vector<std::string> urls(const environment& e, listing_facts* facts = nullptr) const;
};

// The samples that `ls` and `digest` visit, in the order of the list and of the archives.
struct sample_walk {
  shard_arguments shards;
  bool resync = false;

  void add_to(CLI::App& app);
  plan<sample> samples(const std::vector<std::string>& urls) const;
  // The amount to read, for progress.
  static amount_of_work work_of(const std::vector<std::string>& urls);
  // Reports skipped data on stderr, and returns the exit code.
  static int report_damage(const ledger& counts);
};

}  // namespace millrace::cli
