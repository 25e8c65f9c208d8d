#include "engine/base/settings.h"

#include <gtest/gtest.h>

#include <array>

#include "engine/base/option_list.h"
#include "engine/base/units.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

enum class color { red, green };
struct paint {
  double share = 0.05;
  std::optional<int> coats;
};
struct wall {
  std::size_t bytes = 2_MiB;
  std::size_t extent = 0;
  int doors = 1;
  milliseconds pause{500};
  bool wet = false;
  bool may_fall = false;
  color shade = color::green;
  std::optional<bool> old;
  std::string name;
  std::string found;
  paint on;
};

const option_list<paint>& of_paint() {
  setting coats = choice_setting("MILLRACE_COATS", "auto|off", "layers");
  coats.type = setting_type::choice_or_integer;
  coats.least = 1;
  coats.most = 9;
  static const auto list =
      option_list<paint>("paint")
          .add("share", &paint::share, integer_setting("MILLRACE_SHARE", 0, 100, "percent"))
          .add("coats", &paint::coats, coats);
  return list;
}

const option_list<wall>& of_wall() {
  using o = wall;
  static const auto list =
      option_list<wall>("wall")
          .add("bytes", &o::bytes, size_setting("MILLRACE_BYTES", 4_KiB, 64_MiB, "size"))
          .add("extent", &o::extent, size_setting("MILLRACE_EXTENT", 64_KiB, 1_GiB, "size"))
          .add("doors", &o::doors, integer_setting("MILLRACE_DOORS", 1, 64, "ways in"))
          .add("pause", &o::pause, seconds_setting("MILLRACE_PAUSE", 0, 3600, "seconds"))
          .add("wet", &o::wet, choice_setting("MILLRACE_WET", "on|off", "not dry"))
          .add("may_fall", &o::may_fall, choice_setting("MILLRACE_MAY_FALL", "0|1", "risk"))
          .add("shade", &o::shade, choice_setting("MILLRACE_SHADE", "red|green", "colour"))
          .add("old", &o::old, choice_setting("MILLRACE_OLD", "auto|on|off", "age"))
          .add("name", &o::name, text_setting("MILLRACE_NAME", "of the wall"))
          .add_text(text_setting("MILLRACE_FOUND", "by whom"),
                    [](wall& to, const std::string& text) -> result<void> {
                      if (text == "nobody") return error(errc::bad_setting, "nobody found it");
                      to.found = "by " + text;
                      return {};
                    })
          .add_part(&o::on, of_paint());
  return list;
}

result<settings> set(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  constexpr std::array<foreign_variable, 2> foreign{{{"HOME", ""}, {"HF_TOKEN", ""}}};
  return settings::from_environment(environment.data(), of_wall().all(), foreign);
}

result<wall> read(std::vector<const char*> environment) {
  const auto from = set(std::move(environment));
  if (!from) return from.error();
  wall made;
  if (auto done = of_wall().read(*from, made); !done) return done.error();
  return made;
}

TEST(Settings, InitialValuesAreThoseOfTheStruct) {
  std::string all;
  for (const setting& s : of_wall().all()) {
    all += std::string(s.name.substr(9)) + "=" + s.initial + " ";
    const std::string initial = std::string(s.name) + "=" + s.initial;
    EXPECT_TRUE(read({initial.c_str()})) << initial;
  }
  EXPECT_EQ(all,
            "BYTES=2M EXTENT=auto DOORS=1 PAUSE=0.5 WET=off MAY_FALL=0 SHADE=green OLD=auto "
            "NAME=auto FOUND=auto SHARE=5 COATS=auto ");
  const wall made = read({"PATH=/bin"}).value();
  EXPECT_EQ(made.bytes, 2_MiB);
  EXPECT_EQ(made.on.share, 0.05);
  EXPECT_EQ(made.found, "");
}

TEST(Settings, EachKindOfFieldIsSet) {
  const wall made =
      read({"MILLRACE_BYTES=1.5M", "MILLRACE_EXTENT=1G", "MILLRACE_DOORS=64", "MILLRACE_PAUSE=0.25",
            "MILLRACE_WET=on", "MILLRACE_MAY_FALL=1", "MILLRACE_SHADE=red", "MILLRACE_OLD=off",
            "MILLRACE_NAME=north", "MILLRACE_FOUND=me", "MILLRACE_SHARE=7", "MILLRACE_COATS=3"})
          .value();
  EXPECT_EQ(made.bytes, 1536_KiB);
  EXPECT_EQ(made.extent, 1_GiB);
  EXPECT_EQ(made.doors, 64);
  EXPECT_EQ(made.pause, milliseconds(250));
  EXPECT_TRUE(made.wet && made.may_fall);
  EXPECT_EQ(made.shade, color::red);
  EXPECT_EQ(made.old, std::optional(false));
  EXPECT_EQ(made.name, "north");
  EXPECT_EQ(made.found, "by me");
  EXPECT_DOUBLE_EQ(made.on.share, 0.07);
  EXPECT_EQ(made.on.coats, std::optional(3));
  EXPECT_EQ(read({"MILLRACE_COATS=off"}).value().on.coats, std::optional(0));
  EXPECT_EQ(read({"MILLRACE_COATS=auto"}).value().on.coats, std::nullopt);
}

TEST(Settings, AnUnknownVariableIsRefusedWithTheNearestName) {
  const auto s = set({"MILLRACE_DORS=2"});
  ASSERT_FALSE(s);
  EXPECT_EQ(s.error().kind(), errc::bad_setting);
  EXPECT_NE(s.error().message().find("did you mean MILLRACE_DOORS?"), std::string::npos);
}

TEST(Settings, AValueOutOfRangeIsRefusedWithTheRange) {
  const auto s = set({"MILLRACE_SHADE=blue"});
  ASSERT_FALSE(s);
  EXPECT_NE(s.error().message().find("one of red|green"), std::string::npos);
  for (const char* wrong :
       {"MILLRACE_DOORS=0",         "MILLRACE_DOORS=1.5",   "MILLRACE_DOORS=auto",
        "MILLRACE_BYTES=1K",        "MILLRACE_BYTES=-1",    "MILLRACE_PAUSE=nan",
        "MILLRACE_SHADE=red|green", "MILLRACE_WET",         "MILLRACE_SHADE=on",
        "MILLRACE_BYTES=1.5.5M",    "MILLRACE_BYTES=1.5X",  "MILLRACE_COATS=10",
        "MILLRACE_DOORS= 2",        "MILLRACE_DOORS=2 ",    "MILLRACE_DOORS=+2",
        "MILLRACE_DOORS=0x10",      "MILLRACE_DOORS=1e300", "MILLRACE_PAUSE= 0.5",
        "MILLRACE_PAUSE=\t1",       "MILLRACE_PAUSE=inf",   "MILLRACE_COATS= 3",
        "MILLRACE_BYTES= 8K"}) {
    EXPECT_FALSE(set({wrong})) << wrong;
  }
  EXPECT_FALSE(read({"MILLRACE_FOUND=nobody"}));
}

TEST(Settings, EmptyOnesAreUnsetAndSwitchesTakeTheUsualWords) {
  EXPECT_EQ(set({"MILLRACE_BYTES="}).value().find("MILLRACE_BYTES"), nullptr);
  for (const char* on : {"on", "true", "Yes", "1"}) {
    const std::string wet = std::string("MILLRACE_WET=") + on;
    const std::string may_fall = std::string("MILLRACE_MAY_FALL=") + on;
    const wall made = read({wet.c_str(), may_fall.c_str()}).value();
    EXPECT_TRUE(made.wet && made.may_fall) << on;
  }
  EXPECT_FALSE(read({"MILLRACE_WET=no"}).value().wet);
  // 1 is a number here.
  EXPECT_EQ(read({"MILLRACE_COATS=1"}).value().on.coats, std::optional(1));
}

TEST(Settings, ForeignVariablesAreKeptWhereTheyAreAskedFor) {
  const auto s = set({"HOME=/home/me", "PATH=/bin", "HF_TOKEN="}).value();
  EXPECT_EQ(s.foreign(),
            (std::map<std::string, std::string>{{"HOME", "/home/me"}, {"HF_TOKEN", ""}}));
}

TEST(OptionList, FieldsOutOfTheRangeOfTheirVariableAreRefusedByName) {
  of_wall().check({});
  const auto refused = [](const wall& o) {
    try {
      of_wall().check(o);
    } catch (const failure& f) {
      return f.why().message();
    }
    return std::string();
  };
  EXPECT_NE(refused({.bytes = 1}).find("wall.bytes takes 4096 to 67108864"), std::string::npos);
  EXPECT_NE(refused({.extent = 1}).find("wall.extent takes 0 (chosen by millrace), or 65536"),
            std::string::npos);
  EXPECT_NE(refused({.pause = milliseconds(-1)}).find("wall.pause takes"), std::string::npos);
  EXPECT_NE(refused({.on = {.share = 2}}).find("paint.share takes 0 to 1"), std::string::npos);
  EXPECT_NE(refused({.on = {.coats = 10}}).find("paint.coats"), std::string::npos);
}

}  // namespace
}  // namespace millrace
