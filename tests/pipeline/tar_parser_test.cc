#include "pipeline/formats/tar_parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/tar_builder.h"

namespace millrace {
namespace {

using event = tar_parser::event;
using testing::tar_builder;

struct parsed_member {
  std::string name;
  std::string data;
  std::uint64_t offset = 0;
  char type = '0';
};
struct parsed {
  std::vector<parsed_member> members;  // whole ones
  std::optional<error> failed;
};

// Parses `archive` in pieces of `piece` bytes.
parsed parse(const std::string& archive, std::size_t piece, std::uint64_t offset = 0) {
  tar_parser parser(offset);
  parsed out;
  parsed_member current;
  for (std::size_t at = 0; at <= archive.size(); at += piece) {
    const std::string part = archive.substr(at, piece);
    auto input = std::as_bytes(std::span(part.data(), part.size()));
    for (;;) {
      const auto step = parser.step(input);
      if (!step) {
        out.failed = step.error();
        return out;
      }
      if (*step == event::need_input) break;
      if (*step == event::header) {
        current = {parser.current().name, "", parser.current().offset, parser.current().type};
      }
      if (*step == event::data) {
        current.data.append(reinterpret_cast<const char*>(parser.data().data()),
                            parser.data().size());
      }
      if (*step == event::member_end) out.members.push_back(current);
    }
  }
  if (const auto whole = parser.finish(); !whole) out.failed = whole.error();
  return out;
}

// The same from pieces of every awkward size.
parsed parse_all_ways(const std::string& archive) {
  const parsed reference = parse(archive, archive.size() + 1);
  for (const std::size_t piece : {1U, 7U, 511U, 512U, 513U, 4096U}) {
    const parsed other = parse(archive, piece);
    EXPECT_EQ(other.members.size(), reference.members.size()) << piece;
    EXPECT_EQ(other.failed.has_value(), reference.failed.has_value()) << piece;
    if (other.failed && reference.failed) {
      EXPECT_EQ(other.failed->message(), reference.failed->message()) << piece;
    }
    for (std::size_t i = 0; i < std::min(other.members.size(), reference.members.size()); ++i) {
      EXPECT_EQ(other.members[i].name, reference.members[i].name);
      EXPECT_EQ(other.members[i].data, reference.members[i].data);
      EXPECT_EQ(other.members[i].offset, reference.members[i].offset);
    }
  }
  return reference;
}

TEST(TarParser, PlainFiles) {
  const auto out = parse_all_ways(tar_builder()
                                      .file("a.txt", "hello")
                                      .file("b.bin", std::string(1024, 'x'))
                                      .file("empty", "")
                                      .end()
                                      .str());
  ASSERT_FALSE(out.failed) << out.failed->message();
  ASSERT_EQ(out.members.size(), 3U);
  EXPECT_EQ(out.members[0].data, "hello");
  EXPECT_EQ(out.members[1].offset, 1024U);
  EXPECT_EQ(out.members[1].data.size(), 1024U);
  EXPECT_EQ(out.members[2].data, "");
}

TEST(TarParser, PrefixPaxAndGnuNames) {
  const std::string long_name(300, 'n');
  tar_builder t;
  t.raw(tar_builder::header("file.jpg", 2, '0', "some/folder")).padded("ab");
  const auto pax_at = t.size();
  t.extension('x', tar_builder::pax_record("path", "pax/" + long_name) +
                       tar_builder::pax_record("mtime", "1.5"));
  t.file("short", "cd");
  t.extension('L', long_name + std::string(1, '\0')).file("short", "ef");
  t.extension('g', tar_builder::pax_record("comment", "x")).file("last", "gh");
  const auto out = parse_all_ways(t.end().str());
  ASSERT_FALSE(out.failed) << out.failed->message();
  ASSERT_EQ(out.members.size(), 4U);
  EXPECT_EQ(out.members[0].name, "some/folder/file.jpg");
  EXPECT_EQ(out.members[1].name, "pax/" + long_name);
  EXPECT_EQ(out.members[1].offset, pax_at);
  EXPECT_EQ(out.members[2].name, long_name);
  EXPECT_EQ(out.members[3].name, "last");
}

TEST(TarParser, SizesInBase256AndInPax) {
  const std::string base256("\x80\0\0\0\0\0\0\0\0\0\0\x03", 12);
  tar_builder t;
  t.raw(tar_builder::header("a", 0, '0', "", base256)).padded("abc");
  t.extension('x', tar_builder::pax_record("size", "4"))
      .raw(tar_builder::header("b", 0))
      .padded("defg");
  const auto out = parse_all_ways(t.end().str());
  ASSERT_FALSE(out.failed) << out.failed->message();
  EXPECT_EQ(out.members.at(0).data, "abc");
  EXPECT_EQ(out.members.at(1).data, "defg");
}

TEST(TarParser, LinksAndFoldersHaveNoData) {
  tar_builder t;
  t.raw(tar_builder::header("link", 100, '2')).raw(tar_builder::header("folder/", 0, '5'));
  t.file("a", "x");
  const auto out = parse_all_ways(t.end().str());
  ASSERT_FALSE(out.failed);
  EXPECT_EQ(out.members.size(), 3U);
  EXPECT_EQ(out.members[2].data, "x");
}

struct wrong_archive {
  const char* name;
  std::string archive;
  errc kind;
  std::uint64_t offset;
  std::size_t whole_members;
};

class WrongTar : public ::testing::TestWithParam<wrong_archive> {};

TEST_P(WrongTar, IsAnErrorWithItsOffsetBehindTheWholeMembers) {
  const auto out = parse_all_ways(GetParam().archive);
  ASSERT_TRUE(out.failed);
  EXPECT_EQ(out.failed->kind(), GetParam().kind) << out.failed->message();
  EXPECT_EQ(out.failed->byte_offset(), GetParam().offset) << out.failed->message();
  EXPECT_EQ(out.members.size(), GetParam().whole_members);
}

std::vector<wrong_archive> wrong_archives() {
  const std::string two = tar_builder().file("a", "hello").file("b", "world").str();
  std::string bad_checksum = two;
  bad_checksum[1024 + 3] ^= 1;
  const std::string negative("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00", 12);
  const std::string huge("\x80\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff", 12);
  const auto with_size = [](std::string_view field) {
    return tar_builder().file("a", "x").raw(tar_builder::header("b", 0, '0', "", field)).str();
  };
  const auto pax = [](std::string_view records) {
    return tar_builder().extension('x', records).file("a", "x").end().str();
  };
  return {
      {"empty", "", errc::truncated, 0, 0},
      {"not_tar", std::string(2048, 'z'), errc::bad_archive, 0, 0},
      {"in_header", two.substr(0, 1024 + 100), errc::truncated, 1124, 1},
      {"in_data", two.substr(0, 1024 + 514), errc::truncated, 1538, 1},
      {"in_padding", two.substr(0, 1024 + 600), errc::truncated, 1624, 2},
      {"bad_checksum", bad_checksum, errc::bad_archive, 1024, 1},
      {"one_zero_block",
       tar_builder().file("a", "x").raw(std::string(512, '\0')).file("b", "y").end().str(),
       errc::bad_archive, 1024, 1},
      {"non_octal_size", with_size("abcdefghijk"), errc::bad_archive, 1024, 1},
      {"negative_size", with_size(negative), errc::bad_archive, 1024, 1},
      {"huge_size", with_size(huge), errc::bad_archive, 1024, 1},
      {"pax_bomb", tar_builder().raw(tar_builder::header("x", std::size_t{1} << 30, 'x')).str(),
       errc::too_large, 0, 0},
      {"pax_length", pax("99 path=a\n"), errc::bad_archive, 0, 0},
      {"pax_no_equals", pax("8 patha\n"), errc::bad_archive, 0, 0},
      {"pax_size", pax(tar_builder::pax_record("size", "-1")), errc::bad_archive, 0, 0},
      {"global_name",
       tar_builder().extension('g', tar_builder::pax_record("path", "a")).file("b", "x").str(),
       errc::bad_archive, 0, 0},
      {"long_name", tar_builder().extension('L', std::string(40'000, 'n')).file("b", "x").str(),
       errc::too_large, 0, 0},
      {"many_extensions",
       [] {
         tar_builder t;
         for (int i = 0; i < 70; ++i) t.extension('L', "n");
         return t.file("b", "x").str();
       }(),
       errc::too_large, 0, 0},
      {"extension_alone", tar_builder().extension('L', "name").end().str(), errc::truncated, 0, 0},
      {"garbage_behind_end", tar_builder().file("a", "x").end().raw(std::string(600, 'g')).str(),
       errc::bad_archive, 2048, 1},
  };
}

INSTANTIATE_TEST_SUITE_P(All, WrongTar, ::testing::ValuesIn(wrong_archives()),
                         [](const auto& p) { return std::string(p.param.name); });

// A sparse file is refused by name, and what follows is read: its map may span further blocks.
TEST(TarParser, SparseFilesAreRefusedByName) {
  std::string header = tar_builder::header("s", 700, 'S');
  header[482] = 1;  // another block of the map follows
  for (int i = 0; i < 8; ++i) header[148 + static_cast<std::size_t>(i)] = ' ';
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  header.replace(148, 7, fmt::format("{:06o}", sum) + '\0');
  std::string map(512, '\0');
  map[504] = 1;
  const std::string archive = tar_builder()
                                  .raw(header + map + std::string(512, '\0'))
                                  .padded(std::string(700, 'd'))
                                  .extension('x', tar_builder::pax_record("GNU.sparse.name", "p"))
                                  .file("mangled", "m")
                                  .file("b", "x")
                                  .end()
                                  .str();
  tar_parser parser;
  auto input = std::as_bytes(std::span(archive.data(), archive.size()));
  std::vector<std::pair<std::string, bool>> found;
  for (;;) {
    const auto step = parser.step(input);
    ASSERT_TRUE(step);
    if (*step == event::need_input) break;
    if (*step == event::header) {
      found.emplace_back(parser.current().name, !parser.current().refused.empty());
    }
  }
  EXPECT_EQ(found,
            (std::vector<std::pair<std::string, bool>>{{"s", true}, {"p", true}, {"b", false}}));
}

// After every kind of damage the next header is found, and the bytes before it are counted.
TEST(TarParser, ResyncFindsTheNextHeader) {
  const std::string whole = tar_builder()
                                .file("a", std::string(700, 'a'))
                                .file("b", std::string(700, 'b'))
                                .file("c", std::string(700, 'c'))
                                .end()
                                .str();
  constexpr std::size_t member = 512 + 1024;
  for (const auto& [at, junk] :
       {std::pair{member, std::string(512, 'j')}, std::pair{member, std::string(512, '\0')},
        std::pair{member + 124, std::string(11, 'z')}}) {
    std::string damaged = whole;
    damaged.replace(at, junk.size(), junk);
    for (const std::size_t piece : {1U, 511U, 5000U}) {
      tar_parser parser;
      std::vector<std::string> names;
      int errors = 0;
      for (std::size_t from = 0; from < damaged.size(); from += piece) {
        const std::string part = damaged.substr(from, piece);
        auto input = std::as_bytes(std::span(part.data(), part.size()));
        for (;;) {
          const auto step = parser.step(input);
          if (!step) {
            ++errors;
            parser.resync();
            continue;
          }
          if (*step == event::need_input) break;
          if (*step == event::header) names.push_back(parser.current().name);
        }
      }
      EXPECT_EQ(names, (std::vector<std::string>{"a", "c"}));
      EXPECT_EQ(errors, 1);
      EXPECT_EQ(parser.lost_bytes(), member);
      EXPECT_TRUE(parser.finish());
    }
  }
}

// Between members, only the zero blocks distinguish a whole archive from a truncated one.
TEST(TarParser, AnArchiveEndsWithAZeroBlock) {
  const std::string members = tar_builder().file("a", "x").file("b", "y").str();
  const auto cut = parse_all_ways(members);
  ASSERT_TRUE(cut.failed);
  EXPECT_EQ(cut.failed->kind(), errc::truncated);
  EXPECT_EQ(cut.failed->byte_offset(), members.size());
  EXPECT_NE(cut.failed->message().find("after the member 'b'"), std::string::npos);
  EXPECT_TRUE(cut.failed->is_skippable());
  EXPECT_FALSE(parse_all_ways(members + std::string(512, '\0')).failed);
  EXPECT_FALSE(parse_all_ways(members + std::string(1024, '\0')).failed);
  // If another archive follows, that one's end counts.
  EXPECT_TRUE(parse_all_ways(members + std::string(1024, '\0') + members).failed);
  tar_parser parser;
  auto input = std::as_bytes(std::span(members.data(), members.size()));
  while (parser.step(input).value() != event::need_input) {
  }
  EXPECT_FALSE(parser.finish());
  EXPECT_TRUE(parser.finish(end_blocks::optional));
}

TEST(TarParser, ConcatenatedArchivesAreReadToTheEnd) {
  const std::string one = tar_builder().file("a", "x").end().raw(std::string(8192, '\0')).str();
  const std::string two = tar_builder().file("b", "y").end().str();
  const auto out = parse_all_ways(one + two);
  ASSERT_FALSE(out.failed) << out.failed->message();
  EXPECT_EQ(out.members.size(), 2U);
}

TEST(TarParser, GoesOnFromTheOffsetOfAMember) {
  const std::string archive = tar_builder()
                                  .file("a", "x")
                                  .extension('x', tar_builder::pax_record("path", "long"))
                                  .file("b", "y")
                                  .end()
                                  .str();
  const auto whole = parse(archive, 4096);
  const auto at = whole.members.at(1).offset;
  const auto rest = parse(archive.substr(at), 4096, at);
  ASSERT_EQ(rest.members.size(), 1U);
  EXPECT_EQ(rest.members[0].name, "long");
  EXPECT_EQ(rest.members[0].offset, at);
}

}  // namespace
}  // namespace millrace
