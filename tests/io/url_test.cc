#include "io/url.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

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

TEST(Url, RefusesWhatIsWrong) {
  for (const char* wrong : {"", "http://", "http://:80/x", "http://h:port/x", "http://[::1/x",
                            "http://h:123456/x", "file://"}) {
    EXPECT_FALSE(parse_url(wrong)) << wrong;
  }
}

TEST(Url, ResolvesRedirects) {
  const url base = parse_url("http://h:1/a/b.tar?q=1").value();
  EXPECT_EQ(to_string(resolve_url(base, "/c.tar").value()), "http://h:1/c.tar");
  EXPECT_EQ(to_string(resolve_url(base, "c.tar").value()), "http://h:1/a/c.tar");
  EXPECT_EQ(to_string(resolve_url(base, "//other/c.tar").value()), "http://other/c.tar");
  EXPECT_EQ(resolve_url(base, "ftp://x/y").value().scheme, "ftp");
}

}  // namespace
}  // namespace millrace
