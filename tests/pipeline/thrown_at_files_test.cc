// Exceptions of the functions in untar_options: half a sample is never yielded, and the error names
// the file.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "tests/support/loaders.h"
#include "tests/support/tar_builder.h"
#include "tests/support/watchdog.h"

namespace millrace {
namespace {

using testing::bounded;
using testing::tar_builder;
using testing::with_memory_store;

constexpr int samples_of_both = 6;

class ThrownAtFiles : public ::testing::Test {
 protected:
  // Two shards of three samples of three files each: "a/0.x", "b/0.y", "a/0.z", ...
  ThrownAtFiles() {
    set_log_level(log_level::quiet);
    for (int shard = 0; shard < 2; ++shard) {
      tar_builder t;
      for (int i = 3 * shard; i < 3 * shard + 3; ++i) {
        for (const char* extension : {"x", "y", "z"}) t.file(name_of(i, extension), "content");
      }
      store_->put(std::to_string(shard), t.end().str());
    }
  }
  ~ThrownAtFiles() override { set_log_level(log_level::notice); }

  static std::string name_of(int i, std::string_view extension) {
    return fmt::format("{}/{}.{}", extension == "y" ? "b" : "a", i, extension);
  }
  static std::string without_folder(std::string_view name) { return std::string(name.substr(2)); }

  struct outcome {
    std::vector<std::string> keys;
    std::vector<error> errors;
  };
  // Reads everything, and checks that no sample lacks a field.
  outcome read(const lane_plan<sample>& p) {
    return bounded("files", [&] {
      outcome out;
      auto data = eng_.run(p);
      for (bool ended = false; !ended;) {
        try {
          const auto s = data.next();
          ended = !s;
          if (!s) continue;
          EXPECT_EQ(s->fields.size(), 3U) << s->key << " is half a sample";
          out.keys.push_back(s->key);
        } catch (const failure& f) {
          out.errors.push_back(f.why());
          ended = !f.why().is_skippable();
        }
      }
      return out;
    });
  }
  static lane_plan<sample> files(const untar_options& o) {
    return shards({"memory:0", "memory:1"}, {.lanes = 1, .shuffle = false}) | untar(o) |
           group_by_key();
  }
  static lane_plan<sample> samples(const untar_options& o) {
    return shards({"memory:0", "memory:1"}, {.lanes = 1, .shuffle = false}) |
           read_samples(tar_samples(o));
  }
  static std::vector<std::string> keys_but(int left_out) {
    std::vector<std::string> out;
    for (int i = 0; i < samples_of_both; ++i) {
      if (i != left_out) out.push_back(std::to_string(i));
    }
    return out;
  }

  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(1'000'000);
  engine eng_{with_memory_store(store_)};
};

TEST_F(ThrownAtFiles, ASkippableOneOfSelectLeavesOutTheWholeSample) {
  for (const errc kind : {errc::bad_field, errc::bad_label, errc::truncated, errc::too_large}) {
    for (int i = 0; i < samples_of_both; ++i) {
      for (const std::string_view extension : {"x", "y", "z"}) {
        const std::string bad = without_folder(name_of(i, extension));
        const untar_options o{.rename = without_folder, .select = [=](std::string_view name) {
                                if (name == bad)
                                  throw failure(error(kind, "not this one").skippable());
                                return true;
                              }};
        for (const auto& p : {files(o), samples(o)}) {
          const outcome got = read(p);
          EXPECT_EQ(got.keys, keys_but(i)) << bad << ", " << kind_name(kind);
          ASSERT_EQ(got.errors.size(), 1U) << bad << ", " << kind_name(kind);
          const error& why = got.errors.front();
          EXPECT_EQ(why.kind(), kind);
          EXPECT_EQ(why.sample_key(), bad);
          EXPECT_EQ(why.where(), i < 3 ? "memory:0" : "memory:1");
          EXPECT_TRUE(why.byte_offset());
        }
      }
    }
  }
}

// A file that could not be renamed may belong to any sample: nothing after it in its shard is
// yielded, nor the sample around it.
TEST_F(ThrownAtFiles, ASkippableOneOfRenameLeavesOutTheRestOfTheShard) {
  for (const errc kind : {errc::bad_field, errc::bad_label}) {
    for (int i = 0; i < samples_of_both; ++i) {
      for (const std::string_view extension : {"x", "y", "z"}) {
        const std::string bad = name_of(i, extension);
        const untar_options o{.rename = [=](std::string_view name) {
          if (name == bad) throw failure(error(kind, "no name").skippable());
          return without_folder(name);
        }};
        for (const auto& p : {files(o), samples(o)}) {
          const outcome got = read(p);
          // The sample before it may or may not be complete.
          const int before = extension == "x" && i % 3 > 0 ? i - 1 : i;
          std::vector<std::string> wanted;
          for (int k = 0; k < samples_of_both; ++k) {
            const bool is_lost = k / 3 == i / 3 && k >= before;
            if (!is_lost) wanted.push_back(std::to_string(k));
          }
          EXPECT_EQ(got.keys, wanted) << bad;
          ASSERT_EQ(got.errors.size(), 1U) << bad;
          const error& why = got.errors.front();
          EXPECT_EQ(why.kind(), kind);
          EXPECT_EQ(why.sample_key(), bad);
          EXPECT_EQ(why.where(), i < 3 ? "memory:0" : "memory:1");
          EXPECT_TRUE(why.byte_offset());
        }
      }
    }
  }
}

TEST_F(ThrownAtFiles, AnyOtherEndsTheRunAndNamesTheFile) {
  for (const bool renames : {false, true}) {
    const auto throws = [](std::string_view name) {
      if (name == "b/4.y") throw std::runtime_error("on fire");
      return std::string(name);
    };
    untar_options o;
    if (renames) o.rename = throws;
    if (!renames) o.select = [throws](std::string_view name) { return !throws(name).empty(); };
    // Here folders are part of keys.
    for (const auto& p : {files(o), samples(o)}) {
      auto data = eng_.run(p | on_error(skip_up_to(100)));
      const auto why = bounded("files", [&] {
        for (;;) {
          try {
            if (!data.next()) return error();
          } catch (const failure& f) {
            return f.why();
          }
        }
      });
      EXPECT_EQ(why.kind(), errc::uncaught);
      EXPECT_EQ(why.where(), "memory:1");
      EXPECT_EQ(why.sample_key(), "b/4.y");
      EXPECT_EQ(why.byte_offset(), std::uint64_t{4} * 1024);
      const std::string who = renames ? "untar_options.rename" : "untar_options.select";
      EXPECT_EQ(why.what().substr(0, who.size()), who);
      EXPECT_NO_THROW(data.save());
    }
  }
}

// Stopped anywhere and resumed, everything is reported and yielded as in one run. The last error is
// reported again, because the state is from before it.
TEST_F(ThrownAtFiles, TheRunIsResumedBehindAndBefore) {
  const auto next_of = [](loader<sample>& data) {
    try {
      const auto s = data.next();
      return s ? s->key : std::string("end");
    } catch (const failure& f) {
      return std::string(f.what());
    }
  };
  for (const bool renames : {false, true}) {
    for (const std::string_view bad : {"0.x", "1.y", "2.z", "4.x", "5.y"}) {
      const auto check = [bad](std::string_view name) {
        if (name == bad) throw failure(error(errc::bad_label, "no").skippable());
      };
      const untar_options o{.rename =
                                [=](std::string_view name) {
                                  if (renames) check(name.substr(2));
                                  return without_folder(name);
                                },
                            .select =
                                [=](std::string_view name) {
                                  if (!renames) check(name);
                                  return true;
                                }};
      for (const auto& p : {files(o), samples(o)}) {
        std::vector<std::string> wanted;
        auto whole = eng_.run(p);
        while (wanted.empty() || wanted.back() != "end") wanted.push_back(next_of(whole));
        for (std::size_t stop = 0; stop < wanted.size(); ++stop) {
          auto first = eng_.run(p);
          std::vector<std::string> got;
          for (std::size_t i = 0; i < stop; ++i) got.push_back(next_of(first));
          if (stop > 0 && got.back().starts_with("bad_label")) got.pop_back();
          auto second = eng_.run(p);
          second.restore(first.save());
          while (got.empty() || got.back() != "end") got.push_back(next_of(second));
          EXPECT_EQ(got, wanted) << bad << ", stopped at " << stop;
        }
      }
    }
  }
}

// Errors for a sample of another lane are reported by that lane only, and count as one for the
// shard.
TEST_F(ThrownAtFiles, EachLaneTellsThoseOfItsOwnSamples) {
  const std::vector<std::string> urls{"memory:0", "memory:1"};
  const auto lengths = std::make_shared<const shard_index>(
      shard_index{.shards = {{.url = urls[0], .samples = 3, .bytes = 0, .blocks = {}},
                             {.url = urls[1], .samples = 3, .bytes = 0, .blocks = {}}}});
  const untar_options o{.rename = without_folder, .select = [](std::string_view name) {
                          if (name == "1.x" || name == "4.z")
                            throw failure(error(errc::bad_label, "not this one").skippable());
                          return true;
                        }};
  const shard_list_options equal{
      .lanes = 3, .mode = epoch_mode::equal, .shuffle = false, .index = lengths};
  outcome got = read(shards(urls, equal) | untar(o) | group_by_key());
  std::ranges::sort(got.keys);
  EXPECT_EQ(got.keys, (std::vector<std::string>{"0", "2", "3", "5"}));
  EXPECT_EQ(got.errors.size(), 2U);
}

}  // namespace
}  // namespace millrace
