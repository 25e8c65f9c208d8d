#include "pipeline/formats/tar_writer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "millrace/millrace.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

std::span<const std::byte> as_content(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// A shard that was begun, with one sample in it.
class TarWriter : public ::testing::Test {
 protected:
  TarWriter() { out_.add("first.txt", "first"); }

  // The error of a refused call; the shard then has no name.
  std::string refused(const std::function<void()>& call) {
    try {
      call();
    } catch (const failure& e) {
      EXPECT_EQ(e.kind(), errc::usage) << e.what();
      EXPECT_NE(std::string(e.what()).find(path_), std::string::npos) << e.what();
      EXPECT_FALSE(std::filesystem::exists(path_));
      return e.what();
    }
    return "nothing was refused";
  }
  // The samples of the closed shard: "key=text " for each.
  std::string closed() {
    out_.close();
    engine eng({.cpu_threads = 1, .memory_bytes = 64_MiB});
    auto data = eng.run(shards({path_}, {.lanes = 1, .shuffle = false}) | untar() | group_by_key());
    std::string out;
    for (const sample& s : data) {
      out += s.key + "=" + std::string(s.fields.at(0).data.text()) + " ";
    }
    return out;
  }

  testing::temporary_folder folder_;
  std::string path_ = folder_ / "a.tar";
  tar_writer out_{path_};
};

TEST_F(TarWriter, AMemberThatLacksBytesIsNotEndedAndNothingFollowsIt) {
  out_.begin("second.txt", 10);
  out_.append(as_content("four"));
  const std::string missing = "6 of the 10 bytes of this member are missing";
  EXPECT_NE(refused([&] { out_.end(); }).find(missing), std::string::npos);
  EXPECT_NE(refused([&] { out_.add("third.txt", "3"); }).find(missing), std::string::npos);
  EXPECT_NE(refused([&] { out_.begin("third.txt", 1); }).find(missing), std::string::npos);
  EXPECT_NE(refused([&] { out_.finish(); }).find(missing), std::string::npos);
  EXPECT_NE(refused([&] { out_.close(); }).find(missing), std::string::npos);
  EXPECT_NE(refused([&] { out_.close_over(std::nullopt); }).find(missing), std::string::npos);
  out_.append(as_content("and 6."));
  out_.end();
  EXPECT_EQ(closed(), "first=first second=fourand 6. ");
}

TEST_F(TarWriter, AMemberIsEndedBeforeTheNextAlsoWhereItIsWhole) {
  out_.begin("second.txt", 4);
  out_.append(as_content("four"));
  EXPECT_NE(refused([&] { out_.add("third.txt", "3"); }).find("not ended"), std::string::npos);
  EXPECT_NE(refused([&] { out_.close(); }).find("not ended"), std::string::npos);
  out_.end();
  out_.begin("third.txt", 0);
  out_.end();
  EXPECT_EQ(closed(), "first=first second=four third= ");
}

TEST_F(TarWriter, AMemberThatGotMoreThanItsSizeLeavesTheShardWithoutAName) {
  out_.begin("second.txt", 4);
  out_.append(as_content("fo"));
  const std::string more = "got more than the 4 bytes";
  EXPECT_NE(refused([&] { out_.append(as_content("urs")); }).find(more), std::string::npos);
  EXPECT_NE(refused([&] { out_.append(as_content("ur")); }).find(more), std::string::npos);
  EXPECT_NE(refused([&] { out_.end(); }).find(more), std::string::npos);
  EXPECT_NE(refused([&] { out_.close(); }).find(more), std::string::npos);
}

TEST_F(TarWriter, BytesBelongToAMember) {
  EXPECT_NE(refused([&] { out_.append(as_content("x")); }).find("begin()"), std::string::npos);
  EXPECT_NE(refused([&] { out_.end(); }).find("begin()"), std::string::npos);
  EXPECT_EQ(closed(), "first=first ");
}

TEST_F(TarWriter, NothingIsAddedToAFinishedShard) {
  const archive_bytes once = out_.finish();
  EXPECT_NE(refused([&] { out_.add("late.txt", "x"); }).find("after finish()"), std::string::npos);
  const archive_bytes again = out_.finish();
  EXPECT_EQ(again.size, once.size);
  EXPECT_EQ(again.crc, once.crc);
  EXPECT_EQ(closed(), "first=first ");
  EXPECT_EQ(std::filesystem::file_size(path_), once.size);
}

TEST_F(TarWriter, IsClosedOnce) {
  EXPECT_EQ(closed(), "first=first ");
  for (const bool over : {false, true}) {
    try {
      over ? out_.close_over(std::nullopt) : out_.close();
      ADD_FAILURE() << "it was closed again";
    } catch (const failure& e) {
      EXPECT_EQ(e.kind(), errc::usage) << e.what();
      EXPECT_NE(std::string(e.what()).find("is closed"), std::string::npos) << e.what();
    }
  }
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(TarWriter, NamesUnderWhichNoReaderFindsASampleAreRefused) {
  const std::string zero("a\0.txt", 6);
  for (const std::string& name :
       {std::string(), zero, std::string("a.txt/"), std::string("/"), std::string("noext"),
        std::string(".hidden"), std::string("a.b/noext"), std::string("__x__"),
        std::string("__x__/a.txt"), std::string(33 << 10, 'a') + ".txt"}) {
    const std::string said = refused([&] { out_.add(name, "x"); });
    EXPECT_NE(said.find("readers find no sample"), std::string::npos) << said;
  }
  EXPECT_NE(refused([&] { out_.begin("a.txt", std::uint64_t{1} << 51); }).find("at most"),
            std::string::npos);
  out_.add(std::string(30 << 10, 'a') + ".txt", "long");
  EXPECT_EQ(closed(), "first=first " + std::string(30 << 10, 'a') + "=long ");
}

}  // namespace
}  // namespace millrace
