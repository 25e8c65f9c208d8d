#include "engine/settings.h"

#include <gtest/gtest.h>

#include "engine/memory.h"

namespace millrace {
namespace {

result<settings> parse(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  return settings::from_environment(environment.data());
}

TEST(Settings, HasInitialValuesAndTakesThoseSet) {
  const auto s = parse({"MILLRACE_MEMORY=2G", "PATH=/bin", "MILLRACE_HTTP_BACKOFF=0.25"}).value();
  EXPECT_EQ(s.bytes("MILLRACE_MEMORY"), 2_GiB);
  EXPECT_TRUE(s.is_set("MILLRACE_MEMORY"));
  EXPECT_EQ(s.integer("MILLRACE_IO_THREADS"), 1);
  EXPECT_EQ(s.integer("MILLRACE_CPU_THREADS"), 0);  // auto
  EXPECT_EQ(s.seconds("MILLRACE_HTTP_BACKOFF"), std::chrono::milliseconds(250));
  EXPECT_EQ(s.text("MILLRACE_IO"), "auto");
}

TEST(Settings, AnUnknownVariableIsRefusedWithTheNearestName) {
  const auto s = parse({"MILLRACE_MEMROY=2G"});
  ASSERT_FALSE(s);
  EXPECT_EQ(s.error().kind(), errc::bad_setting);
  EXPECT_NE(s.error().message().find("did you mean MILLRACE_MEMORY?"), std::string::npos);
}

TEST(Settings, AValueOutOfRangeIsRefusedWithTheRange) {
  const auto s = parse({"MILLRACE_IO=fast"});
  ASSERT_FALSE(s);
  EXPECT_NE(s.error().message().find("one of auto|uring|pread"), std::string::npos);
  for (const char* wrong : {"MILLRACE_IO_THREADS=0", "MILLRACE_IO_THREADS=1.5",
                            "MILLRACE_IO_THREADS=auto", "MILLRACE_MEMORY=1K", "MILLRACE_MEMORY=-1",
                            "MILLRACE_READ_TIMEOUT=nan", "MILLRACE_IO=auto|uring", "MILLRACE_LOG",
                            "MILLRACE_IO=on", "MILLRACE_MEMORY=1.5.5G", "MILLRACE_MEMORY=1.5X"}) {
    EXPECT_FALSE(parse({wrong})) << wrong;
  }
}

TEST(Settings, EmptyOnesAreUnsetAndSwitchesTakeTheUsualWords) {
  EXPECT_FALSE(parse({"MILLRACE_MEMORY="}).value().is_set("MILLRACE_MEMORY"));
  for (const char* on : {"on", "true", "Yes", "1"}) {
    const std::string direct = std::string("MILLRACE_DIRECT=") + on;
    const std::string pipe = std::string("MILLRACE_ALLOW_PIPE=") + on;
    const auto s = parse({direct.c_str(), pipe.c_str()}).value();
    EXPECT_EQ(s.text("MILLRACE_DIRECT"), "on");
    EXPECT_EQ(s.text("MILLRACE_ALLOW_PIPE"), "1");
  }
  EXPECT_EQ(parse({"MILLRACE_DIRECT=no"}).value().text("MILLRACE_DIRECT"), "off");
  // 1 is a number here: one large read at once.
  EXPECT_EQ(parse({"MILLRACE_SERIALIZE=1"}).value().integer("MILLRACE_SERIALIZE"), 1);
  EXPECT_EQ(parse({"MILLRACE_MEMORY=1.5G"}).value().bytes("MILLRACE_MEMORY"), 1536_MiB);
}

TEST(Settings, TheTableIsSound) {
  for (const setting& s : all_settings()) {
    EXPECT_TRUE(s.name.starts_with("MILLRACE_")) << s.name;
    EXPECT_FALSE(s.meaning.empty()) << s.name;
    const std::string initial = std::string(s.name) + "=" + std::string(s.initial);
    EXPECT_TRUE(parse({initial.c_str()})) << initial;
  }
}

}  // namespace
}  // namespace millrace
