#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "io/cache/cache_folder.h"
#include "io/files/pipe_source.h"
#include "io/http/client.h"
#include "io/http/transport.h"
#include "io/shard_urls.h"
#include "io/stores/aws_credentials.h"
#include "io/stores/known_stores.h"
#include "io/stores/listing.h"
#include "io/stores/listing_page.h"
#include "io/stores/sigv4.h"
#include "io/stores/store.h"
#include "io/stores/xml.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

// Keys and examples from "Signature Calculations for the Authorization Header", Amazon S3 API
// Reference.
const aws_keys s3_example{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
constexpr std::int64_t s3_example_time = 1369353600;  // 2013-05-24T00:00:00Z

std::string signature(const http_request& what, const aws_keys& keys, const sigv4_scope& scope) {
  const std::string field = *find_field(sigv4_fields(what, keys, scope), "authorization");
  return field.substr(field.find("Signature=") + 10);
}

http_request get(const std::string& target, http_fields fields = {}) {
  http_request what;
  what.target = parse_url(target).value();
  what.fields = std::move(fields);
  return what;
}

TEST(KnownStores, EachHasASchemeOfItsOwnAndIsReachedByIt) {
  const auto stack = std::make_shared<http_stack>(http_options(), real_network(0), real_time());
  const store_table made = object_stores(stack);
  EXPECT_EQ(made.size(), known_stores.size());
  for (const known_store* store : known_stores) {
    const std::string scheme(store->scheme);
    EXPECT_TRUE(made.contains(scheme)) << scheme;
    EXPECT_TRUE(is_of_store(scheme)) << scheme;
    EXPECT_TRUE(is_on_network(parse_url(scheme + "://bucket/key").value())) << scheme;
  }
  for (const char* other : {"http", "https", "file", "pipe", "-", "memory", ""}) {
    EXPECT_FALSE(is_of_store(other)) << other;
  }
}

TEST(KnownStores, TheVariablesOfEachAreRead) {
  std::set<std::string_view> names;
  for (const foreign_variable& v : foreign_variables()) {
    EXPECT_TRUE(names.insert(v.name).second) << v.name;
  }
  EXPECT_TRUE(names.contains("https_proxy"));
  for (const known_store* store : known_stores) {
    EXPECT_FALSE(store->variables.empty()) << store->scheme;
    for (const foreign_variable& v : store->variables) {
      EXPECT_TRUE(names.contains(v.name)) << v.name;
    }
  }
}

TEST(SigV4, TheExamplesOfTheS3Reference) {
  const sigv4_scope scope{"us-east-1", "s3", s3_example_time};
  const std::string base = "https://examplebucket.s3.amazonaws.com/";
  EXPECT_EQ(signature(get(base + "test.txt", {{"Range", "bytes=0-9"}}), s3_example, scope),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(signature(get(base + "?lifecycle"), s3_example, scope),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(signature(get(base + "?max-keys=2&prefix=J"), s3_example, scope),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(SigV4, TheTestSuitesGetVanilla) {
  const aws_keys keys{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
  const sigv4_scope scope{"us-east-1", "service", 1440938160};  // 2015-08-30T12:36:00Z
  EXPECT_EQ(signature(get("https://example.amazonaws.com/"), keys, scope),
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  EXPECT_EQ(
      signature(get("https://example.amazonaws.com/?Param2=value2&Param1=value1"), keys, scope),
      "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
}

TEST(SigV4, ASessionsTokenIsSigned) {
  aws_keys keys = s3_example;
  keys.session_token = "token";
  const auto fields =
      sigv4_fields(get("https://b.s3.amazonaws.com/k"), keys, {"us-east-1", "s3", s3_example_time});
  EXPECT_EQ(find_field(fields, "x-amz-security-token"), "token");
  EXPECT_NE(find_field(fields, "authorization")->find(";x-amz-security-token"), std::string::npos);
}

TEST(SigV4, EncodesWhatUrlsReserve) {
  EXPECT_EQ(uri_encoded("a b/ü+~", true), "a%20b/%C3%BC%2B~");
  EXPECT_EQ(uri_encoded("a/b", false), "a%2Fb");
}

TEST(AwsProfiles, SectionsAndComments) {
  const auto profiles = parse_profiles(
      "# c\n[default]\naws_access_key_id = A\nregion=eu-west-1 \n[profile x]\nAWS_ACCESS_KEY_ID=B\n"
      "s3 =\n  addressing_style = path\n");
  EXPECT_EQ(profiles.at("default").at("aws_access_key_id"), "A");
  EXPECT_EQ(profiles.at("default").at("region"), "eu-west-1");
  EXPECT_EQ(profiles.at("x").at("aws_access_key_id"), "B");
  EXPECT_EQ(profiles.at("x").count("addressing_style"), 0U);
}

TEST(AwsCredentials, TimesAreUtc) {
  EXPECT_EQ(parse_utc("2013-05-24T00:00:00Z"), s3_example_time);
  EXPECT_FALSE(parse_utc("tomorrow"));
}

TEST(Listing, PagesOfS3AndAzure) {
  const auto s3 = parse_s3_listing(
      "<?xml version=\"1.0\"?><ListBucketResult><Contents><Key>a&amp;b</Key>"
      "<Size>12</Size></Contents>"
      "<Contents><Key>c</Key></Contents><NextContinuationToken>t</NextContinuationToken>"
      "</ListBucketResult>");
  EXPECT_EQ(s3->keys, (std::vector<std::string>{"a&b", "c"}));
  EXPECT_EQ(s3->sizes, (std::vector<std::optional<std::uint64_t>>{12, std::nullopt}));
  EXPECT_EQ(s3->next, "t");
  const auto azure = parse_azure_listing(
      "\xef\xbb\xbf<?xml version=\"1.0\"?><EnumerationResults><Blobs><Blob><Name>x</Name>"
      "<Properties><Content-Length>7</Content-Length></Properties></Blob>"
      "</Blobs><NextMarker>m</NextMarker></EnumerationResults>");
  EXPECT_EQ(azure->keys, std::vector<std::string>{"x"});
  EXPECT_EQ(azure->sizes, (std::vector<std::optional<std::uint64_t>>{7}));
  EXPECT_EQ(azure->next, "m");
  EXPECT_FALSE(parse_s3_listing("<html>"));
  const auto cut = parse_s3_listing(
      "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a</Key></Contents>"
      "<NextMarker>a</NextMarker></ListBucketResult>");
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().kind(), errc::protocol);
  EXPECT_EQ(
      parse_azure_listing("\xef\xbb\xbf<EnumerationResults><Blobs/></EnumerationResults>")->next,
      "");
  EXPECT_FALSE(parse_azure_listing(""));
}

TEST(Listing, IsForStoresAlone) {
  EXPECT_TRUE(is_listing("s3://b/p/"));
  EXPECT_TRUE(is_listing("gs://b/p-*.tar"));
  EXPECT_TRUE(is_listing("s3://b"));
  EXPECT_FALSE(is_listing("s3://b/p"));
  EXPECT_FALSE(is_listing("http://h"));
  EXPECT_FALSE(is_listing("http://h/p/"));
  EXPECT_FALSE(is_listing("/p/*"));
}

TEST(ShardUrls, BasesAreFilledOrPutInFront) {
  EXPECT_EQ(with_base("http://h/d", "a.tar"), "http://h/d/a.tar");
  EXPECT_EQ(with_base("http://h/d/", "a.tar"), "http://h/d/a.tar");
  EXPECT_EQ(with_base("pipe:gsutil cat gs://b/%s", "a.tar"), "pipe:gsutil cat gs://b/a.tar");
  EXPECT_EQ(with_base("http://h/{}?x=1", "a.tar"), "http://h/a.tar?x=1");
  EXPECT_EQ(with_base("http://h/", "/abs/a.tar"), "/abs/a.tar");
  EXPECT_EQ(with_base("http://h/", "s3://b/a.tar"), "s3://b/a.tar");
  EXPECT_EQ(with_base("", "a.tar"), "a.tar");
}

TEST(ShardUrls, FoldersAndPatternsStandForTheirFiles) {
  const testing::temporary_folder folder;
  for (const char* name :
       {"b-1.tar", "b-0.tar", "a.tgz", "c.tar.zst", "notes.txt", "[x]-0.tar",
        // Files beside shards: from a killed pack, of a checksum, from a copy made on a Mac.
        "b-2.tar.partial.123", "b-0.tar.md5", "._b-0.tar"}) {
    folder.write(name, "");
  }
  const auto names = [&](std::vector<std::string> specs, const std::string& base = {}) {
    auto found = find_shards(specs, base, {}).value();
    for (std::string& f : found) f = f.substr(f.rfind('/') + 1);
    return found;
  };
  using list = std::vector<std::string>;
  const list all = {"[x]-0.tar", "a.tgz", "b-0.tar", "b-1.tar", "c.tar.zst"};
  EXPECT_EQ(names({folder / ""}), all);
  EXPECT_EQ(names({"file://" + (folder / "")}), all);
  EXPECT_EQ(names({folder / "b-*.tar"}), (list{"b-0.tar", "b-1.tar"}));
  EXPECT_EQ(names({folder / "b-*"}), (list{"b-0.tar", "b-0.tar.md5", "b-1.tar"}));
  EXPECT_EQ(names({"*.tgz"}, folder / ""), list{"a.tgz"});
  EXPECT_EQ(names({folder / "[x]-*"}), list{"[x]-0.tar"});
  folder.write("b-*.tar", "");
  EXPECT_EQ(names({folder / "b-*.tar"}), list{"b-*.tar"});
  for (const std::string& nothing :
       list{folder / "d-*.tar", folder / "none/", folder / "no/*.tar", folder / "notes.txt/"}) {
    const auto found = find_shards(std::vector{nothing}, "", {});
    ASSERT_FALSE(found) << nothing;
    EXPECT_NE(found.error().message().find(nothing), std::string::npos) << found.error().message();
  }
}

TEST(ShardUrls, TellWhetherAnyWereListed) {
  const testing::temporary_folder folder;
  folder.write("a.tar", "");
  folder.write("list", folder / "");
  const auto lists_any = [&](const std::string& spec, const std::string& base = {}) {
    listing_facts facts;
    EXPECT_TRUE(find_shards({spec}, base, {}, &facts)) << spec;
    return facts.lists_any;
  };
  EXPECT_FALSE(lists_any(folder / "a.tar"));
  EXPECT_FALSE(lists_any("http://h/a.tar"));
  EXPECT_TRUE(lists_any(folder / ""));
  EXPECT_TRUE(lists_any(folder / "*.tar"));
  EXPECT_TRUE(lists_any("http://h/a.tar::" + (folder / "")));
  EXPECT_TRUE(lists_any("@" + (folder / "list")));
  EXPECT_TRUE(lists_any("*.tar", folder / ""));
  folder.write("*.tar", "");
  EXPECT_FALSE(lists_any(folder / "*.tar"));
}

TEST(ShardUrls, RewritingReplacesTheFirstBeginningThatFits) {
  const auto rules = parse_rewrites("s3://b/=http://h/c/;s3://=/mnt/").value();
  EXPECT_EQ(rewritten("s3://b/a.tar", rules), "http://h/c/a.tar");
  EXPECT_EQ(rewritten("s3://d/a.tar", rules), "/mnt/d/a.tar");
  EXPECT_EQ(rewritten("gs://b/a.tar", rules), "gs://b/a.tar");
  EXPECT_FALSE(parse_rewrites("nothing"));
}

TEST(Pipe, NativeUrlsOfTheCommandsThatPeopleUse) {
  EXPECT_EQ(native_url("curl -s -L http://h/a.tar"), "http://h/a.tar");
  EXPECT_EQ(native_url("curl -s 'https://h/a.tar?x=1'"), "https://h/a.tar?x=1");
  EXPECT_EQ(native_url("gsutil cat gs://b/a.tar"), "gs://b/a.tar");
  EXPECT_EQ(native_url("aws s3 cp s3://b/a.tar -"), "s3://b/a.tar");
  EXPECT_EQ(native_url("az storage blob download -c c -n d/a.tar -f /dev/stdout"),
            "az://c/d/a.tar");
  EXPECT_EQ(native_url("./fread /my/a.tar"), "/my/a.tar");
  EXPECT_FALSE(native_url("curl -s http://h/a.tar.gz | gunzip"));
  EXPECT_FALSE(native_url("zcat a.gz"));
}

TEST(CacheName, IsOfTheObjectAndItsVersionWhoeverAsks) {
  const object_version v1{.total = 10, .etag = "\"1\"", .last_modified = {}};
  const object_version v2{.total = 10, .etag = "\"2\"", .last_modified = {}};
  EXPECT_EQ(cache_name("https://u:p@h/a?X-Amz-Signature=1&v=3", v1),
            cache_name("https://h/a?v=3", v1));
  EXPECT_NE(cache_name("https://h/a", v1), cache_name("https://h/a", v2));
  EXPECT_NE(cache_name("https://h/x/a.tar", v1), cache_name("https://h/y/a.tar", v1));
  EXPECT_EQ(canonical_url("s3://b/k"), "s3://b/k");
}

class CacheFolder : public ::testing::Test {
 protected:
  std::unique_ptr<cache_writer> writer(std::uint64_t total = 3'000'000) {
    auto made =
        folder_.fill(name_, "http://h/a", {.total = total, .etag = "1", .last_modified = {}});
    return made ? std::move(*made) : nullptr;
  }
  static std::span<const std::byte> part(const std::string& text, std::size_t from,
                                         std::size_t size) {
    return std::as_bytes(std::span(text)).subspan(from, size);
  }
  testing::temporary_folder temporary_;
  cache_folder folder_{
      {.folder = temporary_ / "cache", .most_bytes = 0, .least_free = 0, .paths = {}}};
  std::string name_ = std::string(64, 'a');
  std::string content_ = std::string(3'000'000, 'x');
};

TEST_F(CacheFolder, AnEntryIsThereWhenItIsCompleteAndNotBefore) {
  ASSERT_TRUE(folder_.prepare());
  auto w = writer();
  ASSERT_TRUE(w->append(part(content_, 0, 3'000'000)));
  EXPECT_FALSE(folder_.open(name_));
  ASSERT_TRUE(w->finish());
  const auto file = folder_.open(name_);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->bytes(), 3'000'000U);
  EXPECT_EQ(file->blocks(), 3U);
}

TEST_F(CacheFolder, TheWholeBlocksOfOneThatDiedAreUsedAgain) {
  ASSERT_TRUE(folder_.prepare());
  ASSERT_TRUE(writer()->append(part(content_, 0, 2'500'000)));
  auto second = writer();
  EXPECT_EQ(second->size(), 2U * cache_block_bytes);
  EXPECT_FALSE(writer());  // one at a time
  ASSERT_TRUE(second->append(part(content_, second->size(), content_.size() - second->size())));
  ASSERT_TRUE(second->finish());
  EXPECT_TRUE(folder_.open(name_));
}

TEST_F(CacheFolder, ADamagedTailIsNoEntry) {
  ASSERT_TRUE(folder_.prepare());
  const std::string path = folder_.options().folder + "/" + name_;
  const auto fill = [&] {
    auto w = writer();
    ASSERT_TRUE(w->append(part(content_, 0, 3'000'000)));
    ASSERT_TRUE(w->finish());
  };
  fill();
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(3'000'001) << '\xff';
  EXPECT_FALSE(folder_.open(name_));
  EXPECT_TRUE(folder_.entries().empty());  // removed
  // A file without the mark may be another program's: it stays until the object is fetched again.
  fill();
  ASSERT_EQ(truncate(path.c_str(), 3'000'010), 0);
  EXPECT_FALSE(folder_.open(name_));
  EXPECT_EQ(std::filesystem::file_size(path), 3'000'010U);
  fill();
  EXPECT_TRUE(folder_.open(name_));
}

TEST_F(CacheFolder, WhatIsReadIsNotEvicted) {
  ASSERT_TRUE(folder_.prepare());
  for (const char c : {'a', 'b'}) {
    name_ = std::string(64, c);
    auto w = writer();
    ASSERT_TRUE(w->append(part(content_, 0, 3'000'000)));
    ASSERT_TRUE(w->finish());
  }
  const auto read = folder_.open(std::string(64, 'a'));
  const cache_folder small(
      {.folder = folder_.options().folder, .most_bytes = 1, .least_free = 0, .paths = {}});
  EXPECT_GT(small.evict(), 3'000'000U);
  ASSERT_EQ(folder_.entries().size(), 1U);
  EXPECT_EQ(folder_.entries()[0].name, std::string(64, 'a'));
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

// The XML reader recurses for every element, so none may be hidden from the count.
TEST(StoreXml, ElementsDeepWithinEachOtherAreRefusedBeforeTheyAreRead) {
  EXPECT_TRUE(is_shallow_xml(repeated("<a>", deepest_nesting)));
  EXPECT_FALSE(is_shallow_xml(repeated("<a>", deepest_nesting + 1)));
  EXPECT_TRUE(is_shallow_xml("<r>" + repeated("<a>x</a><b c='>' d=\"/>\"/>", 1000) + "</r>"));
  for (const char* hiding :
       {"<a><!--</a>-->", "<a><?</a>?>", "<a><![CDATA[</a>]]>", "<a b='</a>'>", "<a b='/>'>",
        "<a b = \"/>\">", "<a><?></a>?>", "<a'>", "<a='>", "<a b'c='>", "<a b='x''>"}) {
    EXPECT_FALSE(is_shallow_xml(repeated(hiding, 1000))) << hiding;
  }
  EXPECT_FALSE(is_shallow_xml(repeated("</a>", 1000) + repeated("<a>", 1000)));
  EXPECT_FALSE(is_shallow_xml("<!DOCTYPE a [" + repeated("<a>", 1000)));
  for (const char* small : {"<a/>", "<!---->", "<a b=''/>"}) {
    const std::string many = repeated(small, 400'000);
    EXPECT_EQ(parse_s3_listing("<ListBucketResult>" + many + "</ListBucketResult>").error().kind(),
              errc::too_large);
  }
  const std::string page = repeated("<Contents><Key>a</Key><Size>1</Size></Contents>", 40'000);
  EXPECT_EQ(
      parse_s3_listing("<ListBucketResult>" + page + "</ListBucketResult>").value().keys.size(),
      40'000U);
  EXPECT_EQ(parse_s3_listing("<ListBucketResult>" + repeated("<a>", 200'000)).error().kind(),
            errc::protocol);
  EXPECT_FALSE(parse_azure_listing("<EnumerationResults>" + repeated("<a>", 200'000)));
}

TEST(ListingProgress, AStoreThatNamesANextPageForEverIsNotFollowed) {
  listing_progress same;
  EXPECT_TRUE(same.turn_to("a", 1000, 10));
  EXPECT_TRUE(same.turn_to("b", 1000, 10));
  EXPECT_EQ(same.turn_to("b", 1000, 10).error().kind(), errc::protocol);
  listing_progress circle;
  int turns = 0;
  while (circle.turn_to(std::to_string(turns % 3), 1000, 10)) ASSERT_LT(++turns, 20);
  listing_progress empty;
  int pages = 0;
  while (empty.turn_to(std::to_string(pages), 0, 0)) ++pages;
  EXPECT_EQ(pages, listing_progress::most_empty_pages);
  listing_progress endless;
  for (pages = 0; endless.turn_to(std::to_string(pages), 1000, 10); ++pages)
    ASSERT_LT(pages, 10'001);
  listing_progress large;
  constexpr std::size_t page = 15UL << 20;  // of one key
  for (pages = 0; large.turn_to(std::to_string(pages), 1, page); ++pages) ASSERT_LT(pages, 100);
  listing_progress last;
  EXPECT_TRUE(last.turn_to("", 1000, 10));
}

}  // namespace
}  // namespace millrace
