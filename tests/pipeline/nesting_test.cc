// Values within values: bounded in every format, by the same limit.
#include <gtest/gtest.h>

#include "engine/base/nesting.h"
#include "engine/memory/work_memory.h"
#include "pipeline/samples/fields.h"
#include "pipeline/samples/label.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/state/state.h"

namespace millrace {
namespace {

std::string repeated(const std::string& what, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += what;
  return out;
}

result<value> field_of(const char* extension, const std::string& text) {
  return decode_field(extension, bytes::unowned(text));
}

TEST(Nesting, BombsOfEveryFormatAreErrors) {
  constexpr std::size_t deep = 1'000'000;
  const std::string arrays = repeated("[", deep);
  const std::string objects = repeated("{\"a\":", deep);
  for (const std::string& text : {arrays, objects, arrays + repeated("]", deep)}) {
    EXPECT_EQ(field_of("json", text).error().kind(), errc::bad_field);
    sample s{.key = "k"};
    s.fields.push_back({"json", bytes::unowned(text)});
    EXPECT_FALSE(label_of(s, "json:a"));
    EXPECT_EQ(state::from_json(text).error().kind(), errc::bad_state);
    const auto none = [](const std::string&) -> result<std::string> {
      return error(errc::not_found, "none");
    };
    EXPECT_FALSE(parse_index(text, "http://h/i.json", "", none));
    EXPECT_FALSE(parse_index(R"({"wids_version": )" + text + "}", "http://h/i.json", "", none));
    EXPECT_FALSE(state::from_json(R"({"millrace_state": )" + text + R"(, "records": 1})"));
  }
  // CBOR: strings, byte strings, arrays, maps (also of definite length) and tags.
  for (const char* open :
       {"\x7f", "\x5f", "\x9f", "\xbf\x01", "\x81", "\xa1\x01", "\xc1", "\xd8\x40"}) {
    EXPECT_EQ(field_of("cbor", repeated(open, deep)).error().kind(), errc::bad_field) << open;
    // Valid, where one value in each suffices.
    EXPECT_EQ(field_of("cbor", repeated(open, deep) + "\x01").error().kind(), errc::bad_field)
        << open;
  }
  for (const char* open : {"\x91", "\x81\xa1", "\xdc", "\xdd"}) {
    EXPECT_EQ(field_of("msgpack", repeated(open, deep)).error().kind(), errc::bad_field) << open;
  }
}

// A label in a document whose values take far more memory than its text.
TEST(Nesting, ALabelsDocumentIsCountedAsWorkMemory) {
  work_memory little(2 << 20);
  const work_memory_scope in(little);
  sample s{.key = "k", .url = std::make_shared<std::string>("u")};
  const auto label_in = [&](std::size_t lists) {
    const std::string text = "{\"a\":7,\"b\":[" + repeated("[],", lists) + "[]]}";
    s.fields = {{"json", bytes::unowned(text)}};
    return label_of(s, "json:a");
  };
  EXPECT_EQ(label_in(1'000).value(), 7);
  const error refused = label_in(100'000).error();
  EXPECT_EQ(refused.kind(), errc::too_large);
  EXPECT_TRUE(refused.is_skippable());
  EXPECT_EQ(refused.where(), "u");
  EXPECT_EQ(refused.sample_key(), "k");
}

// A document of nested objects, `depth` of them, the innermost with `last`.
std::string objects_of(int depth, const std::string& last) {
  const auto n = static_cast<std::size_t>(depth);
  return repeated("{\"a\":", n) + last + repeated("}", n);
}

TEST(Nesting, EveryKindOfFileIsRefusedBeyondTheSameDepthWithItsPlaceAndWhatToDo) {
  const auto none = [](const std::string&) -> result<std::string> {
    return error(errc::not_found, "none");
  };
  const std::string bound = fmt::format("nested deeper than {} levels", deepest_nesting);
  for (const bool fits : {true, false}) {
    const std::string deep = objects_of(deepest_nesting - (fits ? 1 : 0), "1");
    const std::string index =
        R"({"wids_version":1,"shardlist":[{"url":"a.tar","nsamples":1}],"more":)" + deep + "}";
    const auto read = parse_index(index, "/d/i.json", "", none);
    EXPECT_EQ(read.has_value(), fits);
    const auto restored = state::from_json(R"({"millrace_state":2,"more":)" + deep + "}");
    sample s{.key = "k", .url = std::make_shared<const std::string>("/d/t.tar")};
    const std::string label = R"({"cls":7,"more":)" + deep + "}";
    s.fields.push_back({"json", bytes::unowned(label)});
    EXPECT_EQ(label_of(s, "json:cls").has_value(), fits);
    EXPECT_EQ(field_of("json", label).has_value(), fits);
    if (fits) continue;
    for (const error& why : {read.error(), restored.error(), label_of(s, "json:cls").error(),
                             field_of("json", label).error()}) {
      EXPECT_NE(why.message().find(bound), std::string::npos) << why.message();
      EXPECT_NE(why.message().find("; "), std::string::npos) << why.message();
    }
    EXPECT_EQ(read.error().kind(), errc::bad_index);
    EXPECT_EQ(read.error().where(), "/d/i.json");
    EXPECT_EQ(restored.error().kind(), errc::bad_state);
    EXPECT_EQ(label_of(s, "json:cls").error().where(), "/d/t.tar");
  }
}

TEST(Nesting, UpToTheBoundThereIsNoError) {
  for (const int depth : {1, 100, deepest_nesting, deepest_nesting + 1}) {
    const auto n = static_cast<std::size_t>(depth);
    const bool fits = depth <= deepest_nesting;
    const std::string json = repeated("[", n) + "1" + repeated("]", n);
    EXPECT_EQ(nests_deeper(json), !fits);
    EXPECT_EQ(field_of("json", json).has_value(), fits);
    EXPECT_EQ(field_of("cbor", repeated("\x81", n) + "\x01").has_value(), fits);
    EXPECT_EQ(field_of("cbor", repeated("\x9f", n) + "\x01" + repeated("\xff", n)).has_value(),
              fits);
    EXPECT_EQ(field_of("msgpack", repeated("\x91", n) + "\x01").has_value(), fits);
  }
  EXPECT_FALSE(nests_deeper("\"" + repeated("[", 500) + "\\\"" + repeated("{", 500) + "\""));
  // Strings of parts, and of no parts.
  const auto text = field_of("cbor", std::string("\x82\x7f\x62"
                                                 "ab\x61"
                                                 "c\xff\x7f\xff",
                                                 10));
  ASSERT_TRUE(text) << text.error().what();
  EXPECT_EQ(std::get<json_text>(*text).text, R"(["abc",""])");
  for (const char* bad : {"\x7f\x41\x61\xff", "\x7f\x01\xff", "\xff", "\x9f\x01", "\x62\x61",
                          "\x7f\x7f\xff\xff", "\x1c", "\x9b\xff\xff\xff\xff\xff\xff\xff\xff\x01"}) {
    EXPECT_FALSE(field_of("cbor", bad));
  }
}

TEST(Nesting, IntegersOfCborThatJsonTreesLackAreNoOtherIntegers) {
  using namespace std::string_literals;
  const std::string least = "\x3b\x7f" + std::string(7, '\xff');
  EXPECT_EQ(std::get<json_text>(field_of("cbor", least).value()).text, "-9223372036854775808");
  for (const std::string& below :
       {"\x3b\x80"s + std::string(7, '\0'), "\x3b"s + std::string(8, '\xff')}) {
    for (const std::string& around : {""s, "\x81"s, "\xa1\x61n"s, "\xc1"s}) {
      const auto refused = field_of("cbor", around + below);
      ASSERT_FALSE(refused) << around.size();
      EXPECT_EQ(refused.error().kind(), errc::bad_field);
      EXPECT_NE(refused.error().what().find("an integer below -2^63"), std::string::npos);
    }
  }
  EXPECT_TRUE(field_of("cbor", "\x1b"s + std::string(8, '\xff')));  // 2^64 - 1
}

}  // namespace
}  // namespace millrace
