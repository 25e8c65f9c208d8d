// A training job of 1 to 4 ranks that saves checkpoints, on one thread in simulated time: ranks are
// killed alone or together, between steps and while a checkpoint is written, with or without a
// power failure; checkpoints are damaged; the job is resumed by the same or another number of
// ranks. Only the model is missing: its weights are a fingerprint of everything it was trained on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "tests/support/seeds.h"
#include "tests/support/simulator.h"
#include "tests/support/tar_builder.h"
#include "train/checkpoints/checkpoint_folder.h"

namespace millrace::testing {
namespace {

constexpr int job_shards = 12;
constexpr int job_lanes = 12;  // 1, 2, 3 and 4 ranks share them evenly
constexpr int batch_size = 2;
constexpr std::int64_t saved_every = 3;
constexpr std::size_t kept = 2;
const std::string checkpoints = "/runs/ck";

// How a life of the job ends.
struct ending_of_life {
  std::int64_t steps = 0;     // taken before the end
  bool while_saving = false;  // otherwise while a rank waits for its batch
  std::uint64_t calls = 0;    // of the file system, in that checkpoint
  bool is_of_all = false;     // the others end because they lost a peer; otherwise all are killed
  bool loses_power = false;
  bool damages = false;  // damages the newest checkpoint
};

struct killed {};

class training_job {
 public:
  explicit training_job(std::uint64_t seed) : sim_(seed), luck_(seed, purpose::fake_data, 11) {
    for (int i = 0; i < job_shards; ++i) {
      const std::string text = text_shard(i * 1000, 5 + i, 700);
      urls_.push_back(fmt::format("/data/s{}.tar", i));
      sim_.files.put(urls_.back(), text);
      for (int s = 0; s < 5 + i; ++s) all_.insert(fmt::format("s{:06}", i * 1000 + s));
    }
    sim_.files.put("/runs/x", "");
    sim_.files.moves_pieces = true;
    sim_.replay = fmt::format("TEST_SIM_SEED={} --gtest_filter=Training.*", seed);
  }

  void run() {
    for (int kills = static_cast<int>(luck_.below(5)); kills > 0; --kills) {
      const ending_of_life end{.steps = luck_.below(14),
                               .while_saving = luck_.below(2) == 0,
                               .calls = luck_.below(90),
                               .is_of_all = luck_.below(2) == 0,
                               .loses_power = luck_.below(2) == 0,
                               .damages = luck_.below(4) == 0};
      if (!live(ranks(), &end)) break;
      after(end);
    }
    if (!is_over_) live(ranks(), nullptr);
    std::multiset<std::string> seen(dropped_.begin(), dropped_.end());
    for (const auto& [step, keys] : trained_) seen.insert(keys.begin(), keys.end());
    EXPECT_EQ(seen, std::multiset<std::string>(all_.begin(), all_.end()));
    EXPECT_EQ(sim_.files.open_descriptors(), 0U);
  }

 private:
  struct rank {
    std::unique_ptr<engine> eng;
    std::unique_ptr<loader<sample>> data;
  };

  int ranks() { return 1 + static_cast<int>(luck_.below(4)); }

  // False if the epoch ended before that end of the life.
  bool live(int world, const ending_of_life* end) {
    std::vector<rank> all(static_cast<std::size_t>(world));
    struct closing {
      training_job& j;
      std::vector<rank>& of;
      ~closing() {
        for (std::size_t r = 0; r < of.size(); ++r) {
          j.sim_.run_as(static_cast<int>(r));
          of[r].data.reset();
          of[r].eng.reset();
        }
      }
    } close{*this, all};
    try {
      begin(all);
      train(all, end);
      is_over_ = true;
      return false;
    } catch (const killed&) {
      const int victim = static_cast<int>(luck_.below(static_cast<std::uint32_t>(world)));
      for (int r = 0; r < world; ++r) {
        if (end->is_of_all || r == victim) sim_.files.kill(r);
      }
      return true;
    }
  }

  // Rank 0 chooses what all resume from; if nothing is whole, all refuse.
  void begin(std::vector<rank>& all) {
    sim_.run_as(0);
    std::optional<chosen_checkpoint> chosen;
    bool is_refused = false;
    try {
      chosen = choose_checkpoint(
          checkpoints, [](const chosen_checkpoint&) {}, [](const std::string&) {});
    } catch (const failure& f) {
      is_refused = true;
      EXPECT_EQ(f.kind(), errc::integrity) << f.what();
    }
    const std::int64_t newest = is_damaged_ ? newest_whole_ : saved_;
    EXPECT_EQ(is_refused, is_damaged_ && newest_whole_ == 0);
    step_ = 0;
    weights_ = "none";
    std::vector<checkpoint_record> views;
    for (std::size_t r = 0; r < all.size(); ++r) {
      start(static_cast<int>(r), static_cast<int>(all.size()), all[r]);
      if (!chosen) continue;
      views.push_back(record_in(chosen->files, chosen->path, static_cast<int>(r),
                                static_cast<int>(all.size()), job_lanes, batch_size, 64_MiB));
      all[r].data->restore(views.back().data);
      EXPECT_EQ(views.back().step, views.front().step);
    }
    if (chosen) {
      step_ = views.front().step;
      weights_ = file_in(chosen->files, model_name, chosen->path);
      EXPECT_EQ(weights_, weights_at_.at(step_));
    }
    EXPECT_GE(step_, newest);
    sim_.run_as(0);
    resumed_ = chosen ? chosen->path : "";
    check_folder(checkpoints, resumed_, true);
    set_aside_newer(checkpoints, resumed_);
    trained_.erase(trained_.upper_bound(step_), trained_.end());
    saved_ = newest_whole_ = step_;
    is_damaged_ = false;
  }

  void start(int number, int world, rank& r) {
    sim_.run_as(number);
    r.eng = std::make_unique<engine>(engine_options{
        .cpu_threads = 1,
        .memory_bytes = 64_MiB,
        .io = io_backend::pread,
        .source = {.chunk_bytes = 8_KiB, .direct = direct_reads::never, .serialize = 0}});
    r.data = std::make_unique<loader<sample>>(r.eng->run(
        shards(urls_, {.seed = 5, .rank = number, .world_size = world, .lanes = job_lanes}) |
        untar() | group_by_key() | shuffle({.samples = 10, .seed = 5})));
  }

  // A batch of this rank; shorter at the end of its epoch.
  std::vector<std::string> batch_of(int number, rank& r) {
    sim_.run_as(number);
    std::vector<std::string> keys;
    while (keys.size() < batch_size) {
      const auto s = r.data->next();
      if (!s) break;
      keys.push_back(s->key);
    }
    return keys;
  }

  // As in the trainer: all take a step, or the epoch is over for all and the rest is dropped.
  void train(std::vector<rank>& all, const ending_of_life* end) {
    const std::int64_t last = end == nullptr ? 1000 : step_ + end->steps;
    for (;;) {
      std::vector<std::vector<std::string>> batches(all.size());
      bool all_have = true;
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (end != nullptr && !end->while_saving && step_ >= last && i + 1 == all.size()) {
          throw killed();
        }
        batches[i] = batch_of(static_cast<int>(i), all[i]);
        all_have = all_have && batches[i].size() == batch_size;
      }
      if (!all_have) return drop_rest(all, batches);
      ++step_;
      auto& keys = trained_[step_];
      for (const auto& b : batches) {
        for (const std::string& key : b) {
          keys.push_back(key);
          weights_ = fmt::format("{:016x}", fingerprint(key, fingerprint(weights_)));
        }
      }
      weights_at_[step_] = weights_;
      if (step_ % saved_every == 0)
        save(all, end != nullptr && end->while_saving && step_ >= last ? end : nullptr);
    }
  }

  void drop_rest(std::vector<rank>& all, const std::vector<std::vector<std::string>>& batches) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      auto keys = batches[i];
      for (; !keys.empty(); keys = batch_of(static_cast<int>(i), all[i])) {
        dropped_.insert(dropped_.end(), keys.begin(), keys.end());
      }
    }
  }

  void save(std::vector<rank>& all, const ending_of_life* end) {
    std::vector<std::string> states;
    for (std::size_t r = 0; r < all.size(); ++r) {
      sim_.run_as(static_cast<int>(r));
      states.push_back(all[r].data->save().to_json());
    }
    sim_.run_as(0);
    const checkpoint_files files = files_of({.step = step_,
                                             .batch_size = batch_size,
                                             .world_size = static_cast<int>(all.size()),
                                             .run = "this"},
                                            {{model_name, weights_}}, states);
    std::uint64_t calls = 0;
    if (end != nullptr) {
      sim_.files.fault = [&](const char*, const std::string& path) {
        return path.starts_with(checkpoints) && calls++ >= end->calls ? -EIO : 0;
      };
    }
    try {
      write_checkpoint(checkpoints, step_name(step_), files);
      newest_whole_ = std::exchange(saved_, step_);
      remove_old(checkpoints, "this", kept, resumed_);
    } catch (const failure&) {
      EXPECT_NE(end, nullptr);
    }
    sim_.files.fault = nullptr;
    if (end != nullptr) throw killed();
  }

  void after(const ending_of_life& end) {
    if (end.loses_power) sim_.files.crash();
    for (int r = 0; r < 4; ++r) sim_.files.restart(r);
    sim_.run_as(0);
    const auto there = checkpoints_in(checkpoints);
    if (!end.damages || there.empty()) return;
    // Only the newest checkpoint had to be whole, and it is damaged: there may be none.
    is_damaged_ = true;
    const std::string before = there.size() > 1 ? there[there.size() - 2] : "";
    newest_whole_ = before.empty() ? 0 : std::stoll(before.substr(before.rfind('-') + 1));
    const std::string file = there.back() + "/" + model_name;
    sim_.files.rot(file, luck_.below(static_cast<std::uint32_t>(sim_.files.content(file).size())));
  }

  simulator sim_;
  random_stream luck_;
  std::vector<std::string> urls_;
  std::set<std::string> all_;
  std::map<std::int64_t, std::vector<std::string>> trained_;  // keys, by step
  std::vector<std::string> dropped_;
  std::map<std::int64_t, std::string> weights_at_;
  std::string weights_;
  std::string resumed_;
  std::int64_t step_ = 0;
  std::int64_t saved_ = 0;         // the newest checkpoint written
  std::int64_t newest_whole_ = 0;  // if the newest is damaged
  bool is_damaged_ = false;
  bool is_over_ = false;
};

TEST(Training, EachSampleOfTheEpochComesOnceWhoeverIsKilled) {
  set_log_level(log_level::quiet);
  const std::uint64_t only = variable("TEST_SIM_SEED", 0);
  const std::uint64_t first = only > 0 ? only : 1;
  const std::uint64_t count = only > 0 ? 1 : variable("TEST_SIM_SEEDS", 200);
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    training_job(seed).run();
    ASSERT_FALSE(::testing::Test::HasFailure()) << fmt::format(
        "replay: TEST_SIM_SEED={} build/release/bin/simulation_tests "
        "--gtest_filter=Training.*",
        seed);
  }
  set_log_level(log_level::notice);
}

}  // namespace
}  // namespace millrace::testing
