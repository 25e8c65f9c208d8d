// Output of commands on a disk that fails: a kill after every file system call, or one call that
// fails, with unsynced data lost, torn and reordered, or not. Every file is whole under its name or
// absent, and the same call again completes the job with the same bytes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <map>

#include "engine/base/error.h"
#include "engine/files/written_file.h"
#include "engine/host/log.h"
#include "engine/host/seams.h"
#include "millrace/millrace.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/wids/sidecar.h"
#include "tests/simulation/allocations.h"
#include "tests/support/memory_files.h"
#include "tests/support/seeds.h"
#include "tests/support/simulator.h"
#include "tests/support/tar_builder.h"
#include "tools/index/create_index.h"
#include "tools/write/pack.h"
#include "tools/write/shard_writer.h"

namespace millrace::testing {
namespace {

using contents = std::map<std::string, std::string>;

// A job with its own disk.
struct work {
  const char* name;
  void (*prepare)(memory_files& disk);
  void (*run)();
  bool is_simulated = false;                          // it needs I/O threads
  bool (*is_right)(const contents& there) = nullptr;  // checks the files that have their names
};

constexpr std::int64_t written_ns =
    1'000'000'000;  // a pack is resumed over inputs of the same time

void put_class_folders(memory_files& disk) {
  for (int i = 0; i < 9; ++i) {
    const auto path = fmt::format("/in/{}/{}.jpg", i % 3 == 0 ? "cat" : "dog", i);
    disk.put(path, std::string(static_cast<std::size_t>(300 + 400 * i), static_cast<char>('a' + i)),
             written_ns);
  }
  disk.put("/in/cat/.hidden", "x", written_ns);
  disk.put("/out/notes.txt", "keep me");
}

void pack() {
  pack_shards({.from = "/in", .pattern = "/out/t-%06d.tar", .most_count = 2, .shuffle = 3});
}

void put_shards(memory_files& disk) {
  for (int i = 0; i < 3; ++i)
    disk.put(fmt::format("/in/s{}.tar", i), text_shard(i, 3, 700), written_ns);
  disk.put("/out/notes.txt", "keep me");
}

// As in the commands.
engine small_engine() {
  return engine({.cpu_threads = 1,
                 .memory_bytes = 64_MiB,
                 .io = io_backend::pread,
                 .source = {.chunk_bytes = 8_KiB, .direct = direct_reads::never, .serialize = 0}});
}

void repack() {
  engine eng = small_engine();
  repack_shards(eng,
                {.urls = {"/in/s0.tar", "/in/s1.tar", "/in/s2.tar"}, .pattern = "/out/t-%06d.tar"});
}

constexpr const char* old_index = R"({"shardlist": "an older one"})";
constexpr const char* old_offsets = "millrace offsets of an older one";
// As create_index() ends.
void put_old_index(memory_files& disk) {
  disk.put("/out/i.json", old_index);
  disk.put("/out/i.offsets", old_offsets);
  disk.put("/out/notes.txt", "keep me");
}
void write_index() {
  shard_index index;
  for (int i = 0; i < 40; ++i) {
    index.shards.push_back({.url = fmt::format("s{}.tar", i), .samples = 2, .blocks = {0, 3, 9}});
  }
  written_file file("/out/i.json", "index");
  written_file sidecar("/out/i.offsets", "sidecar");
  file.append(std::string(3000, '{'));
  sidecar.append(offsets_text(index));
  commit_index(file, "/out/i.json", &sidecar);
}
// The same, with shards that are read for it.
void put_shards_and_old_index(memory_files& disk) {
  put_shards(disk);
  put_old_index(disk);
}
void index_shards() {
  engine eng = small_engine();
  create_index(eng, {"/in/s0.tar", "/in/s1.tar", "/in/s2.tar"}, "/out/i.json", {.offsets = true});
}

// A program's own samples.
void put_notes(memory_files& disk) {
  disk.put("/out/notes.txt", "keep me");
}
void write_shards() {
  shard_writer out({.pattern = "/out/t-%06d.tar", .most_count = 2, .overwrite = true});
  for (int i = 0; i < 5; ++i) {
    out.write(fmt::format("k{}", i),
              {{"txt", std::string(static_cast<std::size_t>(900 * i), 'x')}});
  }
  out.close();
}

// An old index never has new offsets, nor a new one old offsets.
bool is_one_index(const contents& there) {
  const auto json = there.find("/out/i.json");
  const auto offsets = there.find("/out/i.offsets");
  if (offsets == there.end()) return true;
  return (json->second == old_index) == (offsets->second == old_offsets);
}

const work works[] = {
    {.name = "Pack", .prepare = put_class_folders, .run = pack},
    {.name = "Repack", .prepare = put_shards, .run = repack, .is_simulated = true},
    {.name = "Index", .prepare = put_old_index, .run = write_index, .is_right = is_one_index},
    {.name = "IndexCreate",
     .prepare = put_shards_and_old_index,
     .run = index_shards,
     .is_simulated = true,
     .is_right = is_one_index},
    {.name = "ShardWriter", .prepare = put_notes, .run = write_shards},
};

struct trouble {
  const char* name;
  bool loses_power = false;
  bool once = false;  // no kill: one call fails, and the next ones succeed
};
const trouble troubles[] = {
    {.name = "Kill"},
    {.name = "LossOfPower", .loses_power = true},
    {.name = "OneFailure", .once = true},
    {.name = "OneFailureAndLossOfPower", .loses_power = true, .once = true},
};

// Except lists of shards, which contain times; these are right if the next run completes the job.
contents written(const memory_files& disk) {
  contents out;
  for (const auto& path : disk.paths()) {
    const bool is_list = path.find("-of-") != std::string::npos;
    if (path.starts_with("/out/") && !is_list) out[path] = disk.content(path);
  }
  return out;
}

// Which allocations of a job fail: none, one, or all from one on.
struct lack {
  std::uint64_t nth = 0;
  bool for_ever = false;
};

// Runs the job; returns why it failed, if it did. `points`: the number of allocations.
std::optional<error> attempt(const work& what, std::uint64_t seed, memory_files& disk,
                             const lack& memory = {}, std::uint64_t* points = nullptr) {
  std::optional<simulator> sim;
  if (what.is_simulated) sim.emplace(seed);
  simulate_files(&disk);
  std::optional<error> failed;
  allocations::arm(memory.nth, memory.for_ever);
  try {
    what.run();
  } catch (const failure& f) {
    failed = f.why();
  } catch (const std::bad_alloc&) {
    failed = out_of_memory();
  }
  const std::uint64_t made = allocations::disarm();
  if (points != nullptr) *points = made;
  simulate_files(nullptr);
  return failed;
}

// Each named file is as it was before or as the job writes it, and all are as written if the job
// succeeded.
void expect_whole_or_as_before(const work& what, const contents& before, const contents& whole,
                               memory_files& disk, bool failed) {
  contents there = written(disk);
  std::erase_if(there,
                [](const auto& f) { return f.first.find(".partial.") != std::string::npos; });
  for (const auto& [path, content] : there) {
    const auto older = before.find(path);
    const bool is_old = older != before.end() && older->second == content;
    EXPECT_TRUE(is_old || whole.at(path) == content) << path;
  }
  if (!failed) EXPECT_EQ(there, whole);
  if (what.is_right != nullptr) EXPECT_TRUE(what.is_right(there));
}

class Written : public ::testing::TestWithParam<std::tuple<work, trouble>> {
 protected:
  Written() { set_log_level(log_level::quiet); }
  ~Written() override { set_log_level(log_level::notice); }
};

TEST_P(Written, IsWholeOrNotThereAndCompletedByTheNextRun) {
  const auto& [what, how] = GetParam();
  contents before;
  contents whole;
  {
    memory_files disk;
    what.prepare(disk);
    before = written(disk);
    ASSERT_FALSE(attempt(what, 1, disk));
    whole = written(disk);
  }
  std::uint64_t calls = 0;
  for (bool is_complete = false; !is_complete && !HasFailure(); ++calls) {
    if (!is_taken(calls)) continue;
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(fmt::format("after {} calls, seed {}", calls, seed));
      memory_files disk(seed);
      what.prepare(disk);
      std::uint64_t made = 0;
      disk.fault = [&](const char*, const std::string&) {
        const auto nth = made++;
        return nth < calls || (how.once && nth > calls) ? 0 : -EIO;
      };
      const auto failed = attempt(what, seed, disk);
      is_complete = made <= calls;
      if (failed) EXPECT_EQ(failed->kind(), errc::io_failed) << failed->message();
      if (is_complete) EXPECT_FALSE(failed);
      EXPECT_EQ(disk.open_descriptors(), 0U);
      disk.fault = nullptr;
      disk.kill(0);
      if (how.loses_power) disk.crash();
      disk.restart(0);

      expect_whole_or_as_before(what, before, whole, disk, failed.has_value());

      const auto again = attempt(what, seed, disk);
      EXPECT_FALSE(again) << again->message();
      EXPECT_EQ(written(disk), whole);
    }
  }
  EXPECT_GT(calls, 20U);
}

class WrittenWithoutMemory : public ::testing::TestWithParam<work> {
 protected:
  WrittenWithoutMemory() { set_log_level(log_level::quiet); }
  ~WrittenWithoutMemory() override { set_log_level(log_level::notice); }
};

TEST_P(WrittenWithoutMemory, IsWholeOrNotThereAndCompletedByTheNextRun) {
  const work& what = GetParam();
  contents before;
  contents whole;
  std::uint64_t points = 0;
  for (int warm = 0; warm < 2; ++warm) {
    memory_files disk;
    what.prepare(disk);
    before = written(disk);
    ASSERT_FALSE(attempt(what, 1, disk, {}, &points));
    whole = written(disk);
  }
  ASSERT_GT(points, 50U);
  const std::uint64_t stride =
      std::max<std::uint64_t>(1, points / variable("TEST_SIM_POINTS", 150));
  const std::uint64_t only = variable("TEST_SIM_POINT", 0);
  for (std::uint64_t n = only > 0 ? only : 1; n <= points; n += only > 0 ? points : stride) {
    for (const bool for_ever : {false, true}) {
      SCOPED_TRACE(fmt::format("{} allocation {} of {}", what.name, n, points));
      memory_files disk;
      what.prepare(disk);
      const auto failed = attempt(what, 1, disk, {.nth = n, .for_ever = for_ever});
      if (failed) EXPECT_EQ(failed->kind(), errc::no_memory) << failed->message();
      EXPECT_EQ(disk.open_descriptors(), 0U);
      expect_whole_or_as_before(what, before, whole, disk, failed.has_value());
      EXPECT_FALSE(attempt(what, 1, disk));
      EXPECT_EQ(written(disk), whole);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Works, WrittenWithoutMemory, ::testing::ValuesIn(works),
                         [](const auto& p) { return std::string(p.param.name); });

// A full disk, at any write or sync of the new files: the old index keeps its offsets.
TEST(Index, WhoseDiskHasNoRoomKeepsTheOldOneAndItsOffsets) {
  set_log_level(log_level::quiet);
  std::uint64_t refused = 0;
  for (bool is_complete = false; !is_complete; ++refused) {
    memory_files disk;
    put_old_index(disk);
    std::uint64_t made = 0;
    disk.fault = [&](const char* call, const std::string& path) {
      const std::string_view what = call;
      const bool needs_room =
          path.find(".partial.") != path.npos && (what == "write" || what == "sync");
      return needs_room && made++ == refused ? -ENOSPC : 0;
    };
    const auto failed = attempt(works[2], 1, disk);
    is_complete = made <= refused;
    EXPECT_EQ(!failed, is_complete);
    if (is_complete) continue;
    EXPECT_TRUE(disk.content("/out/i.json") == old_index) << refused;
    EXPECT_TRUE(disk.content("/out/i.offsets") == old_offsets) << refused;
  }
  EXPECT_GT(refused, 3U);
  set_log_level(log_level::notice);
}

TEST(Pack, OfWhichAThreadIsRefusedSaysSoAndIsCompletedByTheNextRun) {
  set_log_level(log_level::quiet);
  memory_files disk;
  put_class_folders(disk);
  simulate_files(&disk);
  const auto pack_on = [&](int threads) {
    return pack_shards(
        {.from = "/in", .pattern = "/out/t-%06d.tar", .most_count = 2, .threads = threads});
  };
  refuse_threads([] { return true; });
  try {
    pack_on(3);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::no_memory) << f.what();
    EXPECT_NE(std::string(f.what()).find("'mr-pack-1'"), std::string::npos) << f.what();
  }
  refuse_threads(nullptr);
  EXPECT_EQ(disk.open_descriptors(), 0U);
  EXPECT_EQ(pack_on(1).samples, 9U);
  simulate_files(nullptr);
  set_log_level(log_level::notice);
}

INSTANTIATE_TEST_SUITE_P(
    Works, Written, ::testing::Combine(::testing::ValuesIn(works), ::testing::ValuesIn(troubles)),
    [](const auto& p) {
      return std::string(std::get<0>(p.param).name) + "By" + std::get<1>(p.param).name;
    });

}  // namespace
}  // namespace millrace::testing
