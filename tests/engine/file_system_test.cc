// The file system seam: the kernel's, and the one in memory that loses what was not synced.
#include "engine/files/file_system.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "engine/base/error.h"
#include "engine/files/folders.h"
#include "engine/files/open_file.h"
#include "engine/files/written_file.h"
#include "engine/host/seams.h"
#include "tests/support/memory_files.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

using testing::memory_files;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

template <class T>
std::optional<errc> kind_if_failed(const result<T>& done) {
  return done ? std::nullopt : std::optional(done.error().kind());
}

class MemoryFiles : public ::testing::Test {
 protected:
  ~MemoryFiles() override { simulate_files(nullptr); }
  void use(std::uint64_t seed) {
    files_ = std::make_unique<memory_files>(seed);
    files_->put("/d/f", "old");
    simulate_files(files_.get());
  }
  static std::string now(const memory_files& files) {
    return files.exists("/d/f") ? files.content("/d/f") : "(gone)";
  }
  // What the file may hold after a crash, over many seeds: the least and the most that is possible.
  template <class F>
  std::set<std::string> after_crashes(F write) {
    std::set<std::string> seen;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      use(seed);
      write();
      files_->crash();
      files_->restart(0);
      seen.insert(now(*files_));
    }
    return seen;
  }

  std::unique_ptr<memory_files> files_;
};

TEST_F(MemoryFiles, ReadsWritesAndNames) {
  use(1);
  const held_file made(files_->open("/d/new", O_RDWR | O_CREAT | O_EXCL, 0600));
  ASSERT_TRUE(made);
  EXPECT_EQ(files_->open("/d/new", O_RDWR | O_CREAT | O_EXCL, 0600), -EEXIST);
  EXPECT_EQ(write_all(made.fd(), bytes_of("hello"), 3), 0);
  EXPECT_EQ(files_->content("/d/new"), std::string("\0\0\0hello", 8));
  EXPECT_EQ(files_->link("/d/new", "/d/f"), -EEXIST);
  EXPECT_EQ(files_->rename("/d/new", "/d/f"), 0);
  EXPECT_EQ(files_->content("/d/f").size(), 8U);
  struct stat info{};
  EXPECT_EQ(files_->unlink("/d/f"), 0);
  EXPECT_EQ(files_->stat(made.fd(), info), 0);
  EXPECT_EQ(info.st_nlink, 0U);  // open, without a name
  EXPECT_EQ(files_->open("/d/f", O_RDONLY, 0), -ENOENT);
  EXPECT_EQ(files_->open_descriptors(), 1U);
}

// Names go from one folder to another, and are exchanged, in one step.
TEST_F(MemoryFiles, NamesChangeInTwoPlacesOrInNone) {
  const auto content = [&](const char* path) {
    return files_->exists(path) ? files_->content(path) : "none";
  };
  std::set<std::string> exchanged;
  std::set<std::string> moved;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    use(seed);
    files_->put("/d/g", "new");
    files_->put("/e/x", "");
    EXPECT_EQ(files_->exchange("/d/f", "/d/g"), 0);
    EXPECT_EQ(content("/d/f") + content("/d/g"), "newold");
    files_->crash();
    files_->restart(0);
    exchanged.insert(content("/d/f") + content("/d/g"));
    EXPECT_EQ(files_->rename("/d/f", "/e/f"), 0);
    const bool is_synced = seed % 2 == 0;
    if (is_synced) EXPECT_EQ(sync_folder("/e"), 0);
    const std::string what = content("/e/f");
    files_->crash();
    files_->restart(0);
    moved.insert(content("/d/f") == what ? "stayed" : content("/e/f") == what ? "moved" : "lost");
    if (is_synced) EXPECT_EQ(content("/e/f"), what);
  }
  EXPECT_EQ(exchanged, (std::set<std::string>{"newold", "oldnew"}));
  EXPECT_EQ(moved, (std::set<std::string>{"stayed", "moved"}));
  use(0);
  files_->put("/d/g", "new");
  files_->exchanges = false;
  EXPECT_EQ(files_->exchange("/d/f", "/d/g"), -EINVAL);
}

// As the kernel has it: flock(2) and locks of ranges do not see each other.
void expect_two_kinds_of_locks(const std::string& path) {
  file_system& files = host_files();
  const held_file first(files.open(path, O_RDWR));
  const held_file second(files.open(path, O_RDWR));
  const held_file same(files.duplicate(first.fd()));
  struct flock range{};
  range.l_type = F_WRLCK;
  EXPECT_EQ(files.lock(first.fd(), range), 0);
  EXPECT_EQ(files.lock_whole(second.fd()), 0);
  EXPECT_EQ(files.lock_whole(second.fd()), 0);
  EXPECT_EQ(files.lock_whole(first.fd()), -EWOULDBLOCK);
  EXPECT_EQ(files.lock(second.fd(), range), -EAGAIN);
  {
    const held_file third(files.open(path, O_RDWR));
    EXPECT_EQ(files.lock_whole(third.fd()), -EWOULDBLOCK);
  }
  EXPECT_EQ(files.lock_whole(same.fd()), -EWOULDBLOCK);
}

TEST_F(MemoryFiles, LocksOfWholeFilesAreApartFromThoseOfRanges) {
  const testing::temporary_folder folder;
  const std::string path = folder / "f";
  write_whole_file(path, "x", "file");
  expect_two_kinds_of_locks(path);
  use(1);
  expect_two_kinds_of_locks("/d/f");
  // The last descriptor takes it along.
  EXPECT_EQ(host_files().lock_whole(held_file(host_files().open("/d/f", O_RDWR)).fd()), 0);
  EXPECT_EQ(host_files().lock_whole(held_file(host_files().open("/d/f", O_RDWR)).fd()), 0);
}

TEST_F(MemoryFiles, LocksEndWithTheProcess) {
  use(1);
  struct flock whole{};
  whole.l_type = F_WRLCK;
  files_->run_as(1);
  held_file first(files_->open("/d/f", O_RDWR, 0));
  EXPECT_EQ(files_->lock(first.fd(), whole), 0);
  files_->run_as(2);
  const held_file second(files_->open("/d/f", O_RDWR, 0));
  EXPECT_EQ(files_->lock(second.fd(), whole), -EAGAIN);
  files_->kill(1);
  EXPECT_EQ(files_->lock(second.fd(), whole), 0);
  first.release();  // closed by the kill
}

TEST_F(MemoryFiles, TheNthCallFails) {
  use(1);
  for (const int why : {ENOSPC, EIO, EMFILE, EACCES}) {
    int left = 1;
    files_->fault = [&](const char*, const std::string&) { return left-- == 0 ? -why : 0; };
    std::vector<std::string> names;
    EXPECT_EQ(files_->list("/d", names), 0);
    EXPECT_EQ(files_->open("/d/f", O_RDONLY, 0), -why);
    EXPECT_EQ(files_->list("/d", names), 0);
  }
  files_->fault = nullptr;
  files_->free_bytes = 2;
  const held_file f(files_->open("/d/f", O_RDWR, 0));
  EXPECT_EQ(write_all(f.fd(), bytes_of("longer"), 0), -ENOSPC);
  EXPECT_EQ(files_->content("/d/f"), "longe");  // what the disk had room for
}

// Whatever is called, and wherever the error comes from.
TEST_F(MemoryFiles, AnErrnoHasOneKind) {
  use(1);
  const std::pair<const char*, std::function<std::optional<errc>()>> calls[] = {
      {"open_file", [] { return kind_if_failed(open_file::open("/d/f")); }},
      {"read_whole_file", [] { return kind_if_failed(read_whole_file("/d/f")); }},
      {"folders_within",
       [] { return kind_if_failed(folders_within("/d", dangling_links::refused)); }},
      {"visit_folder", [] { return kind_if_failed(visit_folder("/d", [](const visited&) {})); }},
  };
  for (const int why : {ENOENT, ENOTDIR, EACCES, EPERM, EROFS, EMFILE, ENFILE, ENOMEM, EIO}) {
    for (const auto& [name, call] : calls) {
      files_->fault = [&](const char*, const std::string&) { return -why; };
      EXPECT_EQ(call(), kind_of(why)) << name << ", errno " << why;
      files_->fault = nullptr;
      EXPECT_EQ(call(), std::nullopt) << name;
    }
  }
}

TEST_F(MemoryFiles, AWriterThatDoesNotSyncIsCaught) {
  const std::string content(4096, 'n');
  const auto in_place = after_crashes([&] {
    const held_file f(files_->open("/d/f", O_WRONLY | O_TRUNC, 0));
    write_all(f.fd(), bytes_of(content), 0);
  });
  EXPECT_TRUE(in_place.contains(content));
  EXPECT_TRUE(in_place.contains("old"));
  EXPECT_GT(in_place.size(), 4U) << "torn writes are missing";
  // Renaming is atomic, but it does not order the data before the name.
  const auto renamed = after_crashes([&] {
    const held_file f(files_->open("/d/g", O_WRONLY | O_CREAT, 0600));
    write_all(f.fd(), bytes_of(content), 0);
    files_->rename("/d/g", "/d/f");
  });
  EXPECT_GT(renamed.size(), 2U);
  EXPECT_FALSE(renamed.contains("(gone)"));
}

TEST_F(MemoryFiles, AWrittenFileSurvivesEveryCrash) {
  const std::string content(4096, 'n');
  EXPECT_EQ(after_crashes([&] { write_whole_file("/d/f", content); }),
            std::set<std::string>{content});
  // A crash between any two of its calls leaves the old or the new content.
  std::set<std::string> seen;
  for (int stop = 0; stop < 12; ++stop) {
    const auto left = after_crashes([&] {
      files_->fault = [calls = stop](const char*, const std::string&) mutable {
        return calls-- > 0 ? 0 : -EIO;
      };
      try {
        write_whole_file("/d/f", content);
      } catch (const failure&) {
      }
      files_->fault = nullptr;
    });
    seen.insert(left.begin(), left.end());
  }
  EXPECT_EQ(seen, (std::set<std::string>{"old", content}));
}

TEST_F(MemoryFiles, AWrittenFileReportsEveryFailure) {
  for (const bool for_ever : {false, true}) {
    for (int n = 0;; ++n) {
      use(3);
      int failed = 0;
      files_->fault = [&, calls = n](const char*, const std::string&) mutable {
        if (calls-- > 0 || (failed > 0 && !for_ever)) return 0;
        ++failed;
        return -ENOSPC;
      };
      std::optional<errc> why;
      try {
        write_whole_file("/d/f", "new");
      } catch (const failure& f) {
        why = f.kind();
      }
      files_->fault = nullptr;
      EXPECT_EQ(files_->open_descriptors(), 0U);
      const std::string there = now(*files_);
      EXPECT_TRUE(there == "old" || there == "new") << there;
      if (why) EXPECT_EQ(*why, errc::io_failed);
      if (!why) EXPECT_EQ(there, "new");
      if (failed == 0) {
        EXPECT_GT(n, 5);
        break;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
