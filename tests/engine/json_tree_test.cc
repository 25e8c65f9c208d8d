#include "engine/base/json_tree.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/base/nesting.h"

namespace millrace {
namespace {

TEST(JsonTree, SaysWhatWasReadAsNlohmannDoes) {
  for (const char* text : {R"(null)", R"([])", R"({})", R"("")", R"(-1)", R"(18446744073709551615)",
                           R"(1.5e3)", R"(true)", R"([1,2,-3])", R"([1,2,"x",[3],{"a":[]}])",
                           R"({"b":[{"c":null}],"a":"\"\\\u0001é"})", R"({"a":1,"a":2})"}) {
    const auto read = json_tree::parse(text);
    ASSERT_TRUE(read) << text;
    EXPECT_EQ(read->dump(), nlohmann::json::parse(text).dump());
  }
}

TEST(JsonTree, IsRefusedWhereItIsNoneOrTooDeep) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[1,]"), std::string("1 2"),
        std::string(deepest_nesting + 1, '[') + std::string(deepest_nesting + 1, ']')}) {
    EXPECT_FALSE(json_tree::parse(text)) << text;
  }
  EXPECT_TRUE(
      json_tree::parse(std::string(deepest_nesting, '[') + std::string(deepest_nesting, ']')));
}

// Lists in a list, objects in one, names, texts, numbers, and numbers that become a list.
TEST(JsonTree, TakesNoMoreThanItsLimit) {
  std::string lists = "[";
  std::string members = "{";
  for (int i = 0; i < 10'000; ++i) {
    lists += "[],";
    members += fmt::format(R"("{}":1,)", i);
  }
  for (const std::string& text :
       {lists + "[]]", members + R"("x":1})", '"' + std::string(20'000, 'x') + '"',
        "{\"" + std::string(20'000, 'x') + "\":1}"}) {
    EXPECT_EQ(json_tree::read(text, {.most = 20'000}).error().kind(), errc::too_large);
    EXPECT_FALSE(json_tree::parse(text, {.most = 20'000}));
    EXPECT_TRUE(json_tree::read(text, {.most = 4'000'000}));
    EXPECT_FALSE(json_tree::read(text, {.take = [](std::size_t) { return false; }}));
  }
  EXPECT_EQ(json_tree::read("[1", {}).error().kind(), errc::bad_field);
}

TEST(JsonTree, SaysWhatWasReadOfBinaryFormatsAsNlohmannDoes) {
  using nlohmann::json;
  constexpr auto replace = json::error_handler_t::replace;
  json what = {{"n", {1, -2, 18446744073709551615U, 1.5, nullptr, true}}, {"t", "no UTF-8: \xff"}};
  what["bytes"] = json::binary({0, 255, 7});
  what["none"] = json::binary({});
  const auto text_of = [](const std::vector<std::uint8_t>& bytes) {
    return std::string(bytes.begin(), bytes.end());
  };
  const std::string cbor = text_of(json::to_cbor(what));
  EXPECT_EQ(json_tree::parse(cbor, json_tree::binary_format::cbor).value().dump(),
            what.dump(-1, ' ', false, replace));
  what["of a type"] = json::binary({1, 2}, 5);
  const std::string packed = text_of(json::to_msgpack(what));
  EXPECT_EQ(json_tree::parse(packed, json_tree::binary_format::message_pack).value().dump(),
            what.dump(-1, ' ', false, replace));
  EXPECT_FALSE(json_tree::parse(packed.substr(0, packed.size() - 1),
                                json_tree::binary_format::message_pack));
  EXPECT_FALSE(json_tree::parse(cbor + "x", json_tree::binary_format::cbor));
}

TEST(JsonTree, FindsMembersAndTheirTexts) {
  const auto read = json_tree::parse(R"({"n":7,"t":"text","l":[1,2]})").value();
  EXPECT_EQ(*read.find("n")->as<std::int64_t>(), 7);
  EXPECT_EQ(read.text_of("t"), "text");
  EXPECT_EQ(read.text_of("n"), "");
  EXPECT_EQ(read.find("x"), nullptr);
  EXPECT_EQ(read.find("t")->find("x"), nullptr);
  EXPECT_EQ(*read.find("l")->as<json_tree::integers>(), (json_tree::integers{1, 2}));
}

}  // namespace
}  // namespace millrace
