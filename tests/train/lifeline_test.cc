// Ranks that notice each other's end, as objects of one process.
#include "train/ranks/lifeline.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <vector>

#include "engine/base/error.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;

constexpr auto long_enough = 60s;

// One rank's, and what became of it.
struct rank_of_test {
  std::promise<int> ended;  // in place of the process
  std::unique_ptr<lifeline> life;

  explicit rank_of_test(rank_of_test* first, int rank = 0) {
    const auto end = [this](int gone) { ended.set_value(gone); };
    life = first == nullptr ? std::make_unique<lifeline>(2, end)
                            : std::make_unique<lifeline>(job_place{.rank = rank, .world_size = 3},
                                                         first->life->at(), end);
  }
  std::optional<int> lost() { return life->lost_within(long_enough); }
};

// A connection to a port of this host.
class visitor {
 public:
  explicit visitor(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  }
  ~visitor() { close(socket_); }
  visitor(const visitor&) = delete;
  visitor& operator=(const visitor&) = delete;
  void say(const std::string& text) const {
    // It may have been dropped by then.
    [[maybe_unused]] const auto sent = send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
  }

 private:
  int socket_;
};

// Rank 2 is a mere connection, which ends as that of a killed process does.
struct job {
  rank_of_test first{nullptr};
  rank_of_test second{&first, 1};
  std::unique_ptr<visitor> third = std::make_unique<visitor>(first.life->at().port);
  std::string address;

  job() {
    third->say(first.life->at().key + " 2\n");
    address = first.life->address(long_enough);
  }
};

TEST(Lifeline, KnowsTheAddressByWhichOthersReachThisHost) {
  job j;
  EXPECT_EQ(j.address, "127.0.0.1");
  EXPECT_EQ(j.second.life->address(long_enough), "127.0.0.1");
}

TEST(Lifeline, OfRanksThatEndNobodyIsLost) {
  job j;
  j.second.life->end();
  j.second.life.reset();
  j.third->say("bye\n");
  j.third.reset();
  EXPECT_EQ(j.first.life->lost_within(100ms), std::nullopt);
}

TEST(Lifeline, ARankThatIsGoneIsKnownToAll) {
  job j;
  j.third.reset();
  EXPECT_EQ(j.first.lost(), 2);
  EXPECT_EQ(j.second.lost(), 2);
  // Who does not end by itself is ended.
  EXPECT_EQ(j.first.ended.get_future().get(), 2);
  EXPECT_EQ(j.second.ended.get_future().get(), 2);
}

// It has said so: the others, which usually fail as well, have time for that.
TEST(Lifeline, ARankThatFailsIsNotTheEndOfTheOthersAtOnce) {
  job j;
  j.second.life.reset();
  EXPECT_EQ(j.first.lost(), 1);
  auto ended = j.first.ended.get_future();
  EXPECT_EQ(ended.wait_for(2 * lifeline::patience), std::future_status::timeout);
  // One that is killed after that is.
  j.third.reset();
  EXPECT_EQ(ended.wait_for(lifeline::patience_with_failed / 2), std::future_status::ready);
}

TEST(Lifeline, Rank0IsMissedToo) {
  rank_of_test first(nullptr);
  rank_of_test second(&first, 1);
  first.life.reset();
  EXPECT_EQ(second.lost(), 0);
}

TEST(Lifeline, WhatIsHeldIsFinishedFirst) {
  job j;
  j.first.life->hold(true);
  j.third.reset();
  auto first = j.first.ended.get_future();
  auto second = j.second.ended.get_future();
  EXPECT_EQ(second.get(), 2);
  EXPECT_EQ(first.wait_for(0s), std::future_status::timeout);
  j.first.life->hold(false);
  EXPECT_EQ(first.get(), 2);
}

// Whatever strangers send, while rank 0 still listens, and they are not let in after that.
TEST(Lifeline, StrangersAreNoRanks) {
  rank_of_test first(nullptr);
  const auto at = first.life->at();
  for (const std::string& text :
       {std::string(), std::string("bye\n"), std::string("GET / HTTP/1.1\r\n\r\n"),
        std::string("0123456789abcdef 2\n"), at.key + " -1\n", at.key + " x\n",
        std::string(100'000, 'x')}) {
    visitor(at.port).say(text);
  }
  std::vector<std::unique_ptr<visitor>> idle;
  for (int i = 0; i < 50; ++i) idle.push_back(std::make_unique<visitor>(at.port));
  rank_of_test second(&first, 1);
  const visitor third(at.port);
  third.say(at.key + " 2\n");
  EXPECT_EQ(first.life->address(long_enough), "127.0.0.1");
  EXPECT_EQ(first.life->lost_within(100ms), std::nullopt);
  second.life.reset();
  EXPECT_EQ(first.lost(), 1);
}

TEST(Lifeline, OfAHostThatIsNotThereIsAnError) {
  int port = 0;
  {
    const rank_of_test gone(nullptr);
    port = gone.life->at().port;
  }
  try {
    const lifeline none(job_place{.rank = 1, .world_size = 2}, {.port = port, .key = "x"}, {});
    FAIL();
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::peer_lost);
  }
}

}  // namespace
}  // namespace millrace
