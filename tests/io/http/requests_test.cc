// The bytes that are sent: whatever bytes a URL, an index or a store's listing contains, a request
// is one request with its usual fields, or is not sent.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/coroutines/scope.h"
#include "io/http/ask.h"
#include "io/stores/listing.h"
#include "io/stores/store.h"
#include "tests/support/seeds.h"
#include "tests/support/simulated_client.h"

namespace millrace {
namespace {

using testing::sent;
using testing::simulated_client;

const std::map<std::string, std::string> environment{
    {"AWS_ENDPOINT_URL", "http://h/base"},
    {"AWS_ACCESS_KEY_ID", "id"},
    {"AWS_SECRET_ACCESS_KEY", "key"},
    {"STORAGE_EMULATOR_HOST", "http://h"},
    {"GOOGLE_OAUTH_ACCESS_TOKEN", "token"},
    {"AZURE_STORAGE_ACCOUNT", "account"},
    {"AZURE_STORAGE_KEY", "a2V5"},
    {"AZURE_STORAGE_BLOB_ENDPOINT", "http://h"},
    {"AIS_ENDPOINT", "http://h"},
    {"AIS_AUTHN_TOKEN", "token"},
    {"HF_ENDPOINT", "http://h"},
    {"HF_TOKEN", "token"},
    {"AWS_EC2_METADATA_DISABLED", "true"},
    {"HOME", "/nowhere"},
};

// Text of which many pieces have a meaning in a request or a URL.
std::string drawn_text(random_stream& random) {
  constexpr std::string_view pieces[] = {"\r\n",
                                         "\n",
                                         "\r",
                                         " ",
                                         "\t",
                                         ":",
                                         "/",
                                         "?",
                                         "#",
                                         "@",
                                         "[",
                                         "]",
                                         "%0d%0a",
                                         "=",
                                         "&",
                                         "..",
                                         "X-Evil: 1",
                                         " HTTP/1.1\r\n",
                                         "\r\n\r\nGET /evil HTTP/1.1\r\n",
                                         "?versionId=",
                                         "?archpath=",
                                         "\\",
                                         "a",
                                         "bucket",
                                         "\x7f",
                                         "\xff"};
  std::string out = "b";
  const auto n = 1 + static_cast<int>(random.uniform() * 6);
  for (int i = 0; i < n; ++i) {
    if (random.uniform() < 0.3) {
      out += static_cast<char>(static_cast<unsigned char>(random.uniform() * 256));
    } else {
      out += pieces[static_cast<std::size_t>(random.uniform() * std::size(pieces))];
    }
  }
  return out;
}

// The names of the request's fields; nullopt: it is not exactly one request without a body.
std::optional<std::set<std::string>> fields_of(std::string_view request) {
  const auto is_visible = [](char c) { return c > 0x20 && c < 0x7f; };
  if (request.find("\r\n\r\n") != request.size() - 4) return std::nullopt;
  request.remove_suffix(2);
  std::set<std::string> names;
  for (bool first = true; !request.empty(); first = false) {
    const std::string_view line = request.substr(0, request.find("\r\n"));
    request.remove_prefix(line.size() + 2);
    if (line.find_first_of(std::string_view("\r\n\0", 3)) != line.npos) return std::nullopt;
    if (first) {
      if (!line.starts_with("GET ") || !line.ends_with(" HTTP/1.1")) return std::nullopt;
      const auto target = line.substr(4, line.size() - 4 - 9);
      if (target.empty() || !std::ranges::all_of(target, is_visible)) return std::nullopt;
      continue;
    }
    const auto colon = line.find(": ");
    if (colon == line.npos || !std::ranges::all_of(line.substr(0, colon), is_visible)) {
      return std::nullopt;
    }
    if (!names.insert(std::string(line.substr(0, colon))).second) return std::nullopt;
  }
  return names;
}

class Requests : public ::testing::TestWithParam<bool> {
 protected:
  Requests() {
    client_.options.environment = environment;
    client_.options.attempts = 1;
    client_.options.s3_path_style = !GetParam();
    if (GetParam()) client_.options.environment["http_proxy"] = "http://h:80";
    client_.net->serve("10.0.0.1", [this](const std::string& request) {
      requests_.push_back(request);
      return std::vector<sent>{{.bytes = "HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\n"}};
    });
  }

  // The requests that are sent for an object; empty: none.
  std::vector<std::string> sent_for(http_object object) {
    requests_.clear();
    client_.time.run(send(&client_, std::move(object)));
    return std::exchange(requests_, {});
  }
  static awaitable<void> send(simulated_client* client, http_object object) {
    auto stack = client->make_stack();
    scope tasks(client->context.get_executor());
    (void)co_await ask(*stack, tasks, std::move(object));
    tasks.stop();
    co_await tasks.join();
  }

  simulated_client client_;
  std::vector<std::string> requests_;
};

INSTANTIATE_TEST_SUITE_P(DirectAndByProxy, Requests, ::testing::Bool());

TEST_P(Requests, AStoresObjectIsAskedForByOneRequestWhateverItsNamesAre) {
  for (const auto& [scheme, store] : object_stores(client_.make_stack())) {
    SCOPED_TRACE(scheme);
    url plain;
    plain.scheme = scheme;
    plain.host = scheme == "hf" ? "datasets" : "bucket";
    plain.path = "/owner/name/key";
    const auto usual = sent_for(store->locate(plain).value());
    ASSERT_EQ(usual.size(), 1U);
    const auto expected = fields_of(usual[0]);
    ASSERT_TRUE(expected) << usual[0];
    random_stream random(testing::seeds(1).front(), purpose::fake_data);
    int asked = 0;
    for (int i = 0; i < 300; ++i) {
      url where = plain;
      if (scheme != "hf" && i % 2 == 0) where.host = drawn_text(random);
      where.path = "/" + drawn_text(random) + "/" + drawn_text(random) + "/" + drawn_text(random);
      auto object = store->locate(where);
      if (!object) continue;
      for (const std::string& request : sent_for(std::move(*object))) {
        ++asked;
        const auto fields = fields_of(request);
        ASSERT_TRUE(fields) << request;
        EXPECT_EQ(*fields, *expected) << request;
      }
    }
    EXPECT_GT(asked, 100);
  }
}

TEST_P(Requests, AUrlIsAskedForByOneRequestOrRefused) {
  random_stream random(testing::seeds(1).front(), purpose::fake_data);
  int asked = 0;
  const auto stack = client_.make_stack();
  for (int i = 0; i < 2000; ++i) {
    const std::string host = i % 4 == 0   ? "h"
                             : i % 4 == 1 ? drawn_text(random)
                             : i % 4 == 2 ? "[" + drawn_text(random) + "]"
                                          : drawn_text(random) + "@h";
    const auto target = parse_url("http://" + host + "/" + drawn_text(random));
    if (!target) continue;
    http_object object(*target);
    object.secrets = stack->secrets_for(*target);
    for (const std::string& request : sent_for(std::move(object))) {
      ++asked;
      auto fields = fields_of(request);
      ASSERT_TRUE(fields) << request;
      fields->erase("Authorization");
      EXPECT_EQ(*fields, (std::set<std::string>{"Host", "User-Agent", "Accept-Encoding"}));
    }
  }
  EXPECT_GT(asked, 500);
}

// Not every target comes from parse_url().
TEST_P(Requests, NoByteThatCouldEndALineGetsIntoARequest) {
  for (int byte = 0; byte < 256; ++byte) {
    const bool is_visible = byte > 0x20 && byte < 0x7f;
    url target = parse_url("http://h/a").value();
    target.path += static_cast<char>(byte);
    EXPECT_EQ(sent_for(http_object(target)).size(), is_visible ? 1U : 0U) << byte;
    http_object with_field(parse_url("http://h/a").value());
    with_field.fields = {{"X-Name", std::string("v") + static_cast<char>(byte)}};
    const bool is_control = byte < 0x20 || byte == 0x7f;
    EXPECT_EQ(sent_for(std::move(with_field)).size(), is_control ? 0U : 1U) << byte;
  }
}

TEST(StoreKeys, WhatAListingNamesIsAKeyWhateverItLooksLike) {
  simulated_client client;
  client.options.environment = environment;
  const auto stores = object_stores(client.make_stack());
  const auto path_of = [&](const std::string& text) {
    const url where = parse_url(text).value();
    return stores.at(where.scheme)->locate(where)->target.path;
  };
  EXPECT_EQ(path_of("s3://b/k"), "/base/b/k");
  EXPECT_EQ(path_of("s3://b/k?versionId=V+1"), "/base/b/k?versionId=V%2B1");
  EXPECT_EQ(path_of("s3://b/k?versionId=1?versionId="), "/base/b/k%3FversionId%3D1");
  EXPECT_EQ(path_of("s3://b/k?versionId=1?versionId=2"), "/base/b/k%3FversionId%3D1?versionId=2");
  EXPECT_EQ(path_of("ais://b/k?archpath=d/f"), "/v1/objects/b/k?provider=ais&archpath=d/f");
  EXPECT_EQ(path_of("ais://b/k?archpath=d?archpath="),
            "/v1/objects/b/k%3Farchpath%3Dd?provider=ais");
}

}  // namespace
}  // namespace millrace
