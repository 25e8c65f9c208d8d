// Uploads to stores, over the real client and a simulated network, in simulated time: the store in
// memory checks what it is sent, as real ones do.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "engine/coroutines/scope.h"
#include "io/hashes.h"
#include "io/stores/known_stores.h"
#include "io/stores/store.h"
#include "io/stores/stored_objects.h"
#include "io/stores/upload.h"
#include "tests/support/uploads.h"

namespace millrace {
namespace {

using testing::body_of;
using testing::etag;
using testing::field_of;
using testing::refuse;
using testing::reply;
using testing::secret;
using testing::sent;
using testing::simulated_client;
using testing::uploaded_bytes;

class Uploads : public testing::Uploads {};

INSTANTIATE_TEST_SUITE_P(S3AndGoogle, Uploads, ::testing::Values("s3", "gs"),
                         [](const auto& p) { return p.param; });

TEST_P(Uploads, ASmallObjectIsOneRequestAndIsLookedAt) {
  ASSERT_TRUE(put("a/b c+", "hello"));
  EXPECT_EQ(bucket_.objects.at("/b/a/b%20c%2B").content, "hello");
  EXPECT_EQ(bucket_.log, (std::vector<std::string>{"PUT /b/a/b%20c%2B", "HEAD /b/a/b%20c%2B"}));
  ASSERT_TRUE(put("a/b c+", "again"));
  EXPECT_EQ(bucket_.objects.at("/b/a/b%20c%2B").content, "again");
  ASSERT_TRUE(put("empty", ""));
  EXPECT_EQ(bucket_.objects.at("/b/empty").content, "");
}

TEST_P(Uploads, ALargeObjectGoesInPartsAndNoneIsLeft) {
  for (const std::size_t size : {part_bytes, part_bytes + 1, 7 * part_bytes, 7 * part_bytes + 5}) {
    bucket_.log.clear();
    const std::string content = uploaded_bytes(size);
    ASSERT_TRUE(put("large", content)) << size;
    EXPECT_TRUE(bucket_.objects.at("/b/large").content == content) << size;
    EXPECT_TRUE(bucket_.uploads.empty());
    EXPECT_EQ(count("PUT", "partNumber"),
              size == part_bytes ? 0 : static_cast<int>((size - 1) / part_bytes + 1));
  }
}

TEST_P(Uploads, ADeletedObjectIsGoneAndOneThatNeverWasIsNoError) {
  ASSERT_TRUE(put("a", "x"));
  EXPECT_TRUE(remove("a"));
  EXPECT_TRUE(bucket_.objects.empty());
  EXPECT_TRUE(remove("a"));
}

TEST_P(Uploads, EachRequestIsRepeatedByItself) {
  const std::string content = uploaded_bytes(5 * part_bytes);
  const auto status = [](int which) { return [=](const std::string&) { return reply(which); }; };
  const auto code = [](int which, const char* said) {
    return [=](const std::string&) { return refuse(which, said); };
  };
  struct answered {
    std::function<std::vector<sent>(const std::string&)> answer;
    bool has_body = false;
  };
  const std::vector<answered> faults = {
      {status(500)},
      {status(503)},
      {status(429)},
      {code(400, "RequestTimeout"), true},
      {code(400, "BadDigest"), true},
      {code(200, "InternalError"), true},
      {[](const std::string&) {
        return std::vector<sent>{{.bytes = "HTTP/1.1 2", .ends = sent::end::reset}};
      }},
      {[](const std::string&) { return std::vector<sent>{{.ends = sent::end::fin}}; }},
      {[](const std::string&) { return std::vector<sent>(); }},  // silence
  };
  for (const auto& how : faults) {
    for (const auto& [method, within] : std::vector<std::pair<std::string, std::string>>{
             {"POST", "uploads"}, {"PUT", "partNumber=3"}, {"POST", "uploadId"}, {"HEAD", ""}}) {
      if (method == "HEAD" && how.has_body) continue;
      bucket_.log.clear();
      fail(2, method, within, how.answer);
      const auto done = put("large", content);
      ASSERT_TRUE(done) << done.error().message() << method << within;
      EXPECT_TRUE(bucket_.objects.at("/b/large").content == content);
      EXPECT_EQ(count("PUT", "partNumber=1&"), 1);
      EXPECT_TRUE(method != "PUT" || count("PUT", "partNumber=3&") == 3);
      bucket_.uploads.clear();  // of a first answer that was lost
    }
  }
}

TEST_P(Uploads, AnyOneFailureOfTheNetworkIsSurvived) {
  const std::string content = uploaded_bytes(3 * part_bytes);
  int points = 0;
  for (bool reached = true; reached; ++points) {
    reached = false;
    int left = points;
    testing::simulated_network::fault = [&] { return left-- == 0 ? reached = true : false; };
    const auto done = put("large", content);
    ASSERT_TRUE(done) << done.error().message() << points;
    testing::simulated_network::fault = nullptr;
    ASSERT_TRUE(bucket_.objects.at("/b/large").content == content) << points;
    bucket_.objects.clear();
  }
  EXPECT_GT(points, 20);
}

TEST_P(Uploads, AServerThatStopsReadingIsLeftInTime) {
  client_.options.attempts = 3;
  client_.net->takes = part_bytes / 2;
  const auto before = client_.time.now();
  const auto done = put("large", uploaded_bytes(part_bytes));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind(), errc::timed_out);
  EXPECT_NE(done.error().message().find("attempt 3 of 3"), std::string::npos);
  EXPECT_LT(client_.time.now() - before, std::chrono::minutes(2));
}

TEST_P(Uploads, AFailedUploadInPartsIsAborted) {
  client_.options.attempts = 2;
  fail(100, "PUT", "partNumber=4", [](const std::string&) { return reply(500); });
  const auto done = put("large", uploaded_bytes(9 * part_bytes));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind(), errc::http_status);
  EXPECT_EQ(done.error().where(), url_of("large"));
  EXPECT_NE(done.error().what().find("500"), std::string::npos);
  EXPECT_EQ(done.error().message().find(secret), std::string::npos);
  EXPECT_TRUE(bucket_.objects.empty());
  EXPECT_TRUE(bucket_.uploads.empty());
  EXPECT_EQ(count("DELETE", "uploadId"), 1);
}

TEST_P(Uploads, ARefusalIsToldWithTheStoresCode) {
  fail(100, "PUT", "", [](const std::string&) {
    return refuse(403, std::string("SignatureDoesNotMatch</Code><X>") + secret);
  });
  const auto done = put("a", "x");
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind(), errc::not_allowed);
  EXPECT_NE(done.error().message().find("403 (SignatureDoesNotMatch)"), std::string::npos);
  EXPECT_NE(done.error().message().find("permit to write"), std::string::npos);
  EXPECT_EQ(done.error().message().find(secret), std::string::npos);
  EXPECT_EQ(count("PUT"), 1);
}

TEST_P(Uploads, AStoreThatKeepsOtherBytesIsAnError) {
  const std::string content = uploaded_bytes(3 * part_bytes);
  for (const std::string& key : {std::string("small"), std::string("large")}) {
    const std::string sent_content = key == "small" ? "hello" : content;
    for (const auto& head : {"Content-Length: 4\r\n", "Content-Length: {}\r\n"}) {
      fail(100, "HEAD", key, [&](const std::string&) {
        const std::string length = fmt::format(fmt::runtime(head), sent_content.size());
        const std::string other = digest_of(hash_algorithm::md5, "other");
        return std::vector<sent>{{.bytes = "HTTP/1.1 200 x\r\n" + length +
                                           etag(other, key == "small" ? "" : "-3") + "\r\n"}};
      });
      const auto done = put(key, sent_content);
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().kind(), errc::integrity) << done.error().message();
      EXPECT_EQ(done.error().where(), url_of(key));
    }
  }
}

TEST_P(Uploads, APartThatArrivesOtherwiseIsAnErrorAndAborted) {
  fail(1, "PUT", "partNumber=2", [](const std::string&) {
    return reply(200, "", etag(digest_of(hash_algorithm::md5, "other")));
  });
  const auto done = put("large", uploaded_bytes(3 * part_bytes));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind(), errc::integrity);
  EXPECT_TRUE(bucket_.uploads.empty());
}

// As OSS and COS do: a digest of another kind, and "-N".
TEST_P(Uploads, AStoreMayHaveItsOwnRuleForTheETagsOfParts) {
  const std::string content = uploaded_bytes(3 * part_bytes);
  bucket_.own_etag = std::string(32, 'A') + "-3";
  ASSERT_TRUE(put("large", content));
  EXPECT_EQ(count("GET"), 0);
  // Another one than the store answered is another object's.
  fail(1, "HEAD", "", [&](const std::string&) {
    return std::vector<sent>{
        {.bytes = fmt::format("HTTP/1.1 200 x\r\nContent-Length: {}\r\nETag: \"{}-3\"\r\n\r\n",
                              content.size(), std::string(32, 'B'))}};
  });
  const auto done = put("large", content);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind(), errc::integrity);
  // Where the answer was lost, the bytes are compared.
  fail(1, "POST", "uploadId", [this](const std::string& r) {
    (void)bucket_.answer(r);
    return std::vector<sent>{{.bytes = {}, .ends = sent::end::reset}};
  });
  const auto again = put("large", content);
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(count("GET"), 1);
}

TEST_P(Uploads, AnObjectIsNotReplacedIfItMustBeNew) {
  ASSERT_TRUE(put("a", "first", true));
  const auto done = put("a", "second", true);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind(), errc::changed);
  EXPECT_EQ(bucket_.objects.at("/b/a").content, "first");
}

TEST_P(Uploads, AnAnswerThatWasLostIsNoConflict) {
  fail(1, "PUT", "", [this](const std::string& r) {
    (void)bucket_.answer(r);  // it has no fault left
    return std::vector<sent>{{.bytes = {}, .ends = sent::end::reset}};
  });
  EXPECT_TRUE(put("a", "first", true));
}

TEST_P(Uploads, AStoreThatDoesNotKnowTheConditionIsWrittenToWithoutIt) {
  bucket_.fault = [](const std::string& r) -> std::optional<std::vector<sent>> {
    const bool is_conditional =
        !field_of(r, "If-None-Match").empty() || !field_of(r, "x-goog-if-generation-match").empty();
    if (!is_conditional) return std::nullopt;
    return refuse(501, "NotImplemented");
  };
  const auto done = put("a", "first", true);
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_EQ(bucket_.objects.at("/b/a").content, "first");
  EXPECT_EQ(count("PUT"), 2);
}

TEST_P(Uploads, WhatCannotBeComparedIsNoConflict) {
  ASSERT_TRUE(put("a", "first", true));
  fail(100, "GET", "", [](const std::string&) { return refuse(403, "AccessDenied"); });
  const auto done = put("a", "second", true);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().kind(), errc::not_allowed);
}

TEST(UploadParts, GrowWhereAnObjectWouldHaveTooMany) {
  constexpr std::size_t mib = 1UL << 20;
  EXPECT_EQ(upload_part_bytes(17 * mib, 16 * mib), 16 * mib);
  EXPECT_EQ(upload_part_bytes(10'000 * 16 * mib, 16 * mib), 16 * mib);
  EXPECT_EQ(upload_part_bytes(10'000 * 16 * mib + 1, 16 * mib), 17 * mib);
}

TEST(KnownStores, EachIsWrittenToOrSaysWhatToUseInstead) {
  const auto stack = std::make_shared<http_stack>(http_options(), real_network(0), real_time());
  for (const known_store* store : known_stores) {
    const bool writes = store->make(stack)->uploads() != nullptr;
    EXPECT_EQ(writes, store->why_not_written.empty()) << store->scheme;
    const auto checked = check_writable(fmt::format("{}://bucket/prefix", store->scheme));
    EXPECT_EQ(checked.has_value(), writes);
    if (!writes) EXPECT_EQ(checked.error().what_to_do(), store->why_not_written);
  }
  const auto http = check_writable("http://host/path");
  ASSERT_FALSE(http);
  EXPECT_NE(http.error().message().find("s3://, gs://"), std::string::npos);
  EXPECT_FALSE(check_writable("s3:///prefix"));
  EXPECT_TRUE(names_server("S3://b/p"));
  EXPECT_FALSE(names_server("./s3:/b"));
  for (const char* text : {"s3:/b/p", "S3:b", "gs:", "http:/h/p"}) {
    const auto checked = check_has_two_slashes(text);
    ASSERT_FALSE(checked) << text;
    EXPECT_EQ(checked.error().kind(), errc::usage);
  }
  EXPECT_EQ(check_has_two_slashes("S3:/b/p").error().what_to_do(),
            "write s3://b/p, or ./S3:/b/p for a folder of that name");
  for (const char* text : {"s3://b/p", "./s3:/b", "folder", "", "a/b:c", "run:1", "s3"}) {
    EXPECT_TRUE(check_has_two_slashes(text)) << text;
  }
}

TEST(StoredObjects, ANameIsFoundHoweverItsURLIsWritten) {
  const stored_objects objects("S3://Bucket/runs/one//", {});
  EXPECT_EQ(objects.prefix(), "s3://Bucket/runs/one");
  for (const char* text : {"s3://Bucket/runs/one/step-1", "S3://Bucket/runs/one/step-1",
                           "s3://Bucket/runs/one/step-1/", "s3://Bucket/runs/one//step-1//"}) {
    EXPECT_EQ(objects.name_of(text), "step-1") << text;
  }
  // Keys are names and no paths: a doubled '/' within them is another key.
  for (const char* text :
       {"s3://Bucket/runs/one", "s3://Bucket/runs/one/", "s3://bucket/runs/one/a",
        "s3://Bucket/runs//one/a", "gs://Bucket/runs/one/a", "runs/one/a", ""}) {
    EXPECT_EQ(objects.name_of(text), "") << text;
  }
}

// Shared Key: the string that is signed, spelled out as "Authorize with Shared Key" lays it out.
TEST(AzureUploads, BlocksAreSignedAndListed) {
  simulated_client client;
  client.options.environment = {{"AZURE_STORAGE_ACCOUNT", "account"},
                                {"AZURE_STORAGE_KEY", "a2V5"},
                                {"AZURE_STORAGE_BLOB_ENDPOINT", "http://h"}};
  std::map<std::string, std::string> blocks;
  std::string blob;
  client.net->serve("10.0.0.1", [&](const std::string& r) {
    const std::string line = r.substr(0, r.find(" HTTP/1.1"));
    const std::string body = body_of(r);
    const std::string query = line.substr(std::min(line.find('?'), line.size() - 1) + 1);
    const std::string type = field_of(r, "x-ms-blob-type");
    std::string text =
        fmt::format("{}\n\n\n{}\n{}\n\n\n\n\n{}\n\n\n{}x-ms-date:{}\nx-ms-version:{}\n/account/c/k",
                    line.substr(0, line.find(' ')), body.empty() ? "" : std::to_string(body.size()),
                    field_of(r, "Content-MD5"), field_of(r, "If-None-Match"),
                    type.empty() ? "" : "x-ms-blob-type:" + type + "\n", field_of(r, "x-ms-date"),
                    field_of(r, "x-ms-version"));
    const auto id = query.find("blockid=");
    const std::string block = id == query.npos ? "" : percent_decoded(query.substr(id + 8));
    if (!block.empty()) text += "\nblockid:" + block + "\ncomp:block";
    if (query == "comp=blocklist") text += "\ncomp:blocklist";
    EXPECT_EQ(field_of(r, "Authorization"), "SharedKey account:" + base64(hmac_sha256("key", text)))
        << text;
    if (r.starts_with("GET")) return reply(200, blob);
    if (r.starts_with("HEAD")) {
      return std::vector<sent>{
          {.bytes = fmt::format("HTTP/1.1 200 x\r\nContent-Length: {}\r\nETag: \"0x8D\"\r\n\r\n",
                                blob.size())}};
    }
    if (!type.empty()) {
      if (!field_of(r, "If-None-Match").empty() && !blob.empty()) {
        return refuse(409, "BlobAlreadyExists");
      }
      blob = body;
    } else if (!block.empty()) {
      blocks[block] = body;
    } else {
      blob.clear();
      constexpr std::string_view begin = "<Latest>";
      for (auto at = body.find(begin); at != body.npos; at = body.find(begin, at + 1)) {
        const auto name = at + begin.size();
        blob += blocks.at(body.substr(name, body.find('<', name) - name));
      }
    }
    return reply(201);
  });
  const std::string content = uploaded_bytes(25'000);
  const auto put = [](simulated_client* c, const std::string* what,
                      bool only_if_absent) -> awaitable<result<void>> {
    const auto stack = c->make_stack();
    const auto store = azure_store.make(stack);
    scope tasks(c->context.get_executor());
    const upload_terms terms{
        .only_if_absent = only_if_absent, .part_bytes = 10'000, .parts_at_once = 2};
    const auto done = co_await upload(*stack, tasks, *store->uploads(),
                                      parse_url("az://c/k").value(), *what, terms);
    tasks.stop();
    co_await tasks.join();
    co_return done;
  };
  const auto done = client.time.run(put(&client, &content, false));
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_TRUE(blob == content);
  EXPECT_EQ(blocks.size(), 3U);
  // Blocks that are not listed yet belong to the blob: another upload's have other names.
  ASSERT_TRUE(client.time.run(put(&client, &content, false)));
  EXPECT_EQ(blocks.size(), 6U);
  const std::string small = "hello";
  ASSERT_TRUE(client.time.run(put(&client, &small, false)));
  EXPECT_EQ(blob, small);
  const std::string other = "other";
  const auto again = client.time.run(put(&client, &other, true));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().kind(), errc::changed);
}

}  // namespace
}  // namespace millrace
