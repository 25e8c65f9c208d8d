#include "engine/files/block_io.h"
#include "engine/coroutines/async.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/base/units.h"
#include "engine/coroutines/scope.h"
#include "engine/memory/memory.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/runtime.h"
#include "engine/threads/uring_io.h"
#include "tests/support/numbered.h"
#include "tests/support/spine.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::numbered;
using testing::run_on;

class BlockIo : public ::testing::TestWithParam<io_backend> {
 protected:
  void SetUp() override {
    if (GetParam() == io_backend::uring) {
      if (const auto refused = uring_refused()) GTEST_SKIP() << *refused;
    }
    threads_ = std::make_unique<runtime>(runtime_options{.cpu_threads = 1, .io = GetParam()});
  }
  std::string read(const std::string& path, std::uint64_t offset, std::size_t size) {
    buffer into = share_->try_acquire(std::max<std::size_t>(size, 1));
    const auto file = open_file::open(path).value();
    const auto got =
        run_on(threads_->io(0), threads_->io(0).files().read_at(file, offset, size, into, 10s));
    return {reinterpret_cast<const char*>(into.data()), got.value()};
  }

  std::unique_ptr<runtime> threads_;
  std::shared_ptr<memory_share> share_ =
      std::make_shared<memory_share>("test", 64_MiB, default_host_allocator());
  testing::temporary_folder folder_;
};

TEST_P(BlockIo, ReadsAnyRange) {
  const std::string content = numbered(3'000'000);
  const std::string path = folder_.write("file", content);
  for (const auto& [offset, size] : {std::pair<std::size_t, std::size_t>{0, 3'000'000},
                                     {1, 1},
                                     {12'345, 1'000'000},
                                     {2'999'999, 1}}) {
    EXPECT_EQ(read(path, offset, size), content.substr(offset, size));
  }
}

TEST_P(BlockIo, StopsAtTheEndOfTheFile) {
  const std::string path = folder_.write("file", numbered(1000));
  EXPECT_EQ(read(path, 900, 1000).size(), 100U);
  EXPECT_EQ(read(path, 1000, 10).size(), 0U);
}

awaitable<void> read_piece(block_io* files, std::shared_ptr<open_file> file, std::uint64_t offset,
                           buffer into, std::size_t* sum) {
  const auto got = co_await files->read_at(file, offset, into.size(), into, 10s);
  *sum += got.value();
}

// More reads than the submission queue holds.
TEST_P(BlockIo, ManyReadsAtOnceAllComeBack) {
  const std::string path = folder_.write("file", numbered(2'000'000));
  const auto file = open_file::open(path).value();
  scope tasks(threads_->io(0).executor());
  std::size_t sum = 0;
  std::promise<void> spawned;
  asio::post(threads_->io(0).context(), [&] {
    for (std::uint64_t i = 0; i < 2000; ++i) {
      tasks.spawn(
          read_piece(&threads_->io(0).files(), file, i * 1000, share_->try_acquire(1000), &sum));
    }
    spawned.set_value();
  });
  spawned.get_future().get();
  run_on(threads_->io(0), tasks.join());
  EXPECT_EQ(sum, 2'000'000U);
}

INSTANTIATE_TEST_SUITE_P(Both, BlockIo, ::testing::Values(io_backend::uring, io_backend::pread),
                         [](const auto& p) {
                           return p.param == io_backend::uring ? "uring" : "pread";
                         });

TEST(OpenFile, SaysWhatIsWrong) {
  EXPECT_EQ(open_file::open("/no/such/file").error().kind(), errc::not_found);
  EXPECT_EQ(open_file::open("/tmp").error().kind(), errc::usage);
}

// A device that answers with what the test says, one piece at a time.
class scripted_io final : public block_io {
 public:
  explicit scripted_io(std::vector<int> outcomes) : outcomes_(std::move(outcomes)) {}
  std::string_view name() const override { return "scripted"; }
  std::vector<std::pair<std::uint64_t, std::size_t>> asked;
  int cancelled = 0;

 protected:
  void submit(std::shared_ptr<read_op> op) override {
    asked.emplace_back(op->file_offset, op->size);
    if (asked.size() > outcomes_.size()) return;  // silent from here on
    const int outcome = outcomes_[asked.size() - 1];
    asio::post(op->timer.get_executor(), [op, outcome] { op->finish(outcome); });
  }
  void cancel(read_op& op) override {
    ++cancelled;
    op.finish(-ECANCELED);
  }

 private:
  std::vector<int> outcomes_;
};

class ScriptedRead : public ::testing::Test {
 protected:
  result<std::size_t> read(scripted_io& device, steady_clock::duration patience = 10s) {
    const auto file = std::make_shared<open_file>(dup(0), "/disk/file", 100, false);
    return run_on(threads_.io(0), device.read_at(file, 0, 100, share_->try_acquire(100), patience));
  }
  runtime threads_{{.cpu_threads = 1}};
  std::shared_ptr<memory_share> share_ =
      std::make_shared<memory_share>("test", 1_MiB, default_host_allocator());
};

TEST_F(ScriptedRead, GoesOnAfterShortReadsEintrAndEagain) {
  scripted_io device({30, -EINTR, 20, -EAGAIN, 50});
  EXPECT_EQ(read(device).value(), 100U);
  const std::vector<std::pair<std::uint64_t, std::size_t>> expected{
      {0, 100}, {30, 70}, {30, 70}, {50, 50}, {50, 50}};
  EXPECT_EQ(device.asked, expected);
}

TEST_F(ScriptedRead, AnIoErrorNamesPathAndOffset) {
  scripted_io device({30, -EIO});
  const auto got = read(device);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().kind(), errc::io_failed);
  EXPECT_EQ(got.error().where(), "/disk/file");
  EXPECT_EQ(got.error().byte_offset(), 30U);
}

TEST_F(ScriptedRead, ASilentDeviceIsATimeoutAndItsReadIsCancelled) {
  scripted_io device({});
  const auto got = read(device, 5ms);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().kind(), errc::timed_out);
  EXPECT_EQ(device.cancelled, 1);
}

// A device that says the same for ever.
class stubborn_io final : public block_io {
 public:
  explicit stubborn_io(int outcome) : outcome_(outcome) {}
  std::string_view name() const override { return "stubborn"; }
  int asked = 0;

 protected:
  void submit(std::shared_ptr<read_op> op) override {
    ++asked;
    asio::post(op->timer.get_executor(), [op, outcome = outcome_] { op->finish(outcome); });
  }
  void cancel(read_op&) override {}

 private:
  int outcome_;
};

TEST_F(ScriptedRead, EintrAndEagainForEverAreATimeoutToo) {
  for (const int outcome : {-EINTR, -EAGAIN}) {
    stubborn_io device(outcome);
    const auto file = std::make_shared<open_file>(dup(0), "/disk/file", 100, false);
    const auto got =
        run_on(threads_.io(0), device.read_at(file, 0, 100, share_->try_acquire(100), 300ms));
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().kind(), errc::timed_out);
    EXPECT_LT(device.asked, 30);  // it is not asked in a loop
  }
}

// Reads the real file, but the first answer is no longer than the test says.
class splitting_io final : public block_io {
 public:
  explicit splitting_io(std::size_t first) : first_(first) {}
  std::string_view name() const override { return "splitting"; }
  bool all_aligned = true;

 protected:
  void submit(std::shared_ptr<read_op> op) override {
    const std::size_t align = op->file->alignment();
    all_aligned &= op->file_offset % align == 0 && op->size % align == 0;
    const std::size_t size = std::min(op->size, std::exchange(first_, op->size));
    const std::size_t asked = (size + align - 1) / align * align;
    const ssize_t n = pread(op->file->fd(), op->into.data() + op->buffer_offset, asked,
                            static_cast<off_t>(op->file_offset));
    const int outcome =
        n < 0 ? -errno : static_cast<int>(std::min<std::size_t>(size, static_cast<std::size_t>(n)));
    asio::post(op->timer.get_executor(), [op, outcome] { op->finish(outcome); });
  }
  void cancel(read_op&) override {}

 private:
  std::size_t first_;
};

class SplitRead : public ::testing::TestWithParam<bool> {
 protected:
  runtime threads_{{.cpu_threads = 1}};
  std::shared_ptr<memory_share> share_ =
      std::make_shared<memory_share>("test", 1_MiB, default_host_allocator());
  testing::temporary_folder folder_;
};

TEST_P(SplitRead, EveryShortFirstAnswerGivesTheSameBytes) {
  constexpr std::size_t size = 3 * 4096 + 700;
  const std::string content = numbered(size);
  const auto path = folder_.write("file", content);
  // Every length around the pieces' ends, and many between them.
  for (std::size_t first = 1; first <= size;
       first += first % 512 > 508 || first % 512 < 3 ? 1 : 37) {
    const auto file = open_file::open(path).value();
    if (GetParam()) file->read_directly();
    if (GetParam() && file->alignment() == 1) GTEST_SKIP() << "no direct reads in " << path;
    splitting_io device(first);
    buffer into = share_->try_acquire(size + 4096);
    const auto got = run_on(threads_.io(0), device.read_at(file, 0, size, into, 10s));
    ASSERT_EQ(got.value(), size) << first;
    ASSERT_EQ(std::string(reinterpret_cast<const char*>(into.data()), size), content) << first;
    ASSERT_TRUE(device.all_aligned) << first;
  }
}

INSTANTIATE_TEST_SUITE_P(Cache, SplitRead, ::testing::Bool(),
                         [](const auto& p) { return p.param ? "direct" : "buffered"; });

TEST(OpenFile, OpensAgainAfterGivingUpItsDescriptor) {
  const testing::temporary_folder folder;
  const auto path = folder.write("file", "content");
  const auto file = open_file::open(path).value();
  file->close_descriptor();
  EXPECT_FALSE(file->has_descriptor());
  EXPECT_TRUE(file->reopen());
  EXPECT_TRUE(file->has_descriptor());
  file->close_descriptor();
  std::filesystem::remove(path);
  EXPECT_EQ(file->reopen().error().kind(), errc::not_found);
  folder.write("file", "something else");
  EXPECT_EQ(file->reopen().error().kind(), errc::changed);
}

TEST(OpenFile, TellsWhatIsInThePageCache) {
  const testing::temporary_folder folder;
  const auto file = open_file::open(folder.write("file", numbered(100'000))).value();
  const auto share = file->cached_share();
  if (!share) GTEST_SKIP() << "this kernel does not tell";
  EXPECT_NEAR(*share, 1.0, 0.05);
}

}  // namespace
}  // namespace millrace
