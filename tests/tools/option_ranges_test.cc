#include "tests/support/option_ranges.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "millrace/millrace.h"
#include "millrace/tools.h"
#include "tests/support/temporary_folder.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

template <class F>
void members(shard_writer_options& o, F& f) {
  auto& [pattern, most_count, most_bytes, first_shard, overwrite, written] = o;
  f("most_count", most_count), f("most_bytes", most_bytes), f("first_shard", first_shard);
}
template <class F>
void members(pack_options& o, F& f) {
  auto& [from, pattern, most_bytes, most_count, shuffle, resize, quality, restart, part, parts,
         compat, threads, of_one_name, overwrite, planned, say, progress, stop] = o;
  f("most_bytes", most_bytes), f("most_count", most_count), f("resize", resize);
  f("quality", quality), f("restart", restart), f("part", part), f("parts", parts);
  f("threads", threads);
}
template <class F>
void members(repack_options& o, F& f) {
  auto& [urls, pattern, restart, overwrite, say, progress, stop] = o;
  f("restart", restart);
}

class ToolOptionRanges : public ::testing::Test {
 protected:
  template <class O, class Use>
  static void expect_served_or_refused(const O& usual, Use use) {
    testing::expect_served_or_refused(usual, use, [](O& o, auto& f) { members(o, f); });
  }

  // Removes the shards of an earlier value, which would be in the way.
  void empty(const std::string& name) const {
    std::filesystem::remove_all(folder_ / name);
    std::filesystem::create_directory(folder_ / name);
  }

  testing::temporary_folder folder_;
};

TEST_F(ToolOptionRanges, OfWriting) {
  expect_served_or_refused(shard_writer_options{.pattern = folder_ / "a/a-%d.tar"},
                           [&](const shard_writer_options& o) {
                             empty("a");
                             shard_writer out(o);
                             for (const char* key : {"a", "b"}) out.write(key, {{"txt", "text"}});
                             out.close();
                           });
}

TEST_F(ToolOptionRanges, OfPacking) {
  const std::string shard = folder_ / "fake.tar";
  write_fake_shards({shard}, {.samples = 4, .classes = 2, .size = 24});
  engine eng({.cpu_threads = 1, .memory_bytes = 64_MiB});
  expect_served_or_refused(repack_options{.urls = {shard}, .pattern = folder_ / "r/r-%d.tar"},
                           [&](const repack_options& o) {
                             empty("r");
                             repack_shards(eng, o);
                           });
  std::filesystem::create_directories(folder_ / "tree/a");
  auto data = eng.run(shards({shard}) | untar() | group_by_key());
  while (const auto item = data.next()) {
    const bytes& image = item->find("jpg")->data;
    std::ofstream(folder_ / ("tree/a/" + item->key + ".jpg"))
        .write(reinterpret_cast<const char*>(image.data()), std::ssize(image));
  }
  expect_served_or_refused(
      pack_options{.from = folder_ / "tree", .pattern = folder_ / "p/p-%d.tar", .resize = 16},
      [&](const pack_options& o) {
        empty("p");
        pack_shards(o);
      });
}

}  // namespace
}  // namespace millrace
