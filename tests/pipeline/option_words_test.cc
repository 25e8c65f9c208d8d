// Programs name flags and variables where the library names fields of its options.
#include "pipeline/run/option_words.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <regex>
#include <set>

#include "cli/flag_names.h"
#include "engine/base/option_list.h"
#include "engine/base/units.h"
#include "pipeline/run/engine_options.h"
#include "pipeline/samples/label.h"
#include "tests/support/seed_files.h"
#include "train/command_line/flag_names.h"

namespace millrace {
namespace {

std::string told(std::string_view text) {
  return in_program_words(text, cli::flag_names);
}

TEST(OptionWords, AVariableIsNamedAloneWithItsValue) {
  EXPECT_EQ(told("raise engine_options.memory_bytes (MILLRACE_MEMORY), or make smaller shards"),
            "raise MILLRACE_MEMORY, or make smaller shards");
  EXPECT_EQ(told("set engine_options.memory_bytes to 49165_MiB or more (MILLRACE_MEMORY=49165M), "
                 "or lower the batch size"),
            "set MILLRACE_MEMORY=49165M or more, or lower the batch size");
  EXPECT_EQ(told("the budget (engine_options.memory_bytes, MILLRACE_MEMORY) limits it"),
            "the budget (MILLRACE_MEMORY) limits it");
  EXPECT_EQ(told("http_options.split = 1 (MILLRACE_HTTP_SPLIT=off) asks for fewer"),
            "MILLRACE_HTTP_SPLIT=off asks for fewer");
  EXPECT_EQ(told("io_backend::automatic (MILLRACE_IO=auto) falls back to pread"),
            "MILLRACE_IO=auto falls back to pread");
  EXPECT_EQ(told("http_options.attempts takes 1 to 1000"),
            "MILLRACE_HTTP_ATTEMPTS takes 1 to 1000");
  EXPECT_EQ(told("set tls_options.ca_file (see below)"), "set MILLRACE_CA_FILE (see below)");
}

TEST(OptionWords, AFlagPrecedesAVariable) {
  EXPECT_EQ(told("set source_options.allow_pipe (MILLRACE_ALLOW_PIPE=1) where you trust the URLs"),
            "use --allow-pipe or MILLRACE_ALLOW_PIPE=1 where you trust the URLs");
  EXPECT_EQ(told("pack_options.parts takes 1 to 4, pack_options.part takes 1 to 4."),
            "the number of parts (--part) takes 1 to 4, --part takes 1 to 4.");
  EXPECT_EQ(told("crop_options.most_area takes 0 to 1"), "most area takes 0 to 1");
  EXPECT_EQ(told("my_crop_options.most_area, and decode.jpg"),
            "my_crop_options.most_area, and decode.jpg");
}

TEST(OptionWords, AnErrorKeepsTheRest) {
  error why = label_of(sample(), "auto").error();
  why.at("a.tar").offset(7).cause(5);
  EXPECT_NE(why.what_to_do().find("decode_options.label names"), std::string::npos)
      << why.message();
  const error said = in_program_words(why, train_flag_names);
  EXPECT_EQ(said.what_to_do(), "--label names the field, or json:FIELD");
  EXPECT_EQ(said.what(), why.what());
  EXPECT_EQ(said.where(), "a.tar");
  EXPECT_EQ(said.byte_offset(), why.byte_offset());
  EXPECT_NE(said.message().find("(Input/output error)"), std::string::npos) << said.message();
}

TEST(OptionWords, EveryFieldWithAVariableIsKnown) {
  for (const auto& [field, variable] : engine_options::variables().fields()) {
    EXPECT_EQ(told("set " + field + "."), "set " + std::string(variable) + ".");
  }
}

// The string literals of a source file; adjacent ones together.
std::vector<std::string> literals_in(const std::string& source) {
  std::vector<std::string> out;
  bool goes_on = false;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source.compare(i, 2, "//") == 0) {
      i = std::min(source.find('\n', i), source.size());
    } else if (source[i] == '\'') {
      i += source[i + 1] == '\\' ? 3 : 2;
    } else if (source[i] == '"') {
      if (!goes_on) out.emplace_back();
      for (++i; i < source.size() && source[i] != '"'; ++i) {
        if (source[i] == '\\') ++i;
        out.back() += source[i];
      }
      goes_on = true;
    } else if (source[i] != ' ' && source[i] != '\n') {
      goes_on = false;
    }
  }
  return out;
}

std::string text_of(const std::filesystem::path& path) {
  std::string text;
  for (const std::byte b : read_file(path)) text += static_cast<char>(b);
  return text;
}

// Of every message in the sources that names a field: what the programs print.
TEST(OptionWords, NoMessageNamesAFieldInAProgram) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(__FILE__).parent_path().parent_path().parent_path();
  int messages = 0;
  for (const char* folder : {"engine", "io", "pipeline", "tools"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cc" && extension != ".h") continue;
      for (const std::string& text : literals_in(text_of(entry.path()))) {
        if (text.find("_options.") == text.npos || text.ends_with(".h")) continue;
        if (text.ends_with("_options.")) continue;  // of the table of names itself
        ++messages;
        for (const std::string& said : {told(text), in_program_words(text, train_flag_names)}) {
          EXPECT_EQ(said.find("_options"), said.npos) << entry.path().filename() << ": " << said;
          EXPECT_EQ(said.find("::"), said.npos) << entry.path().filename() << ": " << said;
        }
      }
    }
  }
  EXPECT_GT(messages, 100);
}

TEST(OptionWords, EveryCheckedFieldIsKnown) {
  namespace fs = std::filesystem;
  const fs::path root = fs::path(__FILE__).parent_path().parent_path().parent_path();
  const std::regex checked(R"~(check_option(?:_or_0)?\(\s*"(\w+\.\w+)")~");
  int fields = 0;
  for (const char* folder : {"engine", "io", "pipeline", "tools"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cc" && extension != ".h") continue;
      const std::string source = text_of(entry.path());
      for (std::sregex_iterator at(source.begin(), source.end(), checked), end; at != end; ++at) {
        ++fields;
        EXPECT_EQ(told((*at)[1].str()).find('.'), std::string::npos)
            << entry.path().filename() << ": " << (*at)[1] << " is of none of `structs`";
      }
    }
  }
  EXPECT_GT(fields, 50);
}

}  // namespace
}  // namespace millrace
