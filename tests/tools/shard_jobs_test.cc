// Verifying and indexing shards as programs do it, by <millrace/tools.h>.
#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>
#include <stop_token>

#include "millrace/millrace.h"
#include "millrace/tools.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

class ShardJobs : public ::testing::Test {
 protected:
  ShardJobs() {
    shard_writer out({.pattern = folder_ / "a-%06d.tar", .most_count = 2});
    for (int i = 0; i < 6; ++i) {
      out.write("k" + std::to_string(i), {{"txt", "text"}, {"cls", "1"}});
    }
    for (const written_shard& s : out.close()) urls_.push_back(s.path);
  }

  // Of what is thrown; `internal` if nothing is.
  template <class F>
  static errc kind_of_call(const F& f) {
    try {
      f();
    } catch (const failure& e) {
      return e.kind();
    }
    return errc::internal;
  }

  testing::temporary_folder folder_;
  std::vector<std::string> urls_;
  engine eng_{{.cpu_threads = 1, .memory_bytes = 64_MiB}};
};

TEST_F(ShardJobs, WhatIsWellIsVerifiedAgainstItsIndex) {
  const std::string path = folder_ / "a.json";
  job_progress done;
  std::vector<std::string> read;
  const index_report made =
      create_index(eng_, urls_, path,
                   {.name = "a",
                    .info = "six samples",
                    .offsets = true,
                    .read = [&](const std::string& url) { read.push_back(url); },
                    .progress = &done});
  EXPECT_EQ(made.shards, 3U);
  EXPECT_EQ(made.samples, 6U);
  EXPECT_EQ(made.bytes, 3 * 10240U);
  EXPECT_EQ(made.offsets, folder_ / "a.offsets");
  EXPECT_FALSE(made.interrupted);
  EXPECT_EQ(read, urls_);
  EXPECT_EQ(done.shards(), 3U);
  EXPECT_EQ(done.bytes(), 3 * 10240U);

  const shard_index index = read_index(eng_, path);
  EXPECT_EQ(index.info, "six samples");
  EXPECT_TRUE(index.has_offsets());
  const verify_report found = verify_shards(
      eng_, urls_, {.index = &index, .are_all = true, .required = {{"cls"}}, .progress = &done});
  EXPECT_TRUE(found.is_well());
  EXPECT_EQ(found.samples, 6U);
  EXPECT_EQ(found.payload_bytes, 6 * 5U);
  EXPECT_EQ(done.shards(), 3U);
}

TEST_F(ShardJobs, EachProblemIsFoundOnce) {
  std::filesystem::resize_file(urls_[1], 1024);
  std::filesystem::remove(urls_[2]);
  std::vector<errc> kinds;
  const verify_report found =
      verify_shards(eng_, urls_, {.required = {{"jpg", "png"}}, .found = [&](const error& why) {
                                    kinds.push_back(why.kind());
                                  }});
  EXPECT_FALSE(found.is_well());
  EXPECT_EQ(found.problems, kinds.size());
  EXPECT_EQ(kinds, (std::vector{errc::missing_field, errc::truncated, errc::not_found}));
  EXPECT_EQ(found.unreadable, 1U);
  EXPECT_THROW(verify_shards(eng_, {}), failure);
}

TEST_F(ShardJobs, WhatIsStoppedSaysSoAndWritesNothing) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_TRUE(verify_shards(eng_, urls_, {.stop = stop.get_token()}).interrupted);
  EXPECT_TRUE(
      create_index(eng_, urls_, folder_ / "a.json", {.stop = stop.get_token()}).interrupted);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "a.json"));
}

TEST_F(ShardJobs, AnIndexIsChangedAndThePreviousOneIsKept) {
  const std::string path = folder_ / "a.json";
  create_index(eng_, urls_, path, {.name = "a", .offsets = true});
  std::string base;
  const index_update made = update_index(
      eng_, path,
      {.name = "b", .rebase = true, .rebasing = [&](const std::string& to) { base = to; }});
  EXPECT_EQ(made.shards, 3U);
  EXPECT_EQ(made.copy, path + ".bak");
  EXPECT_EQ(base, "file://" + std::filesystem::path(folder_ / "a").parent_path().string());
  const shard_index index = read_index(eng_, path);
  EXPECT_EQ(index.name, "b");
  EXPECT_TRUE(index.has_offsets());
  EXPECT_EQ(read_index(eng_, made.copy).name, "a");
  EXPECT_EQ(kind_of_call([&] { update_index(eng_, path, {.folder = "x", .no_folder = true}); }),
            errc::usage);
}

TEST_F(ShardJobs, FieldsThatNoSampleCanHaveAreNotRequired) {
  for (const char* extension : {"", ".txt", "TXT", " txt"}) {
    EXPECT_EQ(kind_of_call([&] { verify_shards(eng_, urls_, {.required = {{extension}}}); }),
              errc::usage)
        << extension;
  }
  EXPECT_EQ(kind_of_call([&] { verify_shards(eng_, urls_, {.required = {{}}}); }), errc::usage);
  EXPECT_TRUE(verify_shards(eng_, urls_, {.required = {{"png", "txt"}}}).is_well());
}

TEST_F(ShardJobs, ShardsAreWrittenAgainAndPackedFromFiles) {
  job_progress done;
  EXPECT_EQ(
      repack_shards(
          eng_, {.urls = urls_, .pattern = folder_ / "b-%06d.tar", .restart = 4, .progress = &done})
          .samples,
      6U);
  EXPECT_EQ(done.shards(), 3U);
  for (const char* name : {"a.txt", "b.txt"}) {
    std::filesystem::create_directories(folder_ / "in/class");
    static_cast<void>(folder_.write(std::string("in/class/") + name, "text"));
  }
  std::vector<std::string> said;
  const pack_report packed = pack_shards({.from = folder_ / "in",
                                          .pattern = folder_ / "c-%06d.tar",
                                          .say = [&](const std::string& s) { said.push_back(s); },
                                          .progress = &done});
  EXPECT_EQ(packed.samples, 2U);
  EXPECT_EQ(said.size(), 1U);
  EXPECT_EQ(done.bytes(), 2 * 5U);  // a text and its class
  EXPECT_THROW(pack_shards({.from = folder_ / "in", .pattern = folder_ / "d.tar", .most_count = 0}),
               failure);
  const auto pack = [&](const pack_options& how) {
    return kind_of_call([&] { pack_shards(how); });
  };
  EXPECT_EQ(pack({.from = folder_ / "in"}), errc::usage);
  for (const int threads : {0, 2}) {
    EXPECT_EQ(pack({.from = folder_ / "in",
                    .pattern = folder_ / ("e" + std::to_string(threads) + "-%06d.tar"),
                    .threads = threads,
                    .say = [](const std::string& /*line*/) { throw std::logic_error("mine"); }}),
              errc::uncaught);
  }
}

}  // namespace
}  // namespace millrace
