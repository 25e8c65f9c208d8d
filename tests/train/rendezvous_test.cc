// Processes of a job that find each other, as threads with one store.
#include "train/ranks/rendezvous.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace millrace {
namespace {

using namespace std::chrono_literals;

class Rendezvous : public ::testing::Test {
 protected:
  // A process's part: "" once it has met the others, else its error.
  std::string meets(int rank, int world_size, std::chrono::milliseconds timeout = 60s) {
    try {
      meet(*store_, {.place = place_of(rank, world_size),
                     .timeout = timeout,
                     .patience = 20ms,
                     .note = [&](const std::string& what) {
                       const std::scoped_lock lock(mutex_);
                       notes_.push_back(what);
                     }});
      return "";
    } catch (const failure& f) {
      return f.what();
    }
  }
  std::future<std::string> process(int rank, int world_size,
                                   std::chrono::milliseconds timeout = 60s) {
    return std::async(std::launch::async, [=, this] { return meets(rank, world_size, timeout); });
  }
  // Whether a process has said that it waits, so that it has come.
  void wait_for_notes(std::size_t count) {
    wait_until([&] { return notes().size() >= count; });
  }
  void wait_for_note(const std::string& begin) {
    wait_until([&] {
      return std::ranges::any_of(notes(), [&](const auto& n) { return n.starts_with(begin); });
    });
  }
  template <class F>
  void wait_until(F is_true) {
    const auto end = std::chrono::steady_clock::now() + 60s;
    while (!is_true()) {
      if (std::chrono::steady_clock::now() > end) return ADD_FAILURE() << "not within 60 s", void();
      std::this_thread::yield();
    }
  }
  std::vector<std::string> notes() {
    const std::scoped_lock lock(mutex_);
    return notes_;
  }
  job_place place_of(int rank, int world_size) const {
    return {.rank = rank,
            .world_size = world_size,
            .launcher = "RANK and WORLD_SIZE",
            .agent_serves_store = agent_serves_store_};
  }

  bool agent_serves_store_ = false;
  c10::intrusive_ptr<c10d::HashStore> store_ = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex_;
  std::vector<std::string> notes_;  // guarded by mutex_
};

TEST_F(Rendezvous, IsOverWhenAllHaveCome) {
  for (const int world_size : {1, 2, 7}) {
    store_ = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::future<std::string>> all;
    for (int rank = world_size; rank-- > 0;) all.push_back(process(rank, world_size));
    for (auto& one : all) EXPECT_EQ(one.get(), "");
  }
}

TEST_F(Rendezvous, NamesTheRanksThatAreMissing) {
  auto third = process(2, 5, 3s);
  const std::string first = meets(0, 5, 3s);
  EXPECT_NE(first.find("rank 0 of 5: joining the job at"), first.npos) << first;
  EXPECT_NE(first.find("ranks 1, 3 and 4 did not come within 3 s"), first.npos) << first;
  EXPECT_NE(third.get().find("rank 2 of 5: joining the job at"), std::string::npos);
  const auto said = notes();
  EXPECT_TRUE(std::ranges::any_of(
      said, [](const auto& one) { return one.find("rank 0 of 5 waits for ranks 1") == 0; }));
  EXPECT_TRUE(std::ranges::any_of(
      said, [](const auto& one) { return one.find("rank 2 of 5 waits for ") == 0; }));
}

TEST_F(Rendezvous, TakesAProcessThatIsStartedAgain) {
  auto first = process(0, 3);
  wait_for_notes(1);  // it is there
  EXPECT_NE(meets(1, 3, 100ms).find("the other ranks did not come within"), std::string::npos);
  auto again = process(1, 3);
  auto last = process(2, 3);
  EXPECT_EQ(first.get() + again.get() + last.get(), "");
}

// It comes after all the others, to which the one that is gone seemed to have come.
TEST_F(Rendezvous, TakesAProcessThatIsStartedAgainLast) {
  auto first = process(0, 3);
  wait_for_notes(1);  // it is there
  EXPECT_NE(meets(1, 3, 100ms).find("the other ranks did not come within"), std::string::npos);
  auto last = process(2, 3);
  wait_for_note("rank 2 of 3");
  auto again = process(1, 3);
  EXPECT_EQ(first.get() + again.get() + last.get(), "");
}

TEST_F(Rendezvous, OfTwoWithOneRankTheLaterIsTaken) {
  auto first = process(0, 3);
  auto one = process(1, 3);
  wait_for_notes(2);
  auto other = process(1, 3);
  const std::string refused = one.get();
  EXPECT_NE(refused.find("usage: another process is rank 1 of this job too"), refused.npos)
      << refused;
  EXPECT_EQ(process(2, 3).get() + first.get() + other.get(), "");
}

// Whoever is not of the job is refused alone, and named to those who wait.
TEST_F(Rendezvous, RefusesWhoeverIsNotOfTheJob) {
  auto first = process(0, 2);
  wait_for_notes(1);
  const std::string other = meets(2, 3);
  EXPECT_NE(other.find("the world size is 3 here, and 2 on rank 0"), other.npos) << other;
  const std::string second = meets(0, 3);
  EXPECT_NE(second.find("another process is rank 0 of this job too"), second.npos) << second;
  auto last = process(1, 2);
  EXPECT_EQ(first.get() + last.get(), "");
}

TEST_F(Rendezvous, NamesTheOneThatWasRefused) {
  auto first = process(0, 2, 2s);
  wait_for_notes(1);
  EXPECT_NE(meets(2, 3).find("the world size is 3 here"), std::string::npos);
  const std::string said = first.get();
  EXPECT_NE(said.find("rank 1 did not come within 2 s; refused: rank 2: the world size is 3 here"),
            said.npos)
      << said;
}

// Torchrun's store has what earlier attempts have left, of as many ranks or of others.
TEST_F(Rendezvous, UsesNothingOfAnEarlierAttempt) {
  agent_serves_store_ = true;
  for (const int world_size : {3, 3, 2, 2, 4, 1, 3}) {
    std::vector<std::future<std::string>> all;
    for (int rank = world_size; rank-- > 0;) {
      const std::size_t before = notes().size();
      all.push_back(process(rank, world_size));
      if (rank > 0) wait_for_notes(before + 1);  // it has met what is left
    }
    for (auto& one : all) EXPECT_EQ(one.get(), "") << world_size;
  }
}

}  // namespace
}  // namespace millrace
