// Samples that are larger than what lanes usually have for theirs.
#include <gtest/gtest.h>

#include "millrace/millrace.h"
#include "tests/support/loaders.h"
#include "tests/support/tar_builder.h"

namespace millrace {
namespace {

using testing::with_memory_store;

class LargeSamples : public ::testing::Test {
 protected:
  LargeSamples() {
    testing::tar_builder tar;
    for (const char* name : {"a", "b", "c"}) {
      tar.file(std::string(name) + ".bin", std::string(20_MiB, *name));
      tar.file(std::string(name) + ".cls", "1");
    }
    store_->put("t", tar.end().str());
  }
  // The sizes of the samples that a budget of so many bytes has room for, or why not.
  result<std::vector<std::size_t>> sizes(std::size_t budget, int lanes) const {
    engine_options o = with_memory_store(store_);
    o.memory_bytes = budget;
    engine eng(o);
    auto data =
        eng.run(interleaved(shards({"memory:t"}, {.lanes = lanes}) | untar() | group_by_key()));
    std::vector<std::size_t> out;
    try {
      for (const sample& s : data) out.push_back(s.find("bin")->data.size());
    } catch (const failure& f) {
      return f.why();
    }
    return out;
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(1_MiB);
};

TEST_F(LargeSamples, FitIntoALargeBudgetOrFewLanes) {
  const std::vector<std::size_t> all(3, 20_MiB);
  EXPECT_EQ(sizes(384_MiB, 1).value(), all);
  EXPECT_EQ(sizes(2_GiB, 4).value(), all);
}

// And the refusal says what would do.
TEST_F(LargeSamples, AreRefusedWithWhatTheyNeed) {
  const auto refused = sizes(128_MiB, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind(), errc::too_large);
  EXPECT_EQ(refused.error().sample_key(), "a.bin");
  const std::string told = refused.error().message();
  EXPECT_NE(told.find("a field of 20.0 MiB, and the budget leaves 16.0 MiB"), told.npos) << told;
  EXPECT_NE(told.find("MILLRACE_MEMORY"), told.npos);
  const auto second = sizes(256_MiB, 1);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message().find("after 20.0 MiB of samples"), told.npos)
      << second.error().message();
}

}  // namespace
}  // namespace millrace
