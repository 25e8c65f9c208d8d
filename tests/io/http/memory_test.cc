// Sources with as little memory as plans give them: whatever is known of an object, and however
// many of its parts arrive at once, none waits for memory that another one keeps forever.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>

#include "engine/base/random.h"
#include "engine/base/units.h"
#include "io/hashes.h"
#include "tests/support/numbered.h"
#include "tests/support/seeds.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::answer;
using testing::numbered;
using testing::outcome;
using testing::sent;

class HttpMemory : public ::testing::Test {
 protected:
  HttpMemory() { client_.keeps_one = true; }
  ~HttpMemory() override { EXPECT_EQ(client_.left_in_memory, 0U); }
  HttpMemory(const HttpMemory&) = delete;
  HttpMemory& operator=(const HttpMemory&) = delete;

  void read(const std::shared_ptr<http_stack>& stack, const std::string& content) {
    outcome out;
    client_.time.run(client_.read_all(stack, parse_url("http://h/a").value(), {}, &out), 1h);
    EXPECT_FALSE(out.failed);
    EXPECT_TRUE(out.content == content);
  }

  testing::simulated_client client_;
};

// No buffer is withheld for the check of a digest.
TEST_F(HttpMemory, TwoBuffersAreEnoughToReadAndToCheck) {
  const std::size_t chunk = client_.source.chunk_bytes = 256_KiB;
  constexpr std::array sizes{300'000UL, 1'500'001UL};
  for (int i = 0; i < 2 * 2 * 2 * 3 * 3; ++i) {
    int rest = i;
    const auto next = [&](int of) { return std::exchange(rest, rest / of) % of; };
    const std::string content = numbered(sizes.at(static_cast<std::size_t>(next(2))));
    const bool has_length = next(2) == 0;
    const std::string raw = digest_of(hash_algorithm::crc32c, content);
    const std::string digest = next(2) == 0 ? "Repr-Digest: crc32c=:" + base64(raw) + ":\r\n" : "";
    client_.net->serve("10.0.0.1", [&](const std::string& request) {
      if (has_length) return answer(request, content, 0us, digest);
      return std::vector<sent>{{.bytes = "HTTP/1.1 200 x\r\nETag: \"v1\"\r\n" + digest + "\r\n"},
                               {.bytes = content, .ends = sent::end::fin}};
    });
    client_.memory_bytes = static_cast<std::size_t>(2 + next(3)) * chunk;
    const int split = next(3);
    client_.options.split = split == 0 ? std::nullopt : std::optional(split);
    SCOPED_TRACE(fmt::format("{} bytes, memory {}, length {}, digest {}, split {}", content.size(),
                             client_.memory_bytes, has_length, !digest.empty(), split));
    const auto stack = client_.make_stack();
    for (int again = 0; again < 2; ++again) read(stack, content);  // known the second time
  }
}

// A server turns out to be worth more concurrent requests: the first acquires its memory bit by
// bit, and the following ones have theirs in advance.
TEST_F(HttpMemory, PartsBehindTheFirstLeaveItWhatItNeeds) {
  client_.source.chunk_bytes = 256_KiB;
  client_.options.split = std::nullopt;
  const std::string content = numbered(20'000'000);
  client_.net->serve("10.0.0.1",
                     [&](const std::string& request) { return answer(request, content, 5ms); });
  for (const std::size_t memory : {512_KiB, 700_KiB, 768_KiB, 1_MiB, 2_MiB}) {
    SCOPED_TRACE(memory);
    client_.memory_bytes = memory;
    read(client_.make_stack(), content);
  }
}

// A second request of a late part keeps none of the bytes that the first has brought meanwhile: the
// first may wait for their memory.
TEST_F(HttpMemory, ASecondRequestThatComesLaterThanTheFirstKeepsNothing) {
  client_.source.chunk_bytes = 128_KiB;
  client_.memory_bytes = 6 * 128_KiB;
  client_.options.split = std::nullopt;
  const std::string content = numbered(8_MiB);
  int requests = 0;
  client_.net->serve("10.0.0.1", [&](const std::string& request) {
    const int n = requests++;
    if (n < 4) return answer(request, content.substr(0, 300'000), 100us);
    auto pieces = answer(request, content);
    if (n == 4) {
      pieces.at(2).after = 1500ms;  // it is late, then brings 2 MiB
      pieces.at(34).after = 1800ms;
    } else {
      pieces.at(0).after = 1000ms;
    }
    return pieces;
  });
  const auto stack = client_.make_stack();
  for (int i = 0; i < 4; ++i) read(stack, content.substr(0, 300'000));
  read(stack, content);
  EXPECT_EQ(client_.counters.hedges, 1U);
}

// The parts after a late one fill the memory, and the next one waits for some: the second request
// has memory of its own.
TEST_F(HttpMemory, ASecondRequestWaitsForNoMemoryOfTheLatePart) {
  client_.source.chunk_bytes = 128_KiB;
  client_.memory_bytes = 4_MiB;
  client_.options.split = 4;
  const std::string content = numbered(16_MiB);
  int requests = 0;
  client_.net->serve("10.0.0.1", [&](const std::string& request) {
    const int n = requests++;
    if (n < 4) return answer(request, content.substr(0, 300'000), 100us);
    auto pieces = answer(request, content, 100us);
    if (n == 4) pieces.at(2).after = 9s;
    return pieces;
  });
  const auto stack = client_.make_stack();
  for (int i = 0; i < 4; ++i) read(stack, content.substr(0, 300'000));
  const auto begun = client_.time.now();
  read(stack, content);
  EXPECT_EQ(client_.counters.hedges_won, 1U);
  EXPECT_LT(client_.time.now() - begun, 4s);
}

// Parts whose sizes change with the server's answers, some of them late, in memory that they fill:
// whichever is requested twice, waits or wins, each read ends.
TEST_F(HttpMemory, PartsAndSecondRequestsWaitForMemoryInNoCircle) {
  const std::string content = numbered(12'000'000);
  for (const std::uint64_t seed : testing::seeds(40)) {
    random_stream random(seed, purpose::fake_data);
    SCOPED_TRACE(fmt::format("TEST_SEED={}", seed));
    const auto chance = [&](std::uint32_t of) { return random.below(of) == 0; };
    client_.memory_bytes = (5 + random.below(12)) * 1_MiB;
    client_.options.split = 2 + static_cast<int>(random.below(5));
    client_.options.hedge = 1;
    client_.net->serve("10.0.0.1", [&](const std::string& request) {
      auto pieces = answer(request, content, 200us + 1us * random.below(5000));
      pieces.front().after = 1ms * random.below(chance(4) ? 2000 : 100);
      if (chance(3)) {
        const auto late = random.below(static_cast<std::uint32_t>(pieces.size()));
        pieces.at(late).after = 1ms * (300 + random.below(4000));
      }
      return pieces;
    });
    const auto stack = client_.make_stack();
    for (int again = 0; again < 3; ++again) read(stack, content);
  }
  EXPECT_GT(client_.counters.hedges_won, 0U);
}

}  // namespace
}  // namespace millrace
