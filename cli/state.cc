#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <variant>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/outputs.h"
#include "cli/state_show.h"
#include "engine/base/json_tree.h"
#include "engine/base/printable.h"
#include "engine/base/words.h"
#include "engine/files/folders.h"
#include "engine/files/written_file.h"
#include "io/stores/known_stores.h"
#include "pipeline/run/engine_options.h"
#include "pipeline/shards/edited_state.h"
#include "pipeline/state/merged.h"
#include "train/checkpoints/checkpoint_folder.h"
#include "train/checkpoints/checkpoint_store.h"
#include "train/checkpoints/edited_checkpoint.h"
#include "train/checkpoints/folder_lock.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

// A position that was read: a program's own state, or a checkpoint of millrace-train.
struct saved_position {
  std::string path;  // of a folder of checkpoints, the newest of them
  std::variant<state, checkpoint_files> what;
};

// A checkpoint in a store, or the newest below a prefix there.
saved_position read_stored_position(const std::string& where, const engine_options& reach) {
  const auto newest = checkpoint_store::newest_below(where, reach);
  const std::string path = newest.value_or(where);
  return {path, read_stored_checkpoint(path, reach)};
}

// The position in what state_dict() of a loader in Python has returned, as JSON.
std::string position_in(std::string content) {
  const auto of_python = json_tree::parse(content).value_or(json_tree());
  const bool is_dict = of_python.find("millrace") != nullptr;
  return is_dict ? std::string(of_python.text_of("position")) : std::move(content);
}

saved_position read_position(const std::string& file, const environment& e) {
  if (store_of(file) != nullptr) {
    return read_stored_position(file, engine_options::from(e.variables));
  }
  check_is_path(file, "saved state");
  if (!is_folder(file)) {
    auto found = state::from_json(position_in(read_whole_file(file).value()));
    const std::string folder = fs::path(file).parent_path();
    const std::string around = folder.empty() ? "." : folder;
    if (!found && is_checkpoint(around)) {
      throw failure(error(errc::usage, "this is a part of a checkpoint")
                        .at(file)
                        .hint("give its folder, " + around));
    }
    if (!found) throw failure(found.error().at(file));
    return {file, std::move(*found)};
  }
  std::string path = file;
  if (!is_checkpoint(file)) {
    const auto below = checkpoints_in(file);
    if (below.empty()) {
      throw failure(error(errc::usage, "neither a checkpoint nor a folder of checkpoints")
                        .at(file)
                        .hint("give the file of a saved state, or a folder of millrace-train: "
                              "--checkpoint-dir, or one of its step-NNNNNNNNNN"));
    }
    path = below.back();
  }
  return {path, read_checkpoint(path)};
}

// Calls `edit`; an error about the state names its file.
template <class F>
auto of_file(const std::string& path, F edit) {
  try {
    return edit();
  } catch (const failure& f) {
    if (!f.why().where().empty()) throw;
    throw failure(error(f.why()).at(path));
  }
}

int show(const std::string& file, bool json, const environment& e) {
  const saved_position from = read_position(file, e);
  of_file(from.path, [&] {
    if (const auto* const alone = std::get_if<state>(&from.what)) {
      return show_state(from.path, *alone, nullptr, json);
    }
    const auto whole = whole_of(std::get<checkpoint_files>(from.what), from.path);
    show_state(from.path, merged(whole.of_ranks), &whole.record, json);
  });
  return 0;
}

struct edit_arguments {
  std::string file;
  std::string output;
  bool overwrite = false;
  bool json = false;

  void add_to(CLI::App& app) {
    app.add_option("FILE", file,
                   "a saved state, a checkpoint of millrace-train, or its folder of checkpoints, "
                   "which means the newest")
        ->required();
    app.option_defaults()->group("Output");
    app.add_option("-o,--output", output,
                   "the state or checkpoint to write; of a checkpoint, a folder")
        ->type_name("FILE")
        ->required();
    app.add_flag("--overwrite", overwrite, "replace a state or checkpoint of that name");
    add_json(app, json);
  }
};

// Throws `failure` (usage) if something is in the way that may not be replaced.
void check_can_write(const edit_arguments& a, const saved_position& from) {
  check_is_path(a.output, "saved state");
  if (is_same(a.output, from.path).value_or(false)) {
    throw failure(error(errc::usage, "the output is the input")
                      .at(a.output)
                      .hint("choose another name for the output"));
  }
  const bool is_folder = std::holds_alternative<checkpoint_files>(from.what);
  if (!is_folder) check_output(a.output, state_file, std::array{from.path});
  const bool exists = is_folder ? is_there(a.output) : stamp_of_file(a.output).has_value();
  if (!exists) return;
  if (!a.overwrite) {
    throw failure(error(errc::usage, "the output exists already")
                      .at(a.output)
                      .hint("choose another name, or give --overwrite"));
  }
  if (!is_folder || is_checkpoint(a.output)) return;
  throw failure(error(errc::usage, "what is there is not a checkpoint")
                    .at(a.output)
                    .hint("choose another name for the output"));
}

void write(const edit_arguments& a, const state& what) {
  written_file out(a.output, "saved state");
  out.append(what.to_json());
  out.commit(a.overwrite);
  remove_partial_files(std::array{a.output});
}

void write(const edit_arguments& a, const checkpoint_files& what) {
  const fs::path out = fs::path(a.output + "/").lexically_normal().parent_path();
  const std::string folder = out.has_parent_path() ? out.parent_path().string() : ".";
  const folder_lock lock(folder);
  write_checkpoint(folder, out.filename(), what);
}

// Stopped before anything is written: nullopt. Else writes what was made of the position.
template <class T>
std::optional<int> written(const edit_arguments& a, const T& made) {
  if (!interrupted()) {
    write(a, made);
    return std::nullopt;
  }
  if (a.json) {
    print_json({{"interrupted", true}});
  } else {
    print_line("stopped: nothing was written");
  }
  return exit_code_of_interrupt();
}

int move(const edit_arguments& a, std::int64_t epoch, const environment& e) {
  static_cast<void>(interrupted());  // from now on a signal also removes the partial file
  const saved_position from = read_position(a.file, e);
  check_can_write(a, from);
  const auto stopped = of_file(from.path, [&] {
    if (const auto* const alone = std::get_if<state>(&from.what)) {
      return written(a, moved_to_epoch(*alone, epoch));
    }
    return written(a, moved_to_epoch(std::get<checkpoint_files>(from.what), from.path, epoch));
  });
  if (stopped) return *stopped;
  if (a.json) {
    print_json({{"file", from.path}, {"output", a.output}, {"epoch", epoch}});
  } else {
    fmt::print("wrote {}: {} at the beginning of epoch {}\n", printable(a.output),
               printable(from.path), epoch);
  }
  return 0;
}

int skip(const edit_arguments& a, std::int64_t samples, const environment& e) {
  static_cast<void>(interrupted());
  const saved_position from = read_position(a.file, e);
  check_can_write(a, from);
  skipping_states passed;
  const auto stopped = of_file(from.path, [&] {
    if (const auto* const alone = std::get_if<state>(&from.what)) {
      passed = skipping(std::array{*alone}, samples);
      return written(a, passed.of_ranks.front());
    }
    skipping_checkpoint made = skipping(std::get<checkpoint_files>(from.what), from.path, samples);
    passed = std::move(made.passed);
    return written(a, made.files);
  });
  if (stopped) return *stopped;
  if (a.json) {
    print_json({{"file", from.path},
                {"output", a.output},
                {"epoch", passed.epoch},
                {"samples", passed.samples},
                {"to_the_end", passed.to_the_end}});
  } else {
    fmt::print(
        "wrote {}: {} without the next {} of epoch {}, or fewer where a lane ends{}: "
        "the run that is resumed from it says how many it has passed over\n",
        printable(a.output), printable(from.path),
        counted(static_cast<std::uint64_t>(passed.samples), "sample"), passed.epoch,
        passed.to_the_end ? fmt::format(", to its end: it has no {} left", samples) : "");
  }
  return 0;
}

}  // namespace

action add_state(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "state", "shows or edits a saved position: of a program, or a checkpoint of millrace-train");
  command->require_subcommand(1);
  auto file = std::make_shared<std::string>();
  auto json = std::make_shared<bool>();
  CLI::App* showing = command->add_subcommand("show", "prints where a saved run is");
  showing
      ->add_option(
          "FILE", *file,
          "a saved state, a checkpoint of millrace-train (a folder, or a URL), or its folder "
          "of checkpoints, which means the newest")
      ->required();
  add_json(*showing, *json);
  showing->footer("Example:\n  millrace state show position.json");

  auto moved = std::make_shared<edit_arguments>();
  auto epoch = std::make_shared<std::int64_t>(0);
  CLI::App* moving = command->add_subcommand(
      "move", "writes the same run at the beginning of an epoch; counts are kept");
  moving->add_option("--epoch", *epoch, "the epoch of the data, from 0")
      ->check(in_range(0, most_counted))
      ->required()
      ->group("Position");
  moved->add_to(*moving);
  moving->footer("Example:\n  millrace state move checkpoints --epoch 3 -o again/step-0000012000");

  auto skipped = std::make_shared<edit_arguments>();
  auto samples = std::make_shared<std::int64_t>(0);
  CLI::App* skipping = command->add_subcommand(
      "skip", "writes a state of the same run that skips the next samples of its epoch");
  skipping
      ->add_option("--samples", *samples,
                   "samples to pass over, on all ranks together; at most to the epoch's end")
      ->check(in_range(1, most_counted))
      ->required()
      ->group("Position");
  skipped->add_to(*skipping);
  skipping->footer(
      "They are read, but neither decoded nor trained on, and count as dropped.\n\n"
      "Example:\n  millrace state skip checkpoints --samples 51200 -o after/step-0000012000");

  return [=](const environment& e) {
    if (moving->parsed()) return move(*moved, *epoch, e);
    if (skipping->parsed()) return skip(*skipped, *samples, e);
    return show(*file, *json, e);
  };
}

}  // namespace millrace::cli
