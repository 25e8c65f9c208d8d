#include "engine/base/process_wide.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "engine/base/units.h"
#include "engine/files/written_file.h"
#include "engine/host/log.h"
#include "engine/memory/memory.h"
#include "engine/memory/read_blocks.h"
#include "tests/support/forked.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

using testing::status_of_child;

struct guarded {
  std::mutex mutex;
  int value = 0;
};

// A thread that is where it must not be disturbed, until this is destroyed.
class busy_thread {
 public:
  template <class F>
  explicit busy_thread(F enters) : thread_([this, enters] { enters([this] { stay(); }); }) {
    inside_.get_future().wait();
  }
  ~busy_thread() {
    leave_.set_value();
    thread_.join();
  }
  busy_thread(const busy_thread&) = delete;
  busy_thread& operator=(const busy_thread&) = delete;

 private:
  void stay() {
    inside_.set_value();
    leave_.get_future().wait();
  }
  std::promise<void> inside_;
  std::promise<void> leave_;
  std::thread thread_;
};

TEST(ProcessWide, AForkedChildHasAnObjectOfItsOwnAndItsLock) {
  process_wide<guarded>().value = 7;
  const home_process here;
  {
    const busy_thread holds([](const auto& stay) {
      const std::scoped_lock lock(process_wide<guarded>().mutex);
      stay();
    });
    EXPECT_EQ(status_of_child([&] {
                const std::scoped_lock lock(process_wide<guarded>().mutex);
                return process_wide<guarded>().value == 0 && !here.is_this() ? 0 : 1;
              }),
              0);
  }
  EXPECT_TRUE(here.is_this());
  EXPECT_EQ(process_wide<guarded>().value, 7);
}

TEST(ProcessWide, AForkedChildLogsWhileAThreadOfTheParentIsInTheSink) {
  std::atomic<bool> told = false;
  std::function<void()> stay;
  const pid_t parent = getpid();
  set_log_sink([&, parent](std::string_view) {
    told = true;
    if (getpid() == parent) stay();
  });
  {
    const busy_thread holds([&](const auto& inside) {
      stay = inside;
      log_notice("from the parent");
    });
    EXPECT_EQ(status_of_child([&] {
                told = false;
                log_notice("from the child");
                return told ? 0 : 1;
              }),
              0);
  }
  set_log_sink(nullptr);
}

std::atomic<bool> sink_is_gone = false;
std::atomic<bool> sink_was_told = false;

// A global object that logs when it is destroyed, as a loader may.
struct logs_at_the_end {
  ~logs_at_the_end() {
    if (sink_is_gone) _exit(3);
    log_notice("the end");
    _exit(sink_was_told ? 0 : 4);
  }
};

struct tells_when_it_goes {
  ~tells_when_it_goes() { sink_is_gone = true; }
};

TEST(ProcessWide, TheSinkOutlivesGlobalObjects) {
  EXPECT_EQ(status_of_child([] {
              static const logs_at_the_end made_before_the_log;
              set_log_sink([held = std::make_shared<tells_when_it_goes>()](std::string_view) {
                sink_was_told = true;
              });
              std::exit(5);  // NOLINT: what is tested
              return 5;
            }),
            0);
}

// Blocks until it is told, once it has given some: the thread that asks holds the share's lock.
class held_up final : public host_allocator {
 public:
  std::byte* allocate(std::size_t size) override {
    if (stay) std::exchange(stay, nullptr)();
    return default_host_allocator().allocate(size);
  }
  void release(std::byte* data, std::size_t size) noexcept override {
    default_host_allocator().release(data, size);
  }
  std::function<void()> stay;
};

TEST(ProcessWide, AForkedChildLetsGoOfMemoryWhoseShareAThreadOfTheParentHasLocked) {
  held_up memory;
  auto share = std::make_shared<memory_share>("test", 1_MiB, memory);
  std::optional<buffer> large = share->try_acquire(128_KiB);
  std::optional<buffer> small = share->try_acquire(100);
  {
    const busy_thread holds([&](const auto& inside) {
      memory.stay = inside;
      share->try_acquire(256_KiB);
    });
    EXPECT_EQ(status_of_child([&] {
                large.reset();
                small.reset();
                share.reset();
                return 0;
              }),
              0);
  }
  EXPECT_GT(share->in_use(), 128_KiB);
  large.reset();
  small.reset();
  EXPECT_EQ(share->in_use(), 0U);
}

TEST(ProcessWide, AForkedChildMakesBlocksOfItsOwn) {
  std::byte* const of_the_parent = read_block_allocator::instance().allocate(1_MiB);
  EXPECT_EQ(status_of_child([&] {
              std::byte* const own = read_block_allocator::instance().allocate(1_MiB);
              *own = std::byte{1};
              return own != of_the_parent && read_block_allocator::instance().arenas(0).size() == 1
                         ? 0
                         : 1;
            }),
            0);
  read_block_allocator::instance().release(of_the_parent, 1_MiB);
}

}  // namespace
}  // namespace millrace
