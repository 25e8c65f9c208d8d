#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "pipeline/formats/group.h"
#include "pipeline/formats/untar.h"
#include "pipeline/stages/shuffle.h"
#include "tests/support/loaders.h"
#include "tests/support/tar_builder.h"

namespace millrace::testing {

// Six shards of different lengths in memory, and a plan over them.
class text_shards : public ::testing::Test {
 protected:
  text_shards() {
    for (int i = 0; i < 6; ++i) {
      // Shards of different lengths: 40, 45, ... samples.
      store_->put("t" + std::to_string(i), text_shard(i * 1000, 40 + 5 * i, 3000));
    }
  }
  static std::vector<std::string> urls(int n = 6) {
    std::vector<std::string> out;
    out.reserve(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) out.push_back("memory:t" + std::to_string(i));
    return out;
  }
  static lane_plan<sample> text_plan(shard_list_options o = {}, std::size_t held = 50) {
    o.seed = 42;
    return shards(urls(), o) | untar() | group_by_key() | shuffle({.samples = held, .seed = 42});
  }
  std::vector<std::string> all_keys() {
    std::vector<std::string> out;
    for (int i = 0; i < 6; ++i) {
      for (int k = 0; k < 40 + 5 * i; ++k) out.push_back(fmt::format("s{:06}", i * 1000 + k));
    }
    return out;
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(10'000);
};

}  // namespace millrace::testing
