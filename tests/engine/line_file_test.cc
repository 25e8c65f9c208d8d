#include "engine/files/line_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(LineFile, AHalfLineIsEndedBeforeTheNext) {
  const testing::temporary_folder folder;
  const std::string path = folder / "list";
  for (const std::string had : {"", "one\n", "one\nha"}) {
    std::ofstream(path) << had;
    ASSERT_TRUE(line_file(path, "a list").add("two\n"));
    EXPECT_EQ(text_of(path), had + (had.ends_with('a') ? "\n" : "") + "two\n");
  }
}

TEST(LineFile, WhatCannotBeWrittenIsNamedWithWhatToDo) {
  const testing::temporary_folder folder;
  const auto refusal_of = [](const std::string& path) -> std::string {
    try {
      const line_file opened(path, "a list");
      return "none";
    } catch (const failure& f) {
      return f.why().message();
    }
  };
  EXPECT_NE(refusal_of(folder / "none/list").find("cannot write a list, at "), std::string::npos);
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(refusal_of(pipe).find("start the reader of this pipe first"), std::string::npos);
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  const line_file into(pipe, "a list");
  EXPECT_TRUE(into.add("one\n"));
  close(reader);
  const auto added = into.add("two\n");
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().what_to_do(), "check the reader of this pipe");
  std::signal(SIGPIPE, before);
  const auto full = line_file("/dev/full", "a list").add("one\n");
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().what_to_do(), "make room");
}

TEST(LineFile, APipeMayTakeALongLineInParts) {
  const testing::temporary_folder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  const line_file into(pipe, "a list");
  ASSERT_EQ(fcntl(reader, F_SETPIPE_SZ, 4096), 4096);
  ASSERT_EQ(fcntl(reader, F_SETFL, 0), 0);
  const std::string line = std::string(50'000, 'x') + '\n';
  std::string got(2 * line.size(), '\0');
  std::size_t size = 0;
  std::jthread reading([&] {
    while (size < got.size()) {
      const ssize_t n = read(reader, got.data() + size, got.size() - size);
      if (n <= 0) break;
      size += static_cast<std::size_t>(n);
    }
  });
  EXPECT_TRUE(into.add(line));
  EXPECT_TRUE(into.add(line));
  reading.join();
  close(reader);
  EXPECT_EQ(got, line + line);
}

}  // namespace
}  // namespace millrace
