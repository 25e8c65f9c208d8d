#include "engine/host/program.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/printable.h"

namespace millrace {
namespace {

TEST(Program, ClosedStandardStreamsAreOpened) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(fd);
    char byte = 0;
    open_standard_streams();
    const bool all = read(STDIN_FILENO, &byte, 1) < 0 && write(STDOUT_FILENO, "x", 1) < 0 &&
                     write(STDERR_FILENO, "x", 1) == 1 && dup(STDIN_FILENO) > STDERR_FILENO;
    _exit(all ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Printable, ControlCharactersAndBrokenBytesAreEscaped) {
  EXPECT_EQ(printable("a\x1b[2J\n\x7f"), "a\\x1b[2J\\x0a\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J");  // CSI in one character
  EXPECT_EQ(printable("\x9b"
                      "2J"),
            "\\x9b2J");
  EXPECT_EQ(printable("Käse \u00a0 \U0001f40d"), "Käse \u00a0 \U0001f40d");
  EXPECT_EQ(printable("\xc0\xaf \xed\xa0\x80 \xf5\x80\x80\x80 \xe2\x82"),
            "\\xc0\\xaf \\xed\\xa0\\x80 \\xf5\\x80\\x80\\x80 \\xe2\\x82");
}

// Of no width, or of the direction of others: a name with them looks like another one.
TEST(Printable, WhatIsNotSeenIsEscaped) {
  EXPECT_EQ(printable("\ufeffa.tar"), "\\xef\\xbb\\xbfa.tar");
  EXPECT_EQ(printable("a\u202erat.exe"), "a\\xe2\\x80\\xaerat.exe");
  for (const char* unseen :
       {"\u00ad", "\u061c", "\u180e", "\u200b", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a",
        "\u2060", "\u2066", "\u2069", "\ufff9", "\U000e0001", "\U000e0041"}) {
    EXPECT_TRUE(printable(unseen).starts_with("\\x")) << printable(unseen);
  }
  for (const char* seen : {"\u00e4", "\u05d0", "\u0627", "\u2010", "\u202f", "\u200d", "\ufffd",
                           "\u4e2d", "\U0001f40d"}) {
    EXPECT_EQ(printable(seen), seen);
  }
}

}  // namespace
}  // namespace millrace
