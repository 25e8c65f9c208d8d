#include "engine/error.h"

#include <gtest/gtest.h>

#include "engine/result.h"

namespace millrace {
namespace {

TEST(Error, SaysKindWhatWhereAndWhatToDoInOneLine) {
  error e(errc::truncated, "the archive ends within a member");
  e.at("http://host/a.tar").offset(1536).key("img/7").hint("fetch it again");
  EXPECT_EQ(
      e.message(),
      "truncated: the archive ends within a member, at http://host/a.tar byte 1536, key img/7; "
      "fetch it again");
}

TEST(Error, LeavesSecretsOut) {
  EXPECT_EQ(redacted("http://me:secret@host:80/a.tar?token=secret#x"), "http://host:80/a.tar?...");
  EXPECT_EQ(redacted("https://host?sig=secret"), "https://host?...");
  EXPECT_EQ(redacted("/a/path?with=odd@name"), "/a/path?with=odd@name");
  const error e = error(errc::not_found, "x").at("s3://key:secret@bucket/o?X-Amz-Signature=secret");
  EXPECT_EQ(e.message().find("secret"), std::string::npos);
}

TEST(Error, ControlBytesOfNamesDoNotReachTheTerminal) {
  const error e = error(errc::bad_image, "x").key("a\x1b[2Jb\n");
  EXPECT_EQ(e.message(), "bad_image: x, key a\\x1b[2Jb\\x0a");
}

TEST(Error, CopiesAreRefinedApart) {
  const error base(errc::cut, "cut");
  error a = base;
  a.key("a");
  EXPECT_EQ(base.sample_key(), "");
  EXPECT_EQ(a.sample_key(), "a");
}

TEST(Error, ValueOfAFailedResultThrowsIt) {
  const result<int> failed = error(errc::too_large, "too large");
  try {
    static_cast<void>(failed.value());
    FAIL() << "nothing was thrown";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::too_large);
  }
}

TEST(Error, ExitCodesAreThoseOfTheContract) {
  EXPECT_EQ(exit_code(errc::bad_setting), 2);
  EXPECT_EQ(exit_code(errc::too_many_skipped), 3);
  EXPECT_EQ(exit_code(errc::connect_failed), 4);
  EXPECT_EQ(exit_code(errc::truncated), 5);
  EXPECT_EQ(exit_code(errc::peer_lost), 6);
  EXPECT_EQ(exit_code(errc::internal), 1);
}

}  // namespace
}  // namespace millrace
