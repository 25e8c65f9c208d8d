#include "engine/base/error.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <system_error>

#include "engine/base/result.h"

namespace millrace {
namespace {

template <class E>
error caught(const E& thrown) {
  try {
    throw thrown;
  } catch (...) {
    return error_of(std::current_exception());
  }
}

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
  EXPECT_EQ(redacted("https://host/x.tar%3Fsv%3D2020%26sig%3Dsecret"), "https://host/x.tar?...");
  EXPECT_EQ(redacted("https://host/why%3F.tar"), "https://host/why%3F.tar");
  EXPECT_EQ(redacted("/a/path?with=odd@name"), "/a/path?with=odd@name");
  EXPECT_EQ(redacted("http://host:80/o@v2"), "http://host:80/o@v2");
  EXPECT_EQ(redacted("http://[::1]:80/o@v2"), "http://[::1]:80/o@v2");
  EXPECT_EQ(redacted("hf://datasets/a/b@main/c"), "hf://datasets/a/b@main/c");
  const error e = error(errc::not_found, "x").at("s3://key:secret@bucket/o?X-Amz-Signature=secret");
  EXPECT_EQ(e.message().find("secret"), std::string::npos);
}

TEST(Error, SecretsInUrlsThatAreWrittenWrongAreRedacted) {
  for (const char* url :
       {"http://us:se/cret@host/x", "http://us:se?cret@host/x", "http://us:se#cret@host/x",
        "http:/us:secret@host/x", "http:us:secret@host/x", "//us:secret@host/x",
        "https://us:se/c@ret@host/x?sig=cret", "http://:secret/@host/x", "http:///us:secret@host/x",
        "http//us:secret@host/x", "https//us:se/cret@host/x"}) {
    EXPECT_EQ(redacted(url).find("cret"), std::string::npos) << redacted(url);
    EXPECT_NE(redacted(url).find("host/x"), std::string::npos) << redacted(url);
  }
}

TEST(Error, EveryUrlOfATextIsRedacted) {
  const std::string kept[] = {"h/a.tar", "host/x"};
  const std::string secret = "http://us:cret@host/x?sig=cret";
  for (const std::string between : {"::", ",", " ", "/", "|", "::://", "?", "?a=", "{", "'",
                                    "::-::", "::/path?x::", "::file:///x,", "#f,"}) {
    for (const std::string scheme : {"http", "HTTP", "s3", "http+unix", "Ais"}) {
      const std::string text = "{" + scheme + "://h/a.tar" + between + secret + between + secret;
      EXPECT_EQ(redacted(text).find("cret"), std::string::npos) << redacted(text);
      EXPECT_NE(redacted(text).find(kept[0]), std::string::npos) << redacted(text);
    }
  }
  EXPECT_EQ(redacted("http://h/a.tar::http://us:cret@host/x"), "http://h/a.tar::http://host/x");
  EXPECT_EQ(redacted("{http://a/x?s=cret,HTTP://us:cret@h/y"), "{http://a/x?...,HTTP://h/y");
  EXPECT_EQ(redacted("http://proxy/http://us:cret@h/y"), "http://proxy/http://h/y");
  EXPECT_EQ(redacted("http://h/x?u=http://us:cret@h/y"), "http://h/x?...");
  EXPECT_EQ(redacted("http://us:cr::et@h/y,http://b:et/"), "http://h/y,http://b:et/");
}

TEST(Error, OfACommandOnlyTheProgramIsTold) {
  EXPECT_EQ(redacted("pipe:cat"), "pipe:cat");
  for (const char* text :
       {"pipe:curl -H 'cret' http://us:cret@h/x", "PIPE:curl\t-H\tcret", "Pipe:TOKEN=cret curl",
        "http://h/a.tar::pipe:curl -H cret", "pipe:curl${IFS}cret", "{x,PIPE:curl cret",
        "pipe:cat a::http://us:cret@h/x"}) {
    EXPECT_EQ(redacted(text).find("cret"), std::string::npos) << redacted(text);
  }
  EXPECT_EQ(redacted("PIPE:curl -H cret"), "PIPE:curl ...");
}

TEST(Error, ALongListIsRedactedInTime) {
  for (const char* one :
       {"http://us:cret@h/x,", "http:/h,", "http://b:ad/x,", "http://h::", "a://"}) {
    std::string list;
    while (list.size() < 2'000'000) list += one;
    EXPECT_EQ(redacted(list).find("cret"), std::string::npos);
  }
}

TEST(Error, ControlBytesOfNamesDoNotReachTheTerminal) {
  const error e = error(errc::bad_image, "x").key("a\x1b[2Jb\n");
  EXPECT_EQ(e.message(), "bad_image: x, key a\\x1b[2Jb\\x0a");
}

TEST(Error, WhatIsNoFaultOfTheDataIsNeverSkippable) {
  for (const errc kind : {errc::stopped, errc::no_memory, errc::no_descriptors}) {
    error e(kind, "x");
    EXPECT_FALSE(e.skippable().is_skippable()) << kind_name(kind);
    EXPECT_FALSE(error(e).at("/a.tar").skippable().is_skippable()) << kind_name(kind);
  }
  EXPECT_TRUE(error(errc::cut, "x").skippable().is_skippable());
  EXPECT_FALSE(error(errc::cut, "x").skippable().skippable(false).is_skippable());
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

// So that a loop over what a temporary holds goes over what is still there.
TEST(Error, WhatATemporaryResultHoldsIsGivenAsAValue) {
  using numbers = result<std::vector<int>>;
  static_assert(std::is_same_v<decltype(std::declval<numbers>().value()), std::vector<int>>);
  static_assert(std::is_same_v<decltype(*std::declval<numbers>()), std::vector<int>>);
  const auto made = [] { return numbers(std::vector<int>(1000, 1)); };
  int sum = 0;
  for (const int one : made().value()) sum += one;
  EXPECT_EQ(sum, 1000);
}

TEST(Error, ExitCodesAreThoseOfTheContract) {
  EXPECT_EQ(exit_code(errc::bad_setting), 2);
  EXPECT_EQ(exit_code(errc::too_many_skipped), 3);
  EXPECT_EQ(exit_code(errc::connect_failed), 4);
  EXPECT_EQ(exit_code(errc::truncated), 5);
  EXPECT_EQ(exit_code(errc::peer_lost), 6);
  EXPECT_EQ(exit_code(errc::device_failed), 7);
  EXPECT_EQ(exit_code(errc::internal), 1);
}

TEST(Error, ExceptionsOfTheSystemArePlainErrors) {
  const auto of = [](int code) { return std::error_code(code, std::generic_category()); };
  EXPECT_EQ(caught(std::filesystem::filesystem_error("cannot open", "/x", of(EACCES))).message(),
            "not_allowed: a file or folder cannot be used, at /x (Permission denied)");
  EXPECT_EQ(caught(std::system_error(of(ENOSPC), "cannot write to file")).message(),
            "io_failed: cannot write to file (No space left on device)");
  EXPECT_EQ(caught(std::system_error(of(EMFILE), "x")).kind(), errc::no_descriptors);
  EXPECT_EQ(caught(std::system_error(of(EMFILE), "x")).what_to_do(), "raise `ulimit -n`");
  EXPECT_EQ(caught(std::bad_alloc()).kind(), errc::no_memory);
  EXPECT_EQ(caught(failure(error(errc::usage, "x"))).kind(), errc::usage);
  EXPECT_EQ(caught(std::runtime_error("x")).kind(), errc::internal);
  EXPECT_EQ(caught(7).kind(), errc::internal);
}

}  // namespace
}  // namespace millrace
