#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "millrace/millrace.h"
#include "pipeline/formats/tar_samples.h"
#include "tests/support/format_conformance.h"
#include "tests/support/record_format.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/text_shards.h"
#include "tools/write/pack_files.h"

namespace millrace {
namespace {

using testing::keys_of_epoch;
using testing::with_memory_store;
using Formats = testing::text_shards;

// Tar archives through the interface of user-defined formats: the same samples, resumed as well.
TEST_F(Formats, TarBySeamIsUntarAndGroup) {
  engine eng(with_memory_store(store_));
  const shard_list_options o{.seed = 42};
  const auto usual = shards(urls(), o) | untar() | group_by_key() | shuffle({.samples = 50});
  const auto by_seam = shards(urls(), o) | read_samples(tar_samples()) | shuffle({.samples = 50});
  auto a = eng.run(usual);
  auto b = eng.run(by_seam);
  const auto expected = keys_of_epoch(a);
  EXPECT_EQ(keys_of_epoch(b), expected);
  for (const std::size_t stop : {0U, 1U, 57U, 200U}) {
    auto first = eng.run(by_seam);
    for (std::size_t i = 0; i < stop; ++i) first.next();
    auto second = eng.run(by_seam);
    second.restore(first.save());
    EXPECT_EQ(keys_of_epoch(second),
              std::vector<std::string>(expected.begin() + static_cast<std::ptrdiff_t>(stop),
                                       expected.end()));
  }
}

// Members are renamed, then selected, before they are grouped into samples.
TEST_F(Formats, MembersAreRenamedAndSelected) {
  engine eng(with_memory_store(store_));
  const untar_options how{.rename = [](std::string_view name) { return "x/" + std::string(name); },
                          .select = [](std::string_view name) { return !name.ends_with("1.cls"); }};
  auto data = eng.run(shards({"memory:t0"}, {.lanes = 1}) | untar(how) | group_by_key());
  std::size_t without = 0;
  for (const sample& s : data) {
    EXPECT_TRUE(s.key.starts_with("x/s")) << s.key;
    EXPECT_EQ(s.find("cls") == nullptr, s.key.ends_with("1")) << s.key;
    without += s.fields.size() == 1 ? 1 : 0;
  }
  EXPECT_EQ(without, 4U);  // of 40
}

// A format without support for indices: if an index has other numbers than the shards, ranks never
// differ in length silently.
TEST(FormatsByIndex, AnEqualEpochOfAnIndexThatIsWrongIsEqualOrFails) {
  const auto store = std::make_shared<memory_store>(3'000);
  shard_index index;
  for (int i = 0; i < 4; ++i) {
    std::vector<std::string> keys;
    for (int k = 0; k < 10 + i; ++k) keys.push_back(fmt::format("s{}-{}", i, k));
    store->put(std::to_string(i), testing::record_file(keys, 700));
    index.shards.push_back({.url = fmt::format("memory:{}", i), .samples = 10 + i});
  }
  engine eng(with_memory_store(store));
  const auto format = std::make_shared<testing::record_source>();
  std::map<std::string, int> outcomes;
  for (const std::int64_t step : {0, -3, -1, 1, 4, 1000}) {
    for (const auto changed : {std::size_t{0}, std::size_t{1}, index.shards.size()}) {
      shard_index wrong = index;
      for (std::size_t i = 0; i < wrong.shards.size(); ++i) {
        if (i == changed || changed == wrong.shards.size()) wrong.shards[i].samples += step;
      }
      for (const int world : {1, 2, 4}) {
        const auto each = static_cast<std::size_t>(wrong.samples() / 4 * 4 / world);
        for (int rank = 0; rank < world; ++rank) {
          const shard_list_options o{
              .seed = 1, .rank = rank, .world_size = world, .lanes = 4, .mode = epoch_mode::equal};
          auto data = eng.run(indexed_shards(wrong, o) | read_samples(format));
          try {
            EXPECT_EQ(keys_of_epoch(data).size(), each) << step << " of " << changed;
            ++outcomes["whole"];
          } catch (const failure& f) {
            EXPECT_EQ(f.kind(), errc::integrity) << f.what();
            EXPECT_TRUE(f.why().is_skippable());
            EXPECT_NE(step, 0);
            ++outcomes[f.why().what().find("more") != std::string::npos ? "more" : "fewer"];
          }
        }
      }
    }
  }
  EXPECT_GT(outcomes["whole"], 10);
  EXPECT_GT(outcomes["more"], 3);
  EXPECT_GT(outcomes["fewer"], 3);
}

// What docs/formats.md demands of a format, for all built-in ones.
TEST(Conformance, TarArchives) {
  auto store = std::make_shared<memory_store>(3'000);
  std::vector<std::string> urls;
  for (int i = 0; i < 5; ++i) {
    store->put(std::to_string(i), testing::text_shard(100 * i, 3 + i, 700));
    urls.push_back("memory:" + std::to_string(i));
  }
  engine eng(with_memory_store(store));
  testing::format_conformance(eng, urls, tar_samples()).check();
}

TEST(Conformance, RecordsWithLengths) {
  auto store = std::make_shared<memory_store>(50);
  std::vector<std::string> urls;
  for (int i = 0; i < 5; ++i) {
    std::vector<std::string> keys;
    for (int k = 0; k < 3 + i; ++k) keys.push_back(fmt::format("r{}", 100 * i + k));
    store->put(std::to_string(i), testing::record_file(keys, 70));
    urls.push_back("memory:" + std::to_string(i));
  }
  engine eng(with_memory_store(store));
  testing::format_conformance(eng, urls, std::make_shared<testing::record_source>()).check();
}

class Raw : public ::testing::Test {
 protected:
  Raw() {
    for (const char* name : {"cat", "dog", "empty", ".hidden"}) {
      std::filesystem::create_directories(folder_ / name);
    }
    std::filesystem::create_directories(folder_ / "dog/deep");
    for (int i = 0; i < 20; ++i) {
      folder_.write(fmt::format("cat/c{:02}.JPG", i),
                    std::string(1000 + static_cast<std::size_t>(i), 'c'));
      folder_.write(fmt::format("dog/deep/d{:02}.png", i), std::string(300'000, 'd'));
    }
    folder_.write("dog/none", "no extension");
    folder_.write(".hidden/x.jpg", "x");
  }
  testing::temporary_folder folder_;
};

TEST_F(Raw, EachFileIsASampleOfItsClassAndIsResumed) {
  const class_folders tree(folder_ / "");
  EXPECT_EQ(tree.classes, (std::vector<std::string>{"cat", "dog", "empty"}));
  EXPECT_EQ(tree.files.size(), 40U);
  engine_options how;
  how.memory_bytes = 64_MiB;
  how.source.chunk_bytes = 64_KiB;
  engine eng(how);
  const auto plan = raw_samples(tree, {.seed = 4, .epochs = 2});
  auto data = eng.run(plan);
  std::vector<std::string> keys;
  for (const sample& s : data) {
    keys.push_back(s.key);
    const bool cat = s.key.starts_with("cat/");
    EXPECT_EQ(s.find("cls")->data.text(), cat ? "0" : "1");
    ASSERT_NE(s.find(cat ? "jpg" : "png"), nullptr);
    EXPECT_EQ(s.fields.front().data.size(), cat ? 1000 + std::stoul(s.key.substr(5)) : 300'000U);
  }
  EXPECT_EQ((std::set<std::string>(keys.begin(), keys.end()).size()), 40U);
  auto first = eng.run(plan);
  for (int i = 0; i < 17; ++i) first.next();
  auto second = eng.run(plan);
  second.restore(first.save());
  EXPECT_EQ(keys_of_epoch(second), std::vector<std::string>(keys.begin() + 17, keys.end()));
}

TEST_F(Raw, ConformsAsAFormat) {
  const class_folders tree(folder_ / "");
  engine eng({.cpu_threads = 1, .memory_bytes = 64_MiB});
  std::vector<std::string> some(tree.files.begin(), tree.files.begin() + 14);
  testing::format_conformance(eng, some, folder_samples(tree)).check();
}

TEST_F(Raw, WhatIsNotThereIsNamed) {
  EXPECT_THROW(class_folders(folder_ / "nowhere"), failure);
  EXPECT_THROW(class_folders(folder_ / "empty"), failure);
  const class_folders tree(folder_ / "");
  std::filesystem::remove(folder_ / "cat/c03.JPG");
  engine eng({.memory_bytes = 64_MiB});
  auto data = eng.run(interleaved(raw_samples(tree)) | on_error(skip_errors()));
  EXPECT_EQ(keys_of_epoch(data).size(), 39U);
  EXPECT_NE(data.counts().first_skipped.at(0).find("c03.JPG"), std::string::npos);
}

// Keys and labels with which `pack` packs a tree, and with which it is read without shards.
std::map<std::string, std::string> packed_labels(const std::string& root) {
  std::map<std::string, std::string> out;
  for (const packed_sample& s : find_files(root, same_name::samples).samples) {
    const auto label = std::ranges::find(s.fields, "cls", &packed_field::extension);
    out[s.key] = label == s.fields.end() ? "none" : label->text;
  }
  return out;
}
std::map<std::string, std::string> raw_labels(const std::string& root) {
  std::map<std::string, std::string> out;
  engine eng({.cpu_threads = 1, .memory_bytes = 64_MiB});
  for (const sample& s : eng.run(raw_samples(class_folders(root)))) {
    out[s.key] = s.find("cls")->data.text();
  }
  return out;
}

TEST_F(Raw, LabelsAreThoseOfPack) {
  struct odd_tree {
    const char* name;
    std::vector<const char*> files;
    std::vector<const char*> folders;
  };
  const odd_tree trees[] = {
      {"litter among folders",
       {"__MACOSX/cat/._1.jpg", "__MACOSX/2.jpg", "__macosx/2.jpg", "Thumbs.db/3.jpg",
        "desktop.ini/4.jpg", "a/1.jpg", "z/1.jpg"},
       {}},
      {"litter among files",
       {"Thumbs.db", "a/Thumbs.db", "a/desktop.ini", "a/1.txt", "z/1.txt", "z/THUMBS.DB", "z/2."},
       {}},
      {"hidden", {".a/1.jpg", ".hidden.jpg", "b/.1.jpg", "b/2.jpg", "b/.below/3.jpg"}, {".c"}},
      {"empty", {"b/1.jpg", "d/1.jpg"}, {"a", "c", "e/deep"}},
      {"without images in a class", {"a/notes.txt", "b/1.jpg", "b/1.txt"}, {}},
      {"files beside", {"1.jpg", "notes.txt", "a/1.jpg", "b/c/2.JPEG", "b/none"}, {}},
      {"no image at all", {"a/1.txt", "b/1.json", "b/2.bin"}, {"0"}},
  };
  for (const odd_tree& tree : trees) {
    SCOPED_TRACE(tree.name);
    const testing::temporary_folder odd;
    for (const char* folder : tree.folders) std::filesystem::create_directories(odd / folder);
    for (const char* file : tree.files) {
      std::filesystem::create_directories(std::filesystem::path(odd / file).parent_path());
      odd.write(file, "content");
    }
    const auto packed = packed_labels(odd / "");
    EXPECT_FALSE(packed.empty());
    EXPECT_EQ(raw_labels(odd / ""), packed);
  }
}

// The files are the same, but their labels are not.
TEST_F(Raw, AStateOfOtherClassesIsRefused) {
  const auto plan_now = [&] { return raw_samples(class_folders(folder_ / ""), {.seed = 4}); };
  engine eng({.cpu_threads = 1, .memory_bytes = 64_MiB});
  auto first = eng.run(plan_now());
  for (int i = 0; i < 5; ++i) first.next();
  const state saved = first.save();
  auto second = eng.run(plan_now());
  second.restore(saved);
  for (const char* added : {"a", "cow", "zebra"}) {
    std::filesystem::create_directories(folder_ / added);
    auto third = eng.run(plan_now());
    EXPECT_THROW(third.restore(saved), failure) << added;
    std::filesystem::remove(folder_ / added);
  }
  std::filesystem::remove(folder_ / "empty");
  auto fourth = eng.run(plan_now());
  EXPECT_THROW(fourth.restore(saved), failure);
}

}  // namespace
}  // namespace millrace
