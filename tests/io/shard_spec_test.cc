#include "io/names/shard_spec.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

using strings = std::vector<std::string>;

variable_lookup given(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto it = values.find(name);
    return it == values.end() ? std::nullopt : std::optional(it->second);
  };
}

TEST(ShardSpec, PartsVariablesAndBraces) {
  const auto out =
      expand_shards("p-${B}.tar::q-{a,b}.tar::r${C}", given({{"B", "x{0..1}"}, {"C", "${B}y"}}));
  EXPECT_EQ(out.value(), (strings{"p-x0.tar", "p-x1.tar", "q-a.tar", "q-b.tar", "rx0y", "rx1y"}));
}

TEST(ShardSpec, AMissingVariableIsNamed) {
  const auto out = expand_shards("${NONE}.tar", given({}));
  ASSERT_FALSE(out);
  EXPECT_NE(out.error().message().find("WDS_NONE"), std::string::npos);
}

TEST(ShardSpec, AVariableThatMeansItselfEnds) {
  const auto out = expand_shards("${A}.tar", given({{"A", "${A}x"}}));
  EXPECT_TRUE(out);  // ten rounds, then unchanged
}

TEST(ShardSpec, ListsInFiles) {
  const testing::temporary_folder folder;
  const auto inner = folder.write("inner", "c.tar\n");
  const auto list =
      folder.write("list", "a-{0..1}.tar\n\n# a comment\n  b.tar  \n@" + inner + "\n");
  EXPECT_EQ(expand_shards("@" + list + "::d.tar").value(),
            (strings{"a-0.tar", "a-1.tar", "b.tar", "c.tar", "d.tar"}));
  EXPECT_EQ(expand_shards("@" + (folder / "none")).error().kind(), errc::not_found);
  const auto endless = folder.write("endless", "@" + (folder / "endless"));
  EXPECT_EQ(expand_shards("@" + endless).error().kind(), errc::usage);
}

// As some editors write it; it is not a part of the first name.
TEST(ShardSpec, AByteOrderMarkBeginsAList) {
  const testing::temporary_folder folder;
  const auto list = folder.write("list",
                                 "\xef\xbb\xbf"
                                 "a.tar\r\nb.tar\r\n");
  EXPECT_EQ(expand_shards("@" + list).value(), (strings{"a.tar", "b.tar"}));
  const auto remark = folder.write("remark", "\xef\xbb\xbf# shards\na.tar\n");
  EXPECT_EQ(expand_shards("@" + remark).value(), (strings{"a.tar"}));
}

TEST(ShardSpec, NothingIsAnError) {
  EXPECT_FALSE(expand_shards(""));
  EXPECT_FALSE(expand_shards("::"));
}

}  // namespace
}  // namespace millrace
