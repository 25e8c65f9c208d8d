#include "io/disks/open_files.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/scope.h"
#include "engine/threads/io_thread.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>
#include <vector>

#include "engine/coroutines/timer.h"
#include "engine/files/file_system.h"
#include "tests/support/spine.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::run_on;

// One descriptor for all files.
std::unique_ptr<open_files> files_with_one_descriptor(const asio::any_io_executor& executor) {
  // UBSan examines the type of the call while there is still a descriptor for that.
  std::vector<std::string> names;
  host_files().list(".", names);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit few = before;
  few.rlim_cur = 4;
  setrlimit(RLIMIT_NOFILE, &few);  // open descriptors stay open
  auto files = std::make_unique<open_files>(executor);
  setrlimit(RLIMIT_NOFILE, &before);
  return files;
}

class OpenFiles : public ::testing::Test {
 protected:
  std::string file(const std::string& name) { return folder_.write(name, name); }
  std::string missing(int i) { return folder_ / ("missing" + std::to_string(i)); }

  awaitable<void> open_one(std::string path) {
    const auto opened = co_await files_->open(threads_, threads_.io(0), path);
    ++(opened ? opened_ : failed_);
    if (!opened) co_return;
    const auto held = co_await files_->hold(threads_, threads_.io(0), *opened);
    EXPECT_TRUE(held);
    if (held) files_->let_go(*opened);
    files_->forget(*opened);
  }
  awaitable<void> open_all(std::vector<std::string> paths, scope* tasks) {
    for (const std::string& path : paths) tasks->spawn(open_one(path));
    co_await tasks->join();
  }
  static awaitable<void> stop_late(scope* tasks, bool* late) {
    co_await sleep_for(20s);
    *late = true;
    tasks->stop();
  }
  // False if some of them would wait forever.
  awaitable<bool> all_end(std::vector<std::string> paths) {
    scope tasks(threads_.io(0).executor());
    bool late = false;
    co_await first_of(open_all(std::move(paths), &tasks), stop_late(&tasks, &late));
    co_return !late;
  }
  awaitable<void> stop_those_that_wait(std::shared_ptr<open_file> first) {
    const auto held = co_await files_->hold(threads_, threads_.io(0), first);
    EXPECT_TRUE(held);
    scope stopped(threads_.io(0).executor());
    for (int i = 0; i < 4; ++i) stopped.spawn(open_one(missing(i)));
    stopped.stop();
    files_->let_go(first);
    co_await stopped.join();
    files_->forget(first);
  }

  runtime threads_{{.cpu_threads = 2}};
  testing::temporary_folder folder_;
  std::unique_ptr<open_files> files_ = files_with_one_descriptor(threads_.io(0).executor());
  int opened_ = 0;
  int failed_ = 0;
};

TEST_F(OpenFiles, ThoseThatAreNotThereLeaveTheirPlaceToWhoWaits) {
  std::vector<std::string> paths;
  for (int i = 0; i < 8; ++i) paths.push_back(missing(i));
  paths.push_back(file("a"));
  paths.push_back(file("b"));
  EXPECT_TRUE(run_on(threads_.io(0), all_end(paths)));
  EXPECT_EQ(failed_, 8);
  EXPECT_EQ(opened_, 2);
}

TEST_F(OpenFiles, AndSoDoThoseThatAreStopped) {
  auto first = run_on(threads_.io(0), files_->open(threads_, threads_.io(0), file("a")));
  ASSERT_TRUE(first);
  run_on(threads_.io(0), stop_those_that_wait(*first));
  EXPECT_TRUE(run_on(threads_.io(0), all_end({file("b"), missing(9), file("c")})));
  EXPECT_EQ(opened_, 2);
}

}  // namespace
}  // namespace millrace
