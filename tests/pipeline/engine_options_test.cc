#include "pipeline/run/engine_options.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/base/option_list.h"
#include "engine/base/units.h"

namespace millrace {
namespace {

engine_options read(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  return engine_options::from(read_settings(environment.data()).value());
}

TEST(EngineOptions, EveryVariableIsThereOnceWithItsInitialValueInItsRange) {
  std::set<std::string_view> names;
  for (const setting& s : all_settings()) {
    EXPECT_TRUE(names.insert(s.name).second) << s.name;
    EXPECT_TRUE(s.name.starts_with("MILLRACE_")) << s.name;
    EXPECT_FALSE(s.meaning.empty()) << s.name;
    EXPECT_TRUE(parse_setting(s, s.initial)) << s.name << "=" << s.initial;
  }
  EXPECT_GT(names.size(), 40U);
  engine_options::variables().check({});
}

TEST(EngineOptions, VariablesReachTheStructsWithin) {
  const engine_options o =
      read({"MILLRACE_MEMORY=2G", "MILLRACE_IO=pread", "MILLRACE_DIRECT=no", "MILLRACE_SERIALIZE=1",
            "MILLRACE_GATE_PATIENCE=2", "MILLRACE_HTTP_BACKOFF=0.25", "MILLRACE_HTTP_SPLIT=off",
            "MILLRACE_CACHE_PATHS=/nas/;/far/", "MILLRACE_REWRITE=a:/=b:/"});
  EXPECT_EQ(o.memory_bytes, 2_GiB);
  EXPECT_EQ(o.io, io_backend::pread);
  EXPECT_EQ(o.source.direct, direct_reads::never);
  EXPECT_EQ(o.source.serialize, std::optional(1));
  EXPECT_EQ(o.source.gate_patience, std::chrono::seconds(2));
  EXPECT_EQ(o.source.cache.patience, std::chrono::seconds(2));
  EXPECT_EQ(o.source.http.backoff, std::chrono::milliseconds(250));
  EXPECT_EQ(o.source.http.split, std::optional(0));
  EXPECT_EQ(o.source.cache.paths, (std::vector<std::string>{"/nas/", "/far/"}));
  EXPECT_EQ(o.source.rewrites, (rewrite_rules{{"a:/", "b:/"}}));
  EXPECT_THROW(read({"MILLRACE_HTTP_TOKENS=secret"}), failure);
}

TEST(EngineOptions, ANetrcIsTheOneThatIsNamedOrThatOfTheUser) {
  EXPECT_EQ(read({}).source.http.netrc, "");
  EXPECT_EQ(read({"HOME=/home/me"}).source.http.netrc, "/home/me/.netrc");
  EXPECT_EQ(read({"HOME=/home/me", "NETRC=/n"}).source.http.netrc, "/n");
  EXPECT_EQ(read({"HOME=/home/me", "NETRC=/n", "MILLRACE_NETRC=/m"}).source.http.netrc, "/m");
  EXPECT_EQ(read({"HOME=/home/me", "MILLRACE_NETRC=auto"}).source.http.netrc, "/home/me/.netrc");
  EXPECT_EQ(read({"HOME=/home/me", "MILLRACE_NETRC=off"}).source.http.netrc, "");
}

}  // namespace
}  // namespace millrace
