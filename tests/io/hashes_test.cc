#include "io/hashes.h"

#include <gtest/gtest.h>

#include "io/http/object_digest.h"

namespace millrace {
namespace {

TEST(Hashes, KnownAnswers) {
  EXPECT_EQ(hex(digest_of(hash_algorithm::sha256, "abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(digest_of(hash_algorithm::md5, "abc")), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(hex(digest_of(hash_algorithm::sha1, "abc")),
            "a9993e364706816aba3e25717850c26c9cd0d89d");
  // RFC 3720, B.4.
  EXPECT_EQ(hex(digest_of(hash_algorithm::crc32c, std::string(32, '\0'))), "8a9136aa");
  EXPECT_EQ(hex(digest_of(hash_algorithm::crc32c, std::string(32, '\xff'))), "62a8ab43");
  EXPECT_EQ(hex(digest_of(hash_algorithm::crc32c, "123456789")), "e3069283");
  // RFC 4231, test case 2.
  EXPECT_EQ(hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Hashes, PiecesAddUp) {
  hasher h(hash_algorithm::crc32c);
  h.add("1234");
  h.add("56789");
  EXPECT_EQ(hex(h.finish()), "e3069283");
}

TEST(Hashes, Base64) {
  for (const char* text : {"", "a", "ab", "abc", "abcd"}) {
    if (*text != '\0') EXPECT_EQ(base64_decoded(base64(text)), text);
  }
  EXPECT_EQ(base64("ab"), "YWI=");
  EXPECT_EQ(base64_url("\xff\xfe\xff"), "__7_");
  EXPECT_FALSE(base64_decoded("abc"));
  EXPECT_FALSE(base64_decoded("a$c="));
}

response_head with(http_fields fields, int status = 200) {
  return {.status = status, .content_length = {}, .fields = std::move(fields)};
}

TEST(ObjectDigest, IsFoundWhereverServersPutIt) {
  const std::string crc = base64(digest_of(hash_algorithm::crc32c, "abc"));
  const std::string md5 = base64(digest_of(hash_algorithm::md5, "abc"));
  const std::string sha = base64(digest_of(hash_algorithm::sha256, "abc"));
  const std::vector<http_field> said = {{"x-amz-checksum-crc32c", crc},
                                        {"X-Goog-Hash", "crc32c=" + crc + ",md5=" + md5},
                                        {"Repr-Digest", "sha-256=:" + sha + ":"},
                                        {"Content-MD5", md5}};
  for (const http_field& f : said) {
    const auto found = digest_in(with({f}));
    ASSERT_TRUE(found) << f.name;
    digest_check right(*found);
    right.add(std::as_bytes(std::span("abc", 3)));
    EXPECT_TRUE(right.finish()) << f.name;
    digest_check wrong(*found);
    wrong.add(std::as_bytes(std::span("abd", 3)));
    EXPECT_EQ(wrong.finish().error().kind(), errc::integrity) << f.name;
  }
}

TEST(ObjectDigest, WhatIsSaidOfAPartOrOfPartsIsNotTheObjects) {
  const std::string md5 = base64(digest_of(hash_algorithm::md5, "abc"));
  EXPECT_FALSE(digest_in(with({{"Content-MD5", md5}}, 206)));
  const std::string crc = base64(digest_of(hash_algorithm::crc32c, "abc"));
  EXPECT_FALSE(digest_in(with({{"x-amz-checksum-crc32c", crc}}, 206)));
  EXPECT_TRUE(digest_in(with({{"x-goog-hash", "crc32c=" + crc}}, 206)));
  EXPECT_FALSE(digest_in(with({{"x-amz-checksum-crc32c", "AAAAAA==-3"}})));
  EXPECT_FALSE(digest_in(with({{"Content-MD5", "not base64!"}})));
}

}  // namespace
}  // namespace millrace
