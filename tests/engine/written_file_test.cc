#include "engine/files/written_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <optional>

#include "engine/base/error.h"
#include "tests/support/forked.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

using testing::temporary_folder;

namespace fs = std::filesystem;

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder)) out.push_back(entry.path().filename());
  std::ranges::sort(out);
  return out;
}

template <class F>
error thrown_by(const F& f) {
  try {
    f();
  } catch (const failure& e) {
    return e.why();
  }
  return error(errc::internal, "nothing was thrown");
}

TEST(WrittenFile, AppearsWhenItIsComplete) {
  const temporary_folder folder;
  const std::string path = folder / "a";
  {
    written_file out(path);
    out.append("one ");
    out.append(std::string(3 << 20, 'x'));
    EXPECT_FALSE(fs::exists(path));
    out.commit();
  }
  EXPECT_EQ(content_of(path), "one " + std::string(3 << 20, 'x'));
  EXPECT_EQ(names_in(folder / ""), std::vector<std::string>{"a"});
}

TEST(WrittenFile, LeavesTheOldOneAndNothingElseWhenItIsGivenUp) {
  const temporary_folder folder;
  const std::string path = folder / "a";
  write_whole_file(path, "old");
  {
    written_file out(path);
    out.append("new");
  }
  EXPECT_EQ(content_of(path), "old");
  EXPECT_EQ(names_in(folder / ""), std::vector<std::string>{"a"});
}

TEST(WrittenFile, LeavesNothingWhenTheDiskIsFull) {
  const temporary_folder folder;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const error why = thrown_by([&] { write_whole_file(folder / "a", std::string(2 << 20, 'x')); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(why.kind(), errc::io_failed) << why.message();
  EXPECT_TRUE(names_in(folder / "").empty());
}

// A file of which a part is missing never gets its name, whatever is called next.
TEST(WrittenFile, IsNotWrittenOnAfterACallThatFailed) {
  const temporary_folder folder;
  {
    written_file out(folder / "a");
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const error why = thrown_by([&] { out.append(std::string(2 << 20, 'x')); });
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, SIG_DFL);
    EXPECT_EQ(why.kind(), errc::io_failed) << why.message();
    EXPECT_EQ(thrown_by([&] { out.append("y"); }).kind(), errc::usage);
    EXPECT_EQ(thrown_by([&] { out.flush(); }).kind(), errc::usage);
    EXPECT_EQ(thrown_by([&] { out.commit(); }).kind(), errc::usage);
  }
  EXPECT_TRUE(names_in(folder / "").empty());
}

TEST(WrittenFile, BelongsToTheProcessThatBeganIt) {
  const temporary_folder folder;
  const std::string path = folder / "a";
  std::optional<written_file> out(path);
  out->append("from the parent");
  EXPECT_EQ(testing::status_of_child([&] {
              const bool refused =
                  thrown_by([&] { out->append(", from the child"); }).kind() == errc::usage &&
                  thrown_by([&] { out->commit(); }).kind() == errc::usage;
              out.reset();
              write_whole_file(folder / "b", "the child's own");
              remove_own_partial_files();
              return refused ? 0 : 1;
            }),
            0);
  EXPECT_EQ(names_in(folder / "").size(), 2U);  // and not yet under its name
  out->commit();
  EXPECT_EQ(content_of(path), "from the parent");
  EXPECT_EQ(content_of(folder / "b"), "the child's own");
}

TEST(WrittenFile, KeepsTheModeAndTheLinkOfWhatItReplaces) {
  const temporary_folder folder;
  const std::string path = folder / "a";
  write_whole_file(path, "old");
  chmod(path.c_str(), 0600);
  fs::create_symlink("a", folder / "link");
  write_whole_file(folder / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(content_of(path), "new");
  EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(WrittenFile, DevicesAreWrittenInPlace) {
  write_whole_file("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_EQ(thrown_by([] { write_whole_file("/dev/full", "x"); }).kind(), errc::io_failed);
}

TEST(WrittenFile, SaysWhyItCannotBeMade) {
  const temporary_folder folder;
  EXPECT_EQ(thrown_by([&] { written_file(folder / "none/a"); }).kind(), errc::not_found);
  EXPECT_EQ(thrown_by([&] { written_file(folder / ""); }).kind(), errc::usage);
}

TEST(WrittenFile, PartialFilesOfTheKilledAreRemovedAndThoseOfTheLivingStay) {
  const temporary_folder folder;
  const std::string path = folder / "a";
  std::ofstream(path + ".partial.999999") << "left";
  std::ofstream(folder / "b.partial.999999") << "of another file";
  std::ofstream(path + ".partial.999999-2") << "left as well";
  const std::vector<std::string> others = {"a.partial.", "a.partial.-1", "a.partial.1-",
                                           "a.partial.1-2-3", "a.partial.notes"};
  for (const std::string& name : others) std::ofstream(folder / name) << "the user's";
  written_file living(path);
  living.append("living");
  // flock() tells open file descriptions apart, so a second one of this process is as another's.
  remove_partial_files(std::array{path});
  EXPECT_EQ(names_in(folder / "").size(), 2U + others.size());
  living.commit();
  EXPECT_EQ(content_of(path), "living");
  std::vector<std::string> left{"a", "b.partial.999999"};
  left.insert(left.begin() + 1, others.begin(), others.end());
  EXPECT_EQ(names_in(folder / ""), left);
}

bool is_text(std::string_view head) {
  return head.starts_with("text");
}
constexpr file_kind text_kind{"a text", is_text};

TEST(CheckOutput, RefusesOtherKindsAndInputs) {
  const temporary_folder folder;
  const std::string path = folder / "a";
  const std::vector<std::string> none;
  check_output(path, text_kind, none);
  write_whole_file(path, "");
  check_output(path, text_kind, none);
  write_whole_file(path, "text 1");
  check_output(path, text_kind, none);
  check_output("/dev/null", text_kind, none);
  fs::create_hard_link(path, folder / "same");
  const std::vector<std::string> inputs{folder / "missing", folder / "same"};
  EXPECT_EQ(thrown_by([&] { check_output(path, text_kind, inputs); }).kind(), errc::usage);
  write_whole_file(path, "a photo");
  EXPECT_EQ(thrown_by([&] { check_output(path, text_kind, none); }).kind(), errc::usage);
}

TEST(WrittenFile, OneThatReplacesNothingLeavesWhatIsThere) {
  const temporary_folder folder;
  const std::string path = folder / "a";
  written_file first(path);
  first.append("first");
  written_file second(path);
  second.append("second");
  first.commit(false);
  EXPECT_EQ(thrown_by([&] { second.commit(false); }).kind(), errc::usage);
  EXPECT_EQ(content_of(path), "first");
  EXPECT_EQ(names_in(folder / ""),
            (std::vector<std::string>{"a", "a.partial." + std::to_string(getpid()) + "-1"}));
}

TEST(WrittenFile, ReplacesWhatWasThereBeforeAndNothingElse) {
  const temporary_folder folder;
  const std::string path = folder / "a";
  const auto write_over = [&](const std::optional<file_stamp>& before) {
    written_file out(path);
    out.append("new");
    out.commit_over(before);
  };
  EXPECT_FALSE(stamp_of_file(path));
  write_over(std::nullopt);
  EXPECT_EQ(thrown_by([&] { write_over(std::nullopt); }).kind(), errc::usage);
  const auto before = stamp_of_file(path);
  ASSERT_TRUE(before);
  write_over(before);
  write_whole_file(path, "of another");
  EXPECT_EQ(thrown_by([&] { write_over(before); }).kind(), errc::usage);
  EXPECT_EQ(content_of(path), "of another");
  fs::remove(path);
  write_over(before);
  EXPECT_EQ(content_of(path), "new");
}

TEST(WrittenFile, IsWrittenNoMoreOnceItHasItsName) {
  const temporary_folder folder;
  for (const std::string& path : {folder / "a", std::string("/dev/null")}) {
    written_file out(path);
    out.append("all");
    out.commit();
    EXPECT_EQ(thrown_by([&] { out.append("more"); }).kind(), errc::usage) << path;
    EXPECT_EQ(thrown_by([&] { out.commit(); }).kind(), errc::usage) << path;
  }
  EXPECT_EQ(content_of(folder / "a"), "all");
}

TEST(WrittenFile, IsKnownToBeWrittenByAnotherProcess) {
  const temporary_folder folder;
  const std::string path = folder / "a";
  written_file own(path);
  EXPECT_FALSE(partial_of_another(std::array{path}));
  const std::string other = (folder / "") + "/b";  // with "//"
  const written_file spelled_otherwise(other);
  EXPECT_FALSE(partial_of_another(std::array{other}));
  std::ofstream(path + ".partial.1") << "of one that was killed";
  EXPECT_FALSE(partial_of_another(std::array{path}));
  const int living = open((path + ".partial.2").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(flock(living, LOCK_EX), 0);
  EXPECT_EQ(partial_of_another(std::array{other, path}), path + ".partial.2");
  close(living);
  EXPECT_FALSE(partial_of_another(std::array{path}));
}

}  // namespace
}  // namespace millrace
