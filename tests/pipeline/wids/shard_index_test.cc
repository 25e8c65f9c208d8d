#include "pipeline/shards/shard_index.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "io/hashes.h"
#include "millrace/millrace.h"
#include "pipeline/stages/raw_bytes.h"
#include "pipeline/wids/sidecar.h"
#include "tests/support/text_shards.h"

namespace millrace {
namespace {

using nlohmann::json;

result<std::string> nothing_there(const std::string& url) {
  return error(errc::not_found, "nothing there").at(url);
}

result<shard_index> parsed(const json& what, const std::string& where,
                           const std::string& base = "") {
  return parse_index(what.dump(), where, base, nothing_there);
}

json index_of(const std::string& url) {
  return {{"wids_version", 1}, {"shardlist", {{{"url", url}, {"nsamples", 1}}}}};
}

constexpr const char* remote = "http://h/d/i.json";

// Any server may have written an index that came over the network.
TEST(ShardIndex, OneFromTheNetworkNamesNothingLocal) {
  for (const char* url : {"pipe:touch x", "file:///etc/passwd", "file:x", "pipe:cat a.tar|x"}) {
    EXPECT_EQ(parsed(index_of(url), remote).error().kind(), errc::bad_index) << url;
    EXPECT_EQ(parsed(index_of(url), remote, "/local").error().kind(), errc::bad_index) << url;
    const json part{{"wids_version", 1}, {"datasets", {{{"source_url", url}}}}};
    EXPECT_EQ(parsed(part, remote).error().kind(), errc::bad_index) << url;
    // In the user's own file, URLs are the user's.
    EXPECT_EQ(parsed(index_of(url), "d/i.json").value().shards.at(0).url, url);
  }
  json based = index_of("a.tar");
  based["base"] = "/etc";
  EXPECT_EQ(parsed(based, remote).error().kind(), errc::bad_index);
  EXPECT_EQ(parsed(index_of("/a.tar"), remote, "/local").error().kind(), errc::bad_index);
  EXPECT_EQ(parsed(index_of("a.tar"), remote, "/local").value().shards.at(0).url, "/local/a.tar");
  EXPECT_EQ(parsed(index_of("a.tar"), remote).value().shards.at(0).url, "http://h/d/a.tar");
  EXPECT_EQ(parsed(index_of("s3://b/a.tar"), remote).value().shards.at(0).url, "s3://b/a.tar");
}

// A base, a name and a part's name are repeated in every shard.
TEST(ShardIndex, OneThatTakesMoreMemoryThanThereIsForItIsRefused) {
  constexpr std::size_t most = 1 << 20;
  const std::string long_text(10'000, 'x');
  json entries = json::array();
  for (int i = 0; i < 100; ++i) entries.push_back({{"url", "a.tar"}, {"nsamples", 1}});
  const auto kind_of = [&](json more) {
    json whole{{"wids_version", 1}, {"shardlist", entries}};
    whole.update(more);
    const auto made = parse_index(whole.dump(), "d/i.json", "", nothing_there, most);
    return made ? std::optional<errc>() : made.error().kind();
  };
  EXPECT_EQ(kind_of(json::object()), std::nullopt);
  EXPECT_EQ(kind_of({{"base", "http://" + long_text}}), errc::too_large);
  EXPECT_EQ(kind_of({{"name", long_text}}), errc::too_large);
  EXPECT_EQ(kind_of({{"more", std::vector<json>(10'000, json::array())}}), errc::too_large);
  const json part{{"name", long_text}, {"shardlist", entries}};
  EXPECT_EQ(kind_of({{"datasets", {part}}}), errc::too_large);
}

// A state is bounded as well: by its caller's limit.
TEST(ShardIndex, AStateThatTakesMoreMemoryThanThereIsForItIsRefused) {
  const json text{{"more", std::vector<json>(10'000, json::array())}};
  EXPECT_EQ(state::from_json(text.dump(), 1 << 20).error().kind(), errc::too_large);
}

// However a URL is written, a URL allowed in a foreign index opens a source on the network; "-" for
// none.
class what_is_opened {
 public:
  what_is_opened() : engine_(options()) {}

  std::string by(const json& index, const std::string& base) {
    opened_ = "-";
    const auto made = parsed(index, remote, base);
    if (!made) return opened_;
    try {
      engine_.run(raw_bytes({made->shards.at(0).url})).next();
    } catch (const failure& f) {
      EXPECT_TRUE(f.kind() == errc::unsupported || f.kind() == errc::usage) << f.what();
    }
    return opened_;
  }

 private:
  engine_options options() {
    engine_options o;
    o.cpu_threads = 1;
    o.add_sources = [this](source_registry& sources) {
      for (const char* scheme : {"pipe", "file", "-", "http", "https", "s3", "gs", "az", "ais",
                                 "hf", "memory", "http+unix"}) {
        sources.add(scheme, [this, scheme](const source_context&, const std::string& text,
                                           const url& where, byte_range) {
          const auto path = std::filesystem::path(where.path).lexically_normal();
          opened_ = !where.socket.empty()                ? "socket"
                    : std::string_view(scheme) == "file" ? path.string()
                                                         : scheme;
          return refused(text);
        });
      }
    };
    return o;
  }
  static awaitable<result<std::unique_ptr<byte_source>>> refused(std::string text) {
    co_return error(errc::unsupported, "only looked at").at(text);
  }

  std::string opened_;
  engine engine_;
};

TEST(ShardIndex, WhatAForeignOneNamesIsOpenedOnTheNetworkOrWithinTheGivenFolder) {
  what_is_opened opened;
  const std::set<std::string> network = {"-", "http", "https", "s3", "gs", "az", "ais", "hf"};
  int on_network = 0;
  for (const std::string scheme : {"pipe", "file", "http", "https", "s3", "gs", "az", "ais", "hf",
                                   "memory", "http+unix", "ftp"}) {
    std::string upper = scheme;
    std::ranges::transform(upper, upper.begin(), [](char c) { return std::toupper(c); });
    for (const std::string& written : {scheme, upper, upper.substr(0, 1) + scheme.substr(1)}) {
      for (const char* rest :
           {":x", ":/x/y", "://h/x", ":///x", "://localhost/x", "://%2Fs/x", ":cat x", "://u@/x",
            ":%2F%2Fh/x", "://[::1]/x", "://h:1/%2e%2e/x"}) {
        for (const char* base : {"", "/local", "http://b/c", "pipe:cat"}) {
          const std::string named = written + rest;
          const std::string by = opened.by(index_of(named), base);
          EXPECT_TRUE(network.contains(by)) << named << " behind '" << base << "': " << by;
          if (by != "-") ++on_network;
          json based = index_of("x.tar");
          based["base"] = named;
          const std::string behind = opened.by(based, "");
          EXPECT_TRUE(network.contains(behind)) << "behind " << named << ": " << behind;
        }
      }
    }
  }
  EXPECT_GT(on_network, 100);
  for (const char* relative :
       {"a.tar", "../a.tar", "b/../../a.tar", "%2e%2e/a.tar", "./../a.tar", "b/..%2f../a.tar",
        "/a.tar", "//a.tar", "..", "-", "../../a.tar%00/../../local/x", "b/../a.tar",
        "../local/a.tar", "../local2/a.tar"}) {
    for (const char* base : {"/local", "file:///local", "FILE:/local/", "/local/."}) {
      const std::string by = opened.by(index_of(relative), base);
      EXPECT_TRUE(by == "-" || by.starts_with("/local/")) << base << " " << relative << ": " << by;
    }
  }
  // The operating system would end the path earlier.
  const std::string cut = std::string("../a.tar") + '\0' + "/../../local/x";
  EXPECT_EQ(opened.by(index_of(cut), "/local"), "-");
  EXPECT_EQ(opened.by(index_of("b/../a.tar"), "file:///local"), "/local/a.tar");
  // Not removed before it is opened: if b is a link, it leads elsewhere.
  EXPECT_EQ(opened.by(index_of("b/%2e%2e/a.tar"), "file:///local"), "-");
  // Only the user may name a socket.
  EXPECT_EQ(opened.by(index_of("x"), "http+unix://%2Fs.sock/d"), "socket");
  EXPECT_EQ(opened.by(index_of("http+unix://%2Fs.sock/x"), "http+unix://%2Fs.sock/d"), "-");
}

TEST(ShardIndex, AnIncludedOneFromTheNetworkNamesNothingLocalEither) {
  const json top{{"wids_version", 1}, {"datasets", {{{"source_url", "http://h/part.json"}}}}};
  for (const char* url : {"pipe:touch x", "/etc/passwd.tar", "a.tar"}) {
    const auto load = [&](const std::string&) -> result<std::string> {
      return index_of(url).dump();
    };
    const auto made = parse_index(top.dump(), "d/i.json", "", load);
    if (std::string_view(url) == "pipe:touch x") {
      EXPECT_EQ(made.error().kind(), errc::bad_index);
    } else {
      EXPECT_TRUE(made.value().shards.at(0).url.starts_with("http://h/")) << url;
    }
  }
}

TEST(ShardIndex, JsonOfAnotherShapeIsABadIndex) {
  const json version{{"wids_version", 1}};
  const auto with = [&](const char* key, json what) {
    json out = version;
    out[key] = std::move(what);
    return out;
  };
  for (const json& wrong :
       {version, json::array(), json(3), with("datasets", {1}), with("datasets", 1),
        with("datasets", {{"a", {{"shardlist", 1}}}}), with("shardlist", 3),
        with("shardlist", json::object()), with("shardlist", {1}), with("shardlist", {{1}}),
        with("shardlist", {{{"url", 1}, {"nsamples", 1}}}),
        with("shardlist", {{{"url", "a"}, {"nsamples", "1"}}}),
        with("shardlist", {{{"url", "a"}, {"nsamples", -1}}}),
        with("shardlist", {{{"url", "a"}, {"nsamples", ~std::uint64_t{0}}}})}) {
    EXPECT_EQ(parsed(wrong, "i.json").error().kind(), errc::bad_index) << wrong.dump();
  }
  for (const std::string& deep : {std::string(1'000'000, '['), std::string(1'000'000, '{')}) {
    EXPECT_EQ(parse_index(deep, "i.json", "", nothing_there).error().kind(), errc::bad_index);
    EXPECT_EQ(state::from_json(deep).error().kind(), errc::bad_state);
    const std::string nested = R"({"millrace_state":2,"checksum":"x","records":{},"held":)" + deep;
    EXPECT_EQ(state::from_json(nested).error().kind(), errc::bad_state);
  }
}

shard_index three_shards() {
  shard_index out;
  for (int i = 0; i < 3; ++i) {
    shard_index::shard s{.url = std::to_string(i), .samples = 2, .bytes = 10'240};
    s.blocks = {static_cast<std::uint32_t>(i), 5, 9};
    s.names = {static_cast<std::uint16_t>(i), 0xffff};
    out.shards.push_back(std::move(s));
  }
  return out;
}

TEST(ShardIndex, OffsetsComeBack) {
  const shard_index index = three_shards();
  shard_index other = index;
  for (auto& s : other.shards) s.blocks.clear(), s.names.clear();
  ASSERT_TRUE(add_offsets(other, offsets_text(index), "i.offsets"));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(other.shards[i].blocks, index.shards[i].blocks);
    EXPECT_EQ(other.shards[i].names, index.shards[i].names);
  }
}

// Shards of one size with the same number of samples: by their digests if known, else by names.
TEST(ShardIndex, OffsetsOfAnotherOrderAreRefused) {
  shard_index index = three_shards();
  for (auto& s : index.shards) s.url = "http://host/a/" + s.url + ".tar";
  const std::string by_names = offsets_text(index);
  for (auto& s : index.shards) s.url = "/copied/to/" + s.url.substr(s.url.rfind('/') + 1);
  EXPECT_TRUE(add_offsets(index, by_names, "f"));
  std::swap(index.shards[0], index.shards[1]);
  EXPECT_EQ(add_offsets(index, by_names, "f").error().kind(), errc::bad_index);
  for (auto& s : index.shards) s.md5 = "digest of " + s.url;
  const std::string by_digests = offsets_text(index);
  for (auto& s : index.shards) s.url = "renamed";
  EXPECT_TRUE(add_offsets(index, by_digests, "f"));
  std::swap(index.shards[0], index.shards[2]);
  EXPECT_EQ(add_offsets(index, by_digests, "f").error().kind(), errc::bad_index);
}

// As written before there were fingerprints, and before there were names.
TEST(ShardIndex, OffsetsOfOlderVersionsAreRead) {
  shard_index index = three_shards();
  index.shards.resize(1);
  const std::string whole = offsets_text(index);
  const auto identity_end = whole.find('\x01', whole.find('\n'));
  const std::string identity = whole.substr(19, identity_end - 19);
  for (const bool has_identity : {false, true}) {
    std::string text = has_identity ? "millrace offsets 2\n" + identity : "millrace offsets 1\n";
    for (const int number : {1, 0x80, 0x50, 2, 3, 0, 5, 4})
      text.push_back(static_cast<char>(number));
    text += fmt::format("{:08x}", crc32c(std::as_bytes(std::span(text))));
    index.shards[0].blocks.clear();
    index.shards[0].names.clear();
    ASSERT_TRUE(add_offsets(index, text, "f"));
    EXPECT_EQ(index.shards[0].blocks, (std::vector<std::uint32_t>{0, 5, 9}));
    EXPECT_TRUE(index.shards[0].names.empty());
  }
}

TEST(ShardIndex, OffsetsOfSamplesWithoutBytesAreRefused) {
  shard_index index = three_shards();
  index.shards[1].blocks = {1, 1, 9};
  EXPECT_EQ(add_offsets(index, offsets_text(index), "f").error().kind(), errc::bad_index);
  index.shards[1].blocks = {1, 5, 21};  // beyond the shard's bytes
  EXPECT_EQ(add_offsets(index, offsets_text(index), "f").error().kind(), errc::bad_index);
  index = three_shards();
  index.shards[1].names.push_back(7);  // belongs to no sample
  EXPECT_EQ(add_offsets(index, offsets_text(index), "f").error().kind(), errc::bad_index);
}

// Cut anywhere, an index, its offsets and a saved state are errors: none is taken for a shorter
// one.
TEST(CutTexts, EveryCutIsAnError) {
  shard_index index = three_shards();
  const std::string offsets = offsets_text(index);
  for (std::size_t size = 0; size < offsets.size(); ++size) {
    EXPECT_FALSE(add_offsets(index, offsets.substr(0, size), "f")) << size;
  }
  const std::string text = json{
      {"wids_version", 1},
      {"name", "n"},
      {"shardlist",
       {{{"url", "a.tar"}, {"nsamples", 12}, {"filesize", 1234}},
        {{"url", "b.tar"},
         {"nsamples", 34}}}}}.dump(2);
  for (std::size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(parse_index(text.substr(0, size), "i.json", "", nothing_there)) << size;
  }
  state saved;
  saved.put("lanes", {1, 2, 3});
  saved.put("lane0/cursor", {4, 5, 6, 7});
  const origin held{.lane = 0, .shard = 2, .offset = 1024, .epoch = 1, .position = 7};
  saved.hold("pending", {&held, 1});
  const std::string state_text = saved.to_json();
  EXPECT_EQ(state::from_json(state_text).value(), saved);
  for (std::size_t size = 0; size < state_text.size(); ++size) {
    EXPECT_FALSE(state::from_json(state_text.substr(0, size))) << size;
  }
  // A single changed byte is noticed as well.
  for (std::size_t i = 0; i < state_text.size(); ++i) {
    std::string other = state_text;
    other[i] = other[i] == '1' ? '2' : '1';
    if (const auto read = state::from_json(other)) EXPECT_EQ(*read, saved) << i;
  }
}

TEST(ShardIndex, SecretsAreNotWritten) {
  EXPECT_EQ(url_without_secrets("http://u:p@h/a.tar"), "http://h/a.tar");
  EXPECT_EQ(url_without_secrets("http://h/a.tar?token=abc&part=1"), "http://h/a.tar?part=1");
  EXPECT_EQ(url_without_secrets("http://h/a.tar?access_token=abc"), "http://h/a.tar");
  EXPECT_EQ(url_without_secrets("https://h/a.tar?X-Amz-Signature=1&X-Amz-Date=2"),
            "https://h/a.tar");
  EXPECT_EQ(url_without_secrets("a?token=b.tar"), "a?token=b.tar");  // a file
  EXPECT_EQ(url_without_secrets("s3://u:p@b/x&y?#1.tar"), "s3://b/x&y?#1.tar");
  EXPECT_EQ(url_without_secrets("http://h/a%20b.tar"), "http://h/a%20b.tar");
  // Whatever a signature is called: a parameter not known to identify an object is left out.
  for (const char* name : {"Signature", "sig", "auth_key", "q-signature", "X-Amz-Credential", "st",
                           "Policy", "Expires", "credential", "code", "key", "hdnea", "SIG", ""}) {
    const std::string secret = std::string(name) + "=canary";
    for (const std::string& url :
         {"http://h/a?" + secret, "http://h/a?shard=1&" + secret, "http://h/a?" + secret + "&v=2",
          "https://u:canary@h/a?" + secret, std::string("HTTP://h/a?canary"),
          "s3://u:canary@b/k?" + secret}) {
      EXPECT_EQ(url_without_secrets(url).find("canary"), std::string::npos) << url;
    }
  }
  EXPECT_EQ(url_without_secrets("http://h/get?shard=7&sig=1&v=2"), "http://h/get?shard=7&v=2");
}

// A shard without samples among others: it is in no window.
TEST(Windows, AShardWithoutSamplesIsPassedOver) {
  auto store = std::make_shared<memory_store>(10'000);
  store->put("some", testing::text_shard(0, 5, 100));
  store->put("empty", std::string(1024, '\0'));
  shard_index index;
  engine eng(testing::with_memory_store(store));
  index = testing::index_of(eng, {"memory:some"});
  index.shards.push_back({.url = "memory:empty", .md5 = "", .dataset = "", .blocks = {}});
  ASSERT_TRUE(index.has_offsets());
  auto data = eng.run(indexed_shards(index, {.lanes = 1, .mode = epoch_mode::resample}) |
                      window_shuffle({.samples = 10}));
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(data.next());
  auto exact = eng.run(indexed_shards(index, {.lanes = 1}) | window_shuffle({.samples = 10}));
  EXPECT_EQ(testing::keys_of_epoch(exact).size(), 5U);
  index.shards.erase(index.shards.begin());
  EXPECT_THROW(eng.run(indexed_shards(index, {.lanes = 1, .mode = epoch_mode::resample}) |
                       window_shuffle({.samples = 10})),
               failure);
}

}  // namespace
}  // namespace millrace
