#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/host/log.h"
#include "millrace/millrace.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watchdog.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

// With any number of free descriptors, either an engine is made and a plan runs, or the error says
// that there are too few and what to do, and nothing stays open.

std::size_t open_now() {
  std::size_t n = 0;
  DIR* const listed = opendir("/proc/self/fd");
  while (readdir(listed) != nullptr) ++n;
  closedir(listed);
  return n;
}

// While it exists, `free` descriptors can be opened.
class few_descriptors {
 public:
  explicit few_descriptors(std::size_t free) {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit fewer = before_;
    fewer.rlim_cur = 256;
    setrlimit(RLIMIT_NOFILE, &fewer);
    for (int fd = dup(STDOUT_FILENO); fd >= 0; fd = dup(STDOUT_FILENO)) taken_.push_back(fd);
    for (std::size_t i = 0; i < free && !taken_.empty(); ++i) give_one();
  }
  ~few_descriptors() {
    setrlimit(RLIMIT_NOFILE, &before_);
    while (!taken_.empty()) give_one();
  }
  few_descriptors(const few_descriptors&) = delete;
  few_descriptors& operator=(const few_descriptors&) = delete;

 private:
  void give_one() {
    close(taken_.back());
    taken_.pop_back();
  }
  rlimit before_{};
  std::vector<int> taken_;
};

class Descriptors : public ::testing::TestWithParam<engine_options> {
 protected:
  Descriptors() {
    set_log_sink([](std::string_view) {});
    for (int i = 0; i < 3; ++i) paths_.push_back(folder_ / fmt::format("d{}.tar", i));
    write_fake_shards(paths_, {.samples = all_samples, .classes = 2, .size = 32});
  }
  ~Descriptors() override { set_log_sink(nullptr); }

  // True: everything was read.
  bool read_all(const engine_options& how) {
    try {
      engine eng(how);
      auto data = eng.run(shards(paths_) | untar() | group_by_key() | shuffle({.samples = 10}) |
                          map([](sample s) { return s; }, {.threads = 2}) | prefetch(2));
      std::size_t n = 0;
      while (data.next()) ++n;
      EXPECT_EQ(n, all_samples);
      return true;
    } catch (const failure& f) {
      EXPECT_EQ(f.kind(), errc::no_descriptors) << f.what();
      EXPECT_NE(f.why().what_to_do().find("ulimit -n"), std::string::npos) << f.what();
      return false;
    }
  }

  static constexpr std::size_t all_samples = 30;
  const testing::temporary_folder folder_;
  std::vector<std::string> paths_;
};

TEST_P(Descriptors, HoweverFewAreToldOrSuffice) {
  engine_options how = GetParam();
  how.cpu_threads = 2;
  how.memory_bytes = 64_MiB;
  const bool is_cached = !how.source.cache.folder.empty();
  ASSERT_TRUE(read_all(how));  // descriptors opened once for the process are open now
  const std::size_t before = open_now();
  std::size_t sufficient = 0;
  for (std::size_t free = 0; free <= 40; ++free) {
    SCOPED_TRACE(fmt::format("{} free descriptors", free));
    testing::bounded("a run with few descriptors", [&] {
      if (is_cached) {
        how.source.cache.folder = folder_ / fmt::format("cache{}", free);
        how.source.cache.paths = {folder_ / ""};
      }
      const few_descriptors scope(free);
      sufficient += read_all(how) ? 1 : 0;
    });
    ASSERT_EQ(open_now(), before);
  }
  EXPECT_GT(sufficient, 10U);
  EXPECT_LT(sufficient, 41U);
}

INSTANTIATE_TEST_SUITE_P(Each, Descriptors,
                         ::testing::Values(engine_options{.io = io_backend::automatic},
                                           engine_options{.io = io_backend::pread},
                                           engine_options{.io_threads = 3},
                                           engine_options{.source = {.cache = {.folder = "any"}}}));

}  // namespace
}  // namespace millrace
