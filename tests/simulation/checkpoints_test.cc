// A folder of checkpoints on a disk that fails: a kill after every file system call, with unsynced
// data lost, torn and reordered, or not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "engine/base/error.h"
#include "engine/host/seams.h"
#include "tests/support/memory_files.h"
#include "tests/support/seeds.h"
#include "train/checkpoints/checkpoint_folder.h"

namespace millrace::testing {
namespace {

const std::string folder = "/runs/ck";
const std::string resumed = folder + "/step-0000000006";
constexpr std::size_t keep = 2;

checkpoint_files files_at(std::int64_t step, const std::string& run) {
  const std::string weights = fmt::format("weights of {} after {} steps, ", run, step);
  std::string model;
  while (model.size() < 1500) model += weights;
  return files_of({.step = step, .run = run}, {{model_name, model}, {optimizer_name, "momentum"}},
                  {"state of rank 0", "state of rank 1"});
}

void put_checkpoint(memory_files& disk, std::int64_t step, const std::string& run) {
  for (const auto& [name, text] : files_at(step, run)) {
    disk.put(folder + "/" + step_name(step) + "/" + name, text);
  }
}

// A folder with other files in it, and a run that is resumed there and saves.
class run_of_training {
 public:
  explicit run_of_training(std::uint64_t seed) : disk(seed) {
    for (const char* path : {"/notes.txt", "/.partial-mine/a", "/step-99/readme", "/set-aside-1/a",
                             "/.replaced-mine/a", "/step-0000000099.old"}) {
      foreign_.push_back(folder + path);
    }
    for (const auto& path : foreign_) disk.put(path, "keep me");
    put_checkpoint(disk, 4, "this");
    disk.put(folder + "/" + step_name(4) + "/evaluation.txt", "keep me");
    put_checkpoint(disk, 5, "of another run");
    put_checkpoint(disk, 6, "this");
    put_checkpoint(disk, 8, "of another try");
    simulate_files(&disk);
  }
  ~run_of_training() { simulate_files(nullptr); }
  run_of_training(const run_of_training&) = delete;
  run_of_training& operator=(const run_of_training&) = delete;

  // Saves at these steps, or until the file system fails.
  void train(const std::string& from, const std::vector<std::int64_t>& steps) {
    check_folder(folder, from, true);
    set_aside_newer(folder, from);
    is_alone = true;
    for (const std::int64_t step : steps) {
      write_checkpoint(folder, step_name(step), files_at(step, "this"));
      saved = step;
      remove_old(folder, "this", keep, from);
    }
    add_to_checkpoint(folder + "/" + step_name(saved), validation_name, "{}\n");
    is_validated = true;
  }

  // Files that existed before this run still exist, whatever happened to it.
  void expect_others_things() {
    const auto has_evaluation = [&](const char* begin) {
      return disk.exists(folder + begin + step_name(4) + "/evaluation.txt");
    };
    EXPECT_TRUE(has_evaluation("/") || has_evaluation("/.partial-") || has_evaluation("/left-of-"));
    const std::string first = folder + "/" + step_name(5);
    for (const auto& path : foreign_) EXPECT_EQ(disk.content(path), "keep me") << path;
    EXPECT_EQ(read_checkpoint(first), files_at(5, "of another run"));
    bool is_there = false;
    for (const char* in : {"/", "/set-aside-2/", "/set-aside-3/"}) {
      const std::string path = folder + in + step_name(8);
      if (!disk.exists(path)) continue;
      EXPECT_EQ(read_checkpoint(path), files_at(8, "of another try"));
      is_there = true;
    }
    EXPECT_TRUE(is_there);
  }

  memory_files disk;
  std::int64_t saved = 0;  // the step of the newest checkpoint written
  bool is_alone = false;   // set aside what was in the way
  bool is_validated = false;

 private:
  std::vector<std::string> foreign_;
};

std::string chosen_path() {
  const auto chosen = choose_checkpoint(
      folder, [](const chosen_checkpoint&) {},
      [](const std::string& note) { ADD_FAILURE() << "a checkpoint is damaged: " << note; });
  return chosen ? chosen->path : "";
}

struct killing {
  const char* name;
  bool loses_power = false;
  bool exchanges = true;
  bool once = false;  // no kill: one call fails, and the next ones succeed
};

class Checkpoints : public ::testing::TestWithParam<killing> {};

TEST_P(Checkpoints, TheNewestIsWholeAfterAKillAnywhere) {
  // One seed if a sanitizer's preset asks for fewer.
  const auto seeds = std::clamp<std::uint64_t>(testing::variable("TEST_SIM_SEEDS", 200) / 60, 1, 3);
  bool is_complete = false;
  std::uint64_t calls = 0;
  for (; !is_complete && !HasFailure(); ++calls) {
    if (!testing::is_taken(calls)) continue;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      SCOPED_TRACE(fmt::format("killed after {} calls, seed {}", calls, seed));
      run_of_training run(seed);
      run.disk.exchanges = GetParam().exchanges;
      std::uint64_t made = 0;
      run.disk.fault = [&](const char*, const std::string&) {
        const auto nth = made++;
        return nth < calls || (GetParam().once && nth > calls) ? 0 : -EIO;
      };
      try {
        run.train(resumed, {10, 20, 30, 30});
      } catch (const failure&) {
      }
      is_complete = made <= calls;
      run.disk.fault = nullptr;
      EXPECT_EQ(run.disk.open_descriptors(), 0U);
      run.disk.kill(0);
      if (GetParam().loses_power) run.disk.crash();
      run.disk.restart(0);

      const std::string newest = chosen_path();
      const std::int64_t step = std::stoll(newest.substr(newest.rfind('-') + 1));
      EXPECT_GE(step, run.saved);
      if (run.is_alone) EXPECT_NE(step, 8);
      run.expect_others_things();
      EXPECT_EQ(read_checkpoint(resumed), files_at(6, "this"));
      if (step > 8) {
        auto files = read_checkpoint(newest);
        const bool is_validated = files.erase(validation_name) > 0;
        EXPECT_EQ(files, files_at(step, "this"));
        if (run.is_validated) EXPECT_TRUE(is_validated);
      }

      // Resumed, it validates what was not yet validated and saves again. It keeps two checkpoints
      // and the one it was resumed from.
      if (step > 8) add_to_checkpoint(newest, validation_name, "{}\n");
      run.train(newest, {40, 50, 60});
      run.expect_others_things();
      std::set<std::string> expected{step_name(5), step_name(50), step_name(60)};
      expected.insert(step_name(step));
      std::set<std::string> left;
      for (const auto& path : checkpoints_in(folder)) left.insert(path.substr(folder.size() + 1));
      EXPECT_EQ(left, expected);
      for (const auto& path : run.disk.paths()) {
        EXPECT_EQ(path.find(".partial-step"), path.npos) << path;
        EXPECT_EQ(path.find(".replaced-step"), path.npos) << path;
        EXPECT_EQ(path.find(".partial."), path.npos) << path;
        const bool is_of_others =
            path.find("left-of-") == path.npos || path.ends_with("evaluation.txt");
        EXPECT_TRUE(is_of_others) << path;
      }
      EXPECT_EQ(run.disk.open_descriptors(), 0U);
    }
  }
  EXPECT_GT(calls, 100U);
}

INSTANTIATE_TEST_SUITE_P(
    Kills, Checkpoints,
    ::testing::Values(killing{.name = "OfTheProcess"},
                      killing{.name = "LosingPower", .loses_power = true},
                      killing{.name = "WithoutExchange", .exchanges = false},
                      killing{.name = "OfOneCall", .once = true},
                      killing{.name = "OfOneCallLosingPower", .loses_power = true, .once = true}),
    [](const auto& p) { return std::string(p.param.name); });

}  // namespace
}  // namespace millrace::testing
