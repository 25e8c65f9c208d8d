#include "io/names/url.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace millrace {
namespace {

TEST(Url, PortsAreNumbersOf16Bits) {
  EXPECT_EQ(parse_url("http://h:65535/a")->port, "65535");
  EXPECT_EQ(parse_url("http://h:/a")->port, "");
  for (const char* wrong : {"http://h:65536/a", "http://h:99999/a", "http://h:0/a", "http://h:-1/a",
                            "http://h:8a/a", "http://[::1]80/a", "http://h:4294967376/a"}) {
    EXPECT_FALSE(parse_url(wrong)) << wrong;
  }
}

// The operating system would end the path there.
TEST(Url, ANulByteIsRefused) {
  using namespace std::string_view_literals;
  for (const auto wrong :
       {"a\0b"sv, "\0"sv, "file:a%00b"sv, "http://h\0.example/a"sv, "pipe:a\0b"sv}) {
    EXPECT_FALSE(parse_url(wrong)) << wrong;
  }
}

TEST(Url, ADotAtTheEndOfAHostIsNoPartOfItsName) {
  EXPECT_EQ(parse_url("http://Host.example.:80/a")->host, "host.example");
}

TEST(Url, APasswordWithASlashIsNotQuoted) {
  EXPECT_EQ(parse_url("http:/user:secret@host/x").error().message().find("secret"),
            std::string::npos);
  const auto parsed = parse_url("http://user:se/cret@host/x");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.error().message().find("'se'"), std::string::npos);
  EXPECT_EQ(parsed.error().message().find("cret"), std::string::npos);
}

TEST(Url, TakesHttpApart) {
  const url u = parse_url("HTTP://me:pw@Host.Example:8080/a b/c.tar?x=1#frag").value();
  EXPECT_EQ(u.scheme, "http");
  EXPECT_EQ(u.userinfo, "me:pw");
  EXPECT_EQ(u.host, "host.example");
  EXPECT_EQ(u.port, "8080");
  EXPECT_EQ(u.path, "/a%20b/c.tar?x=1");
  EXPECT_EQ(u.origin(), "http://host.example:8080");
}

TEST(Url, KnowsPathsFromUrls) {
  EXPECT_EQ(parse_url("/data/a:b.tar").value().scheme, "file");
  EXPECT_EQ(parse_url("./a.tar").value().path, "./a.tar");
  EXPECT_EQ(parse_url("file:///data/a%20b.tar").value().path, "/data/a b.tar");
  EXPECT_EQ(parse_url("file:rel.tar").value().path, "rel.tar");
  EXPECT_EQ(parse_url("-").value().scheme, "-");
  EXPECT_EQ(parse_url("s3://bucket/key").value().host, "bucket");
}

TEST(Url, Ipv6AndPorts) {
  const url u = parse_url("http://[::1]:81/x").value();
  EXPECT_EQ(u.host, "::1");
  EXPECT_EQ(u.origin(), "http://[::1]:81");
  EXPECT_EQ(parse_url("http://h").value().port_or_default(), "80");
  EXPECT_EQ(parse_url("http://h").value().path, "/");
}

TEST(Url, SocketsAreReadAsTheyAreWritten) {
  const url u = parse_url("http+unix://%2Frun%2Fa%25b%20c%3F/x").value();
  EXPECT_EQ(u.socket, "/run/a%b c?");
  EXPECT_EQ(to_string(u), "http+unix://%2Frun%2Fa%25b%20c%3F/x");
  EXPECT_EQ(parse_url(to_string(u)).value(), u);
  EXPECT_FALSE(parse_url("http+unix:///x"));
  EXPECT_FALSE(parse_url("HTTP+UNIX:///run/a.sock"));
}

TEST(Url, AHostHasNoByteThatEndsIt) {
  for (const std::string host : {"a b", "a\r\nX: y", "[::1\r\n]", "[a HTTP/1.1]", "a\\b", "a\"b",
                                 "a<b", "a^b", "\xff", "[a@b]", "a\tb"}) {
    for (const char* scheme : {"http://", "HTTPS://", "http://u:p@"}) {
      EXPECT_FALSE(parse_url(scheme + host + "/x")) << host;
    }
  }
  EXPECT_TRUE(parse_url("http://[fe80::1%25eth0]:80/x"));
  EXPECT_TRUE(parse_url("http://a_b-c.example/x"));
}

TEST(Url, RefusesWhatIsWrong) {
  for (const char* wrong :
       {"", "http://", "http://:80/x", "http://h:port/x", "http://[::1/x", "http://h:123456/x",
        "file://", "s3://", "hf:///x.tar", "file://otherhost/x.tar"}) {
    EXPECT_FALSE(parse_url(wrong)) << wrong;
  }
  EXPECT_EQ(parse_url("file://LocalHost/x.tar").value().path, "/x.tar");
}

TEST(Url, ResolvesRedirects) {
  const url base = parse_url("http://h:1/a/b.tar?q=1").value();
  EXPECT_EQ(to_string(resolve_url(base, "/c.tar").value()), "http://h:1/c.tar");
  EXPECT_EQ(to_string(resolve_url(base, "c.tar").value()), "http://h:1/a/c.tar");
  EXPECT_EQ(to_string(resolve_url(base, "//other/c.tar").value()), "http://other/c.tar");
  EXPECT_EQ(resolve_url(base, "ftp://x/y").value().scheme, "ftp");
}

// RFC 3986, section 5.4; fragments are for programs that show a document, and are never sent.
TEST(Url, ResolvesTheExamplesOfRfc3986) {
  const url base = parse_url("http://a/b/c/d;p?q").value();
  const std::vector<std::pair<const char*, const char*>> examples{
      {"g", "http://a/b/c/g"},
      {"./g", "http://a/b/c/g"},
      {"g/", "http://a/b/c/g/"},
      {"/g", "http://a/g"},
      {"//g", "http://g/"},
      {"?y", "http://a/b/c/d;p?y"},
      {"g?y", "http://a/b/c/g?y"},
      {"#s", "http://a/b/c/d;p?q"},
      {"g#s", "http://a/b/c/g"},
      {"g?y#s", "http://a/b/c/g?y"},
      {";x", "http://a/b/c/;x"},
      {"g;x", "http://a/b/c/g;x"},
      {"g;x?y#s", "http://a/b/c/g;x?y"},
      {"", "http://a/b/c/d;p?q"},
      {".", "http://a/b/c/"},
      {"./", "http://a/b/c/"},
      {"..", "http://a/b/"},
      {"../", "http://a/b/"},
      {"../g", "http://a/b/g"},
      {"../..", "http://a/"},
      {"../../", "http://a/"},
      {"../../g", "http://a/g"},
      {"../../../g", "http://a/g"},
      {"../../../../g", "http://a/g"},
      {"/./g", "http://a/g"},
      {"/../g", "http://a/g"},
      {"g.", "http://a/b/c/g."},
      {".g", "http://a/b/c/.g"},
      {"g..", "http://a/b/c/g.."},
      {"..g", "http://a/b/c/..g"},
      {"./../g", "http://a/b/g"},
      {"./g/.", "http://a/b/c/g/"},
      {"g/./h", "http://a/b/c/g/h"},
      {"g/../h", "http://a/b/c/h"},
      {"g;x=1/./y", "http://a/b/c/g;x=1/y"},
      {"g;x=1/../y", "http://a/b/c/y"},
      {"g?y/./x", "http://a/b/c/g?y/./x"},
      {"g?y/../x", "http://a/b/c/g?y/../x"},
      {"g#s/./x", "http://a/b/c/g"},
      {"g#s/../x", "http://a/b/c/g"}};
  for (const auto& [reference, meant] : examples) {
    EXPECT_EQ(to_string(resolve_url(base, reference).value()), meant) << reference;
  }
}

}  // namespace
}  // namespace millrace
