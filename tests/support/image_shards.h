#pragma once

#include <fmt/format.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/base/random.h"
#include "pipeline/codecs/jpeg.h"
#include "tests/support/loaders.h"
#include "tests/support/tar_builder.h"
#include "tools/write/fake.h"

namespace millrace::testing {

// Shards in memory of small JPEGs, all different, some of them broken.
class image_shards {
 public:
  image_shards(int shards, int samples, double broken, std::uint64_t seed) {
    random_stream random(seed, purpose::fake_data, 77);
    int number = 0;
    for (int shard = 0; shard < shards; ++shard) {
      tar_builder t;
      for (int i = 0; i < samples; ++i, ++number) {
        const std::string key = fmt::format("k{:05}", number);
        const bool is_broken = random.uniform() < broken;
        const auto& file = file_of(number % 64);
        t.file(key + ".jpg", is_broken ? std::string("no image") : file);
        t.file(key + ".cls", std::to_string(number));
        (is_broken ? broken_ : good_).insert(key);
      }
      store_->put("i" + std::to_string(shard), t.end().str());
      urls_.push_back("memory:i" + std::to_string(shard));
    }
  }

  std::shared_ptr<memory_store> store() const { return store_; }
  const std::vector<std::string>& urls() const { return urls_; }
  const std::set<std::string>& good() const { return good_; }
  const std::set<std::string>& broken() const { return broken_; }

 private:
  // Encoded once for all tests.
  static const std::string& file_of(int number) {
    static const std::vector<std::string> files = [] {
      std::vector<std::string> out;
      for (int i = 0; i < 64; ++i) {
        const auto pixels = fake_image({.size = 24}, i % 10, static_cast<std::uint64_t>(i));
        const auto file = encode_jpeg(pixels, 24, 24, 90);
        out.emplace_back(reinterpret_cast<const char*>(file.data()), file.size());
      }
      return out;
    }();
    return files[static_cast<std::size_t>(number)];
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(10'000);
  std::vector<std::string> urls_;
  std::set<std::string> good_;
  std::set<std::string> broken_;
};

}  // namespace millrace::testing
