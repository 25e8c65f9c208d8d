#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/support/simulated_client.h"

namespace millrace::testing {

// For tests that read objects of the host "h", one after another; each gives back its memory.
class http_reads : public ::testing::Test {
 protected:
  outcome read(const std::string& target, byte_range range = {}) {
    outcome out = client_.read(target, range);
    EXPECT_EQ(client_.left_in_memory, 0U);
    return out;
  }

  simulated_client client_;
  std::shared_ptr<simulated_network> net_ = client_.net;
  http_options& options_ = client_.options;
};

}  // namespace millrace::testing
