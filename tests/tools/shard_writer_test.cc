#include "tools/write/shard_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>

#include "io/hashes.h"
#include "millrace/millrace.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

class ShardWriter : public ::testing::Test {
 protected:
  shard_writer_options named(const std::string& pattern) { return {.pattern = folder_ / pattern}; }

  // The kind and text of the error that a call is refused with.
  static std::string refused(const std::function<void()>& call, errc kind = errc::usage) {
    try {
      call();
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), kind) << f.what();
      return f.what();
    }
    return "nothing was refused";
  }
  // The names of the files in the folder.
  std::vector<std::string> files() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "")) {
      out.push_back(entry.path().filename().string());
    }
    std::ranges::sort(out);
    return out;
  }
  static std::string content_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // The samples of a shard, "key: extension=text extension=text".
  static std::vector<std::string> samples_of(const std::string& path) {
    engine eng({.cpu_threads = 1, .memory_bytes = 64_MiB});
    auto data = eng.run(shards({path}, {.lanes = 1, .shuffle = false}) | untar() | group_by_key());
    std::vector<std::string> out;
    for (const sample& s : data) {
      std::string& line = out.emplace_back(s.key + ":");
      for (const field& f : s.fields) line += " " + f.extension + "=" + std::string(f.data.text());
    }
    return out;
  }

  testing::temporary_folder folder_;
};

using names = std::vector<std::string>;

TEST_F(ShardWriter, EndsAShardAtItsCountAndSaysWhatItWrote) {
  names told;
  auto options = named("a-%06d.tar");
  options.most_count = 3;
  options.written = [&](const written_shard& s) { told.push_back(s.path); };
  shard_writer out(options);
  for (int i = 0; i < 7; ++i) out.write("k" + std::to_string(i), {{"txt", "four"}, {"cls", "7"}});
  EXPECT_EQ(out.shards().size(), 2U);
  const auto written = out.close();
  ASSERT_EQ(written.size(), 3U);
  EXPECT_EQ(files(), (names{"a-000000.tar", "a-000001.tar", "a-000002.tar"}));
  EXPECT_EQ(told, (names{written[0].path, written[1].path, written[2].path}));
  const std::uint64_t counts[] = {3, 3, 1};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(written[i].samples, counts[i]);
    EXPECT_EQ(written[i].payload_bytes, 5 * counts[i]);
    EXPECT_EQ(written[i].bytes, std::filesystem::file_size(written[i].path));
  }
  EXPECT_EQ(samples_of(written[2].path), names{"k6: txt=four cls=7"});
  EXPECT_EQ(out.close().size(), 3U);
}

TEST_F(ShardWriter, MayBeClosedByTheFunctionThatItTells) {
  shard_writer* writer = nullptr;
  auto options = named("a-%d.tar");
  options.most_count = 1;
  options.written = [&](const written_shard&) { writer->close(); };
  shard_writer out(options);
  writer = &out;
  out.write("k0", {{"txt", "zero"}});
  EXPECT_THROW(out.write("k1", {{"txt", "one"}}), failure);
  EXPECT_EQ(out.close().size(), 1U);
}

TEST_F(ShardWriter, EndsAShardAtItsPayload) {
  auto options = named("a-{7..9}.tar");
  options.most_bytes = 10;
  shard_writer out(options);
  const std::vector<std::byte> five(5);
  const std::vector<std::uint8_t> fifty(50);
  out.write("a", {{"bin", five}});
  out.write("b", {{"bin", five}});   // ten: full
  out.write("c", {{"bin", fifty}});  // full by itself
  out.write("d", {{"bin", five}});
  out.close();
  EXPECT_EQ(files(), (names{"a-7.tar", "a-8.tar", "a-9.tar"}));
  EXPECT_EQ(out.shards()[0].samples, 2U);
  EXPECT_EQ(out.shards()[1].payload_bytes, 50U);
}

// The digests are of the shards that WebDataset 1.0.2 writes with mtime=0.
TEST_F(ShardWriter, WritesWhatWebDatasetWrites) {
  auto options = named("a-%06d.tar");
  options.most_count = 3;
  shard_writer out(options);
  for (int i = 0; i < 7; ++i) {
    const std::string number = std::to_string(i);
    out.write("0000000" + number, {{"cls", number},
                                   {"jpg", std::string_view("\xff\xd8x")},
                                   {"json", "{\"i\": " + number + "}"}});
  }
  names digests;
  for (const written_shard& s : out.close()) {
    digests.push_back(hex(digest_of(hash_algorithm::md5, content_of(s.path))));
  }
  EXPECT_EQ(digests, (names{"df32fdc98f32c0a4fdf6692cf52b39d4", "0ca6db732b22633ca96317513943b7e1",
                            "fa78cd80322170e45a806ebcee153296"}));
}

TEST_F(ShardWriter, ASampleThatWasReadIsWrittenAsItIs) {
  {
    shard_writer first(named("first.tar"));
    first.write("d/a", {{"seg.PNG", "png"}, {"jpg", "jpeg"}});
    first.write("d/b", {{"jpg", ""}});
    first.close();
  }
  shard_writer second(named("second.tar"));
  engine eng({.cpu_threads = 1, .memory_bytes = 64_MiB});
  const lane_plan<sample> all =
      shards({folder_ / "first.tar"}, {.lanes = 1, .shuffle = false}) | untar() | group_by_key();
  for (const sample& s : eng.run(all)) second.write(s);
  second.close();
  EXPECT_EQ(content_of(folder_ / "first.tar"), content_of(folder_ / "second.tar"));
  EXPECT_EQ(samples_of(folder_ / "second.tar"), (names{"d/a: seg.png=png jpg=jpeg", "d/b: jpg="}));
}

TEST_F(ShardWriter, RefusesWhatReadersWouldNotReadAsThisSample) {
  shard_writer out(named("a.tar"));
  out.write("a", {{"txt", "1"}});
  const auto why = [&](const std::string& key, const std::vector<field_view>& fields) {
    return refused([&] { out.write(key, fields); });
  };
  EXPECT_NE(why("b", {}).find("a sample without a field"), std::string::npos);
  EXPECT_NE(why("b", {{"jpg", "1"}, {"JPG", "2"}}).find("two fields of the extension 'jpg'"),
            std::string::npos);
  EXPECT_NE(why("b.c", {{"jpg", "1"}}).find("readers take 'b.c.jpg' for another key"),
            std::string::npos);
  EXPECT_NE(why("b", {{"x/jpg", "1"}}).find("readers"), std::string::npos);
  for (const char* wrong : {"", ".jpg", "."}) {
    EXPECT_NE(why("b", {{wrong, "1"}}).find("is not an extension"), std::string::npos) << wrong;
  }
  for (const char* wrong : {"/b", "../b", "b/../c", "b/.."}) {
    EXPECT_NE(why(wrong, {{"jpg", "1"}}).find("leads out of the folder"), std::string::npos)
        << wrong;
  }
  EXPECT_NE(why("", {{"jpg", "1"}}).find("it has no extension after a key"), std::string::npos);
  EXPECT_NE(why("__x__/a", {{"jpg", "1"}}).find("it is __x__"), std::string::npos);
  EXPECT_NE(why("a", {{"jpg", "1"}}).find("the sample before it has the same key"),
            std::string::npos);
  EXPECT_NE(why("b", std::vector<field_view>(1001, {"x", "1"})).find("1001 fields (at most 1000)"),
            std::string::npos);
  out.write("b", {{"txt", "2"}});  // none of them is in the shard
  out.close();
  EXPECT_EQ(samples_of(folder_ / "a.tar"), (names{"a: txt=1", "b: txt=2"}));
  EXPECT_NE(refused([&] { out.write("c", {{"txt", "3"}}); }).find("closed"), std::string::npos);
}

TEST_F(ShardWriter, OptionsOutOfRangeAreRefused) {
  EXPECT_NE(refused([&] {
              shard_writer({.pattern = folder_ / "a-%06d.tar", .most_count = 0});
            }).find("shard_writer_options.most_count"),
            std::string::npos);
  EXPECT_NE(refused([&] {
              shard_writer({.pattern = folder_ / "a-%06d.tar", .most_bytes = 0});
            }).find("shard_writer_options.most_bytes"),
            std::string::npos);
  EXPECT_NE(refused([&] {
              shard_writer({.pattern = folder_ / "a-%06d.tar", .first_shard = -1});
            }).find("shard_writer_options.first_shard"),
            std::string::npos);
  refused([&] { shard_writer({.pattern = folder_ / "a-%x.tar"}); });
  refused([&] { shard_writer({.pattern = folder_ / "a-{:06d}.tar"}); });
  refused([&] { shard_writer({.pattern = folder_ / "none/a-%06d.tar"}); }, errc::not_found);
  EXPECT_EQ(files(), names{});
}

TEST_F(ShardWriter, WithoutASampleOrWithoutCloseLeavesNoShard) {
  shard_writer(named("a-%06d.tar")).close();
  EXPECT_EQ(files(), names{});
  {
    auto options = named("a-%06d.tar");
    options.most_count = 1;
    shard_writer out(options);
    out.write("a", {{"txt", "1"}});
    out.write("b", {{"txt", "2"}});
  }
  EXPECT_EQ(files(), names{"a-000000.tar"});
}

TEST_F(ShardWriter, ReplacesShardsOnlyIfItIsToldTo) {
  const auto write = [&](int samples, bool overwrite, std::int64_t first = 0) {
    auto options = named("a-%06d.tar");
    options.most_count = 1;
    options.overwrite = overwrite;
    options.first_shard = first;
    shard_writer out(options);
    for (int i = 0; i < samples; ++i) out.write("k" + std::to_string(i), {{"txt", "text"}});
    out.close();
  };
  write(2, false);
  EXPECT_NE(refused([&] { write(1, false); }).find("set shard_writer_options.overwrite"),
            std::string::npos);
  write(1, false, 2);  // behind them
  EXPECT_EQ(files(), (names{"a-000000.tar", "a-000001.tar", "a-000002.tar"}));
  write(3, true);
  auto options = named("a-%06d.tar");
  options.overwrite = true;
  shard_writer out(options);
  out.write("k0", {{"txt", "text"}});
  for (int call = 0; call < 2; ++call) {
    EXPECT_NE(refused([&] { out.close(); }).find("2 shards of an older run would follow"),
              std::string::npos);
  }
  EXPECT_EQ(files().size(), 3U);
}

TEST_F(ShardWriter, ABraceRangeThatIsTooShortLosesNoSample) {
  auto options = named("a-{0..1}.tar");
  options.most_count = 1;
  shard_writer out(options);
  out.write("a", {{"txt", "1"}});
  out.write("b", {{"txt", "2"}});
  EXPECT_NE(refused([&] { out.write("c", {{"txt", "3"}}); }).find("the pattern names 2 shards"),
            std::string::npos);
  EXPECT_EQ(out.close().size(), 2U);
}

}  // namespace
}  // namespace millrace
