#include "io/source.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/scope.h"
#include "engine/threads/io_thread.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>

#include "engine/base/units.h"
#include "io/cache/cached_source.h"
#include "io/files/memory_source.h"
#include "io/standard_sources.h"
#include "io/unpack/unpack.h"
#include "tests/support/numbered.h"
#include "tests/support/shard_server.h"
#include "tests/support/spine.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

using namespace std::chrono_literals;
using testing::fault;
using testing::numbered;
using testing::run_on;

struct read_result {
  std::string content;
  std::optional<error> failed;
};

constexpr std::size_t most_memory = 9 * 64_KiB;

class Source : public ::testing::Test {
 protected:
  Source() { sources_.add("memory", memory_source_factory(store_)); }

  // As users add it: URLs may name it in lower or upper case.
  void add_store(std::string scheme) {
    sources_.add(std::move(scheme), memory_source_factory(store_));
  }
  read_result read(const std::string& url, std::uint64_t offset = 0) {
    auto memory = std::make_shared<memory_share>("test", most_memory, default_host_allocator());
    scope tasks(threads_.io(0).executor());
    read_result out;
    std::promise<void> done;
    run_on(threads_.io(0), read_all(&tasks, memory, url, offset, &out));
    asio::post(threads_.io(0).context(), [&] { tasks.stop(); });
    run_on(threads_.io(0), tasks.join());
    EXPECT_EQ(memory->in_use(), 0U);
    return out;
  }

  awaitable<void> read_all(scope* tasks, std::shared_ptr<memory_share> memory, std::string url,
                           std::uint64_t offset, read_result* out) {
    source_context context{threads_, threads_.io(0), *tasks, memory, options_, counters_};
    auto source = co_await sources_.open(std::move(context), url, {.begin = offset, .end = {}});
    if (!source) {
      out->failed = source.error();
      co_return;
    }
    for (;;) {
      const auto piece = co_await (*source)->read();
      if (!piece) {
        out->failed = piece.error();
        co_return;
      }
      if (piece->empty()) co_return;
      out->content += piece->text();
    }
  }

  // Ends at every stage of its first reads.
  awaitable<void> open_and_give_up(scope* tasks, std::shared_ptr<memory_share> memory,
                                   std::string path) {
    source_context context{threads_, threads_.io(0), *tasks, memory, options_, counters_};
    auto source = co_await sources_.open(std::move(context), path);
    const int turns = static_cast<int>(++given_up_ % 8);
    for (int i = 0; i < turns; ++i) {
      co_await asio::post(co_await this_executor, no_throw);
    }
  }

  // The first chunk has been given out when `change` is made, and eight more may be read ahead.
  // Appends the bytes to `out`.
  awaitable<result<bytes>> read_while_it_changes(scope* tasks, std::shared_ptr<memory_share> memory,
                                                 std::string path,
                                                 const std::function<void()>* change,
                                                 std::string* out) {
    source_context context{threads_, threads_.io(0), *tasks, memory, options_, counters_};
    auto source = co_await sources_.open(std::move(context), path);
    for (bool is_first = true;; is_first = false) {
      auto piece = co_await (*source)->read();
      if (!piece || piece->empty()) co_return piece;
      *out += piece->text();
      if (is_first) (*change)();
    }
  }

  // Reads `chunks` chunks, each as soon as it is asked for or, if `is_slow`, once it and the next
  // one have been read, and then until the file is read ahead no further. Returns what is held
  // then.
  awaitable<std::size_t> memory_after(scope* tasks, std::shared_ptr<memory_share> memory,
                                      std::string path, std::size_t chunks, bool is_slow) {
    source_context context{threads_, threads_.io(0), *tasks, memory, options_, counters_};
    auto source = co_await sources_.open(std::move(context), path);
    result<bytes> piece = bytes();
    const auto until_read = [this](std::size_t chunks) -> awaitable<void> {
      while (counters_.bytes < chunks * 64_KiB) {
        co_await asio::post(co_await this_executor, no_throw);
      }
    };
    for (std::size_t i = 0; i < chunks; ++i) {
      if (is_slow) co_await until_read(i + 2);
      piece = co_await (*source)->read();
    }
    const auto ahead = static_cast<std::size_t>(options_.read_ahead);
    co_await until_read(chunks + (is_slow ? 2 : ahead));
    co_return memory->in_use();
  }
  std::size_t memory_after(const std::string& path, bool is_slow) {
    auto memory = std::make_shared<memory_share>("test", most_memory, default_host_allocator());
    scope tasks(threads_.io(0).executor());
    counters_ = {};
    const std::size_t held =
        run_on(threads_.io(0), memory_after(&tasks, memory, path, 40, is_slow));
    asio::post(threads_.io(0).context(), [&] { tasks.stop(); });
    run_on(threads_.io(0), tasks.join());
    return held;
  }

  awaitable<result<std::string>> inflate(std::string url, std::uint64_t offset) {
    auto memory = std::make_shared<memory_share>("test", 1_MiB, default_host_allocator());
    scope tasks(threads_.io(0).executor());
    source_context context{threads_, threads_.io(0), tasks, memory, options_, counters_};
    auto compressed = co_await sources_.open(context, url);
    auto begun = co_await begin_reading(std::move(*compressed));
    auto plain = unpack(context, {memory, memory},
                        {begun->how, std::move(begun->source), begun->first, url}, offset);
    std::string out;
    for (;;) {
      auto piece = co_await plain->read();
      if (!piece) co_return piece.error();
      if (piece->empty()) co_return out;
      out += piece->text();
    }
  }

  runtime threads_{{.cpu_threads = 2}};
  source_options options_{
      .chunk_bytes = 64_KiB,
      .http = {.timeouts = {.progress = 200ms}, .attempts = 3, .backoff = 1ms, .split = 1}};
  source_counters counters_;
  unsigned given_up_ = 0;
  std::shared_ptr<memory_store> store_ = std::make_shared<memory_store>(1000);
  source_registry sources_ = standard_sources(threads_.io(0), options_);
  testing::shard_server server_;
  testing::temporary_folder folder_;
};

TEST_F(Source, AFileIsReadAheadAsFarAsItsReaderNeeds) {
  const auto path = folder_.write("a.tar", numbered(100 * 64_KiB));
  EXPECT_EQ(memory_after(path, true), 3 * 64_KiB);   // one in hand, two ahead
  EXPECT_EQ(memory_after(path, false), 9 * 64_KiB);  // a reader that waits: eight
}

TEST_F(Source, Files) {
  const std::string content = numbered(1'000'001);
  const auto path = folder_.write("a.tar", content);
  EXPECT_EQ(read(path).content, content);
  EXPECT_EQ(read("file:" + path, 777'777).content, content.substr(777'777));
  EXPECT_EQ(read(path, content.size()).content, "");
  EXPECT_EQ(read(folder_ / "none.tar").failed->kind(), errc::not_found);
  EXPECT_EQ(read(path, content.size() + 1).failed->kind(), errc::changed);
}

TEST_F(Source, ASchemeOfOnesOwnIsFoundHoweverItIsWritten) {
  store_->put("a.tar", "content");
  add_store("MyStore");
  for (const char* const url : {"mystore:a.tar", "MyStore:a.tar", "MYSTORE:a.tar"}) {
    const auto got = read(url);
    EXPECT_EQ(got.content, "content") << url << (got.failed ? got.failed->message() : "");
  }
}

TEST_F(Source, FilesThatAreGivenUpLeaveTheDeviceToOthers) {
  const std::string content = numbered(1'000'001);
  const auto path = folder_.write("a.tar", content);
  auto memory = std::make_shared<memory_share>("test", most_memory, default_host_allocator());
  scope tasks(threads_.io(0).executor());
  // More times than reads may be under way at once.
  for (int i = 0; i < 300; ++i) run_on(threads_.io(0), open_and_give_up(&tasks, memory, path));
  run_on(threads_.io(0), tasks.join());
  EXPECT_EQ(read(path).content, content);
}

// However the file is written to while it is read, the bytes before the error are those of the
// original file.
TEST_F(Source, AFileThatIsWrittenToIsAnError) {
  const std::string content = numbered(1'000'000);
  const std::string path = folder_ / "a.tar";
  const std::string other(1'000'000, 'x');
  const auto overwrite = [&](std::size_t at, std::size_t size) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at)).write(other.data(), static_cast<long>(size));
  };
  const std::vector<std::pair<std::string, std::function<void()>>> changes = {
      {"", [] {}},
      {"shrinks", [&] { EXPECT_EQ(truncate(path.c_str(), 500'000), 0); }},
      {"is emptied", [&] { EXPECT_EQ(truncate(path.c_str(), 0), 0); }},
      {"grows", [&] { overwrite(1'000'000, 10); }},
      {"is written to at its end", [&] { overwrite(999'999, 1); }},
      {"is rewritten", [&] { overwrite(0, 1'000'000); }}};
  for (const auto& [what, change] : changes) {
    folder_.write("a.tar", content);
    const std::array<timespec, 2> before = {
        {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), before.data(), 0), 0);
    auto memory = std::make_shared<memory_share>("test", most_memory, default_host_allocator());
    scope tasks(threads_.io(0).executor());
    std::string given;
    const auto last =
        run_on(threads_.io(0), read_while_it_changes(&tasks, memory, path, &change, &given));
    EXPECT_TRUE(content.starts_with(given)) << what;
    EXPECT_EQ(last.has_value(), what.empty()) << what;
    if (!last) EXPECT_EQ(last.error().kind(), errc::changed) << what;
    run_on(threads_.io(0), tasks.join());
  }
}

// Bytes that the damaged copy cannot give come from the file, if it is still the one that was
// copied.
TEST_F(Source, ACachedFileThatIsReplacedIsNotMixedWithItsCopy) {
  const std::string content = numbered(3'000'000);
  std::filesystem::create_directories(folder_ / "shared");
  std::filesystem::create_directory(folder_ / "cache");
  std::filesystem::permissions(folder_ / "cache", std::filesystem::perms::owner_all);
  options_.cache = {.folder = folder_ / "cache",
                    .most_bytes = 0,
                    .least_free = 0,
                    .paths = {folder_ / "shared/"}};
  sources_ = standard_sources(threads_.io(0), options_);
  for (const bool is_replaced : {false, true}) {
    const auto path = folder_.write(is_replaced ? "shared/b.tar" : "shared/a.tar", content);
    for (const auto& one : std::filesystem::directory_iterator(folder_ / "cache")) {
      std::filesystem::remove(one.path());  // so that the entry is the only one
    }
    const auto entry_of = [&] {
      for (const auto& one : std::filesystem::directory_iterator(folder_ / "cache")) {
        const bool is_entry = one.is_regular_file() && one.file_size() > content.size();
        if (is_entry && one.path().extension() != ".part") return one.path().string();
      }
      return std::string();
    };
    const auto read_with = [&](const std::function<void()>& change, std::string& given) {
      auto memory = std::make_shared<memory_share>("test", 2_MiB, default_host_allocator());
      scope tasks(threads_.io(0).executor());
      auto last =
          run_on(threads_.io(0), read_while_it_changes(&tasks, memory, path, &change, &given));
      run_on(threads_.io(0), tasks.join());
      return last;
    };
    std::string whole;
    ASSERT_TRUE(read_with([] {}, whole));
    ASSERT_TRUE(whole == content);
    ASSERT_NE(entry_of(), "");
    std::fstream(entry_of(), std::ios::in | std::ios::out | std::ios::binary).seekp(2'500'000)
        << '!';
    const std::function<void()> change = [&] {
      if (!is_replaced) return;
      folder_.write("new", std::string(content.size(), 'x'));
      std::filesystem::rename(folder_ / "new", path);
    };
    std::string given;
    const auto last = read_with(change, given);
    EXPECT_TRUE(content.starts_with(given));
    EXPECT_EQ(last.has_value(), !is_replaced);
    if (!last) EXPECT_EQ(last.error().kind(), errc::changed);
  }
}

TEST_F(Source, Memory) {
  store_->put("a", numbered(12'345));
  EXPECT_EQ(read("memory:a").content, numbered(12'345));
  EXPECT_EQ(read("memory:a", 12'000).content, numbered(12'345).substr(12'000));
  EXPECT_EQ(read("memory:b").failed->kind(), errc::not_found);
}

// In force while it exists.
class standard_input {
 public:
  explicit standard_input(int from) : before_(dup(STDIN_FILENO)) {
    dup2(from, STDIN_FILENO);
    close(from);
  }
  ~standard_input() {
    dup2(before_, STDIN_FILENO);
    close(before_);
  }
  standard_input(const standard_input&) = delete;
  standard_input& operator=(const standard_input&) = delete;

 private:
  int before_;
};

TEST_F(Source, StandardInputIsReadOnceWhereItIsAPipe) {
  for (const std::string text : {"first", "second"}) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    ASSERT_EQ(write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    close(ends[1]);
    const standard_input piped(ends[0]);
    EXPECT_EQ(read("-").content, text);
    for (int epoch = 1; epoch < 3; ++epoch) {
      const auto again = read("-");
      ASSERT_TRUE(again.failed);
      EXPECT_EQ(again.failed->kind(), errc::unsupported);
      EXPECT_NE(again.failed->message().find("redirect a file"), std::string::npos);
    }
  }
  const auto path = folder_.write("a.tar", numbered(1000));
  const standard_input file(open(path.c_str(), O_RDONLY));
  for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(read("-").content, numbered(1000));
}

TEST_F(Source, UnknownSchemesAreRefusedWithTheKnownOnes) {
  const auto out = read("gopher://h/x");
  ASSERT_TRUE(out.failed);
  EXPECT_EQ(out.failed->kind(), errc::unsupported);
  EXPECT_NE(out.failed->message().find("file, gs, hf, http, https, memory"), std::string::npos);
}

TEST_F(Source, Gzip) {
  // "hello\n" and "world\n" as two gzip members.
  const std::string hello(
      "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcb\x48\xcd\xc9\xc9\xe7\x02\x00\x20\x30\x3a\x36\x06"
      "\x00\x00\x00",
      26);
  store_->put("a.gz", hello + hello);
  EXPECT_EQ(run_on(threads_.io(0), inflate("memory:a.gz", 0)).value(), "hello\nhello\n");
  EXPECT_EQ(run_on(threads_.io(0), inflate("memory:a.gz", 8)).value(), "llo\n");
  store_->put("cut.gz", hello.substr(0, 20));
  EXPECT_EQ(run_on(threads_.io(0), inflate("memory:cut.gz", 0)).error().kind(), errc::truncated);
  store_->put("bad.gz", hello.substr(0, 12) + "not deflated at all");
  EXPECT_EQ(run_on(threads_.io(0), inflate("memory:bad.gz", 0)).error().kind(), errc::bad_archive);
}

TEST_F(Source, HttpReadsAndKeepsTheConnection) {
  server_.put("/a.tar", numbered(300'000));
  EXPECT_EQ(read(server_.url("/a.tar")).content, numbered(300'000));
  EXPECT_EQ(read(server_.url("/a.tar"), 200'000).content, numbered(300'000).substr(200'000));
  const auto log = server_.requests();
  ASSERT_EQ(log.size(), 2U);
  EXPECT_EQ(log[1].range, "bytes=200000-");
  EXPECT_EQ(log[0].connection, log[1].connection);
}

TEST_F(Source, HttpBodiesOfEveryKind) {
  server_.put("/a.tar", numbered(300'000));
  for (const fault& how : {fault{.chunked = true}, fault{.no_length = true}}) {
    server_.fail_next("/a.tar", how);
    EXPECT_EQ(read(server_.url("/a.tar")).content, numbered(300'000));
  }
  server_.put("/empty.tar", "");
  const auto empty = read(server_.url("/empty.tar"));
  EXPECT_FALSE(empty.failed);
  EXPECT_EQ(empty.content, "");
}

TEST_F(Source, HttpResumesACutTransferAtTheByte) {
  const std::string content = numbered(300'000);
  server_.put("/a.tar", content);
  server_.fail_next("/a.tar", {.cut_after = 70'000});
  server_.fail_next("/a.tar", {.cut_after = 70'000});
  EXPECT_EQ(read(server_.url("/a.tar")).content, content);
  const auto log = server_.requests();
  ASSERT_EQ(log.size(), 3U);
  EXPECT_EQ(log[1].range, "bytes=70000-");
  EXPECT_EQ(log[1].if_range, "\"v1\"");
  EXPECT_EQ(log[2].range, "bytes=140000-");
  EXPECT_EQ(counters_.retries, 2U);
}

TEST_F(Source, HttpResumesAChunkedTransferToo) {
  server_.put("/a.tar", numbered(300'000));
  server_.fail_next("/a.tar", {.cut_after = 70'000, .chunked = true});
  EXPECT_EQ(read(server_.url("/a.tar")).content, numbered(300'000));
}

TEST_F(Source, HttpResumesWhereTheServerDoesNotDoRanges) {
  server_.put("/a.tar", numbered(300'000));
  server_.fail_next("/a.tar", {.cut_after = 70'000});
  server_.fail_next("/a.tar", {.ignore_range = true});
  EXPECT_EQ(read(server_.url("/a.tar")).content, numbered(300'000));
}

TEST_F(Source, HttpNeverMixesTwoVersions) {
  server_.put("/a.tar", numbered(300'000));
  for (const int others : {1, 3}) {  // of the three attempts
    server_.fail_next("/a.tar", {.cut_after = 70'000});
    for (int i = 0; i < others; ++i) server_.fail_next("/a.tar", {.etag = "\"v2\""});
    if (others == 1) EXPECT_EQ(read(server_.url("/a.tar")).content, numbered(300'000));
  }
  const auto out = read(server_.url("/a.tar"));
  ASSERT_TRUE(out.failed);
  EXPECT_EQ(out.failed->kind(), errc::changed);
  EXPECT_LE(out.content.size(), 70'000U);
}

TEST_F(Source, HttpAsksAStalledServerAgain) {
  server_.put("/a.tar", numbered(300'000));
  server_.fail_next("/a.tar", {.stall_after = 100});
  EXPECT_EQ(read(server_.url("/a.tar")).content, numbered(300'000));
  EXPECT_EQ(server_.requests().back().range, "bytes=100-");
}

TEST_F(Source, HttpTriesAgainAfter503AndGivesUpInTheEnd) {
  server_.put("/a.tar", numbered(1000));
  server_.fail_next("/a.tar", {.status = 503});
  EXPECT_EQ(read(server_.url("/a.tar")).content, numbered(1000));
  for (int i = 0; i < 3; ++i) server_.fail_next("/a.tar", {.status = 503});
  const auto out = read(server_.url("/a.tar"));
  ASSERT_TRUE(out.failed);
  EXPECT_EQ(out.failed->kind(), errc::http_status);
}

TEST_F(Source, HttpDeadKeptAliveConnectionIsNoAttempt) {
  server_.put("/a.tar", numbered(1000));
  read(server_.url("/a.tar"));
  for (int i = 0; i < 2; ++i) server_.fail_next("/a.tar", {.close_unanswered = true});
  EXPECT_EQ(read(server_.url("/a.tar")).content, numbered(1000));
  EXPECT_EQ(counters_.retries, 1U);  // the second one was a fresh connection
}

TEST_F(Source, HttpMissingObjectFailsAtOnce) {
  const auto out = read(server_.url("/none.tar"));
  ASSERT_TRUE(out.failed);
  EXPECT_EQ(out.failed->kind(), errc::not_found);
  EXPECT_EQ(server_.requests().size(), 1U);
}

TEST_F(Source, HttpRefusedConnectionNamesTheHost) {
  const auto out = read("http://127.0.0.1:1/a.tar");
  ASSERT_TRUE(out.failed);
  EXPECT_EQ(out.failed->kind(), errc::connect_failed);
  EXPECT_NE(out.failed->message().find("127.0.0.1:1"), std::string::npos);
}

TEST_F(Source, HttpFollowsRedirects) {
  server_.put("/b.tar", numbered(1000));
  server_.put("/a.tar", "");
  server_.fail_next("/a.tar", {.status = 302, .headers = "Location: /b.tar\r\n"});
  EXPECT_EQ(read(server_.url("/a.tar")).content, numbered(1000));
}

// In any order, with the options of a first run and of a later one.
TEST(SourceMemory, OfAListSufficesForEachOfIt) {
  const testing::temporary_folder folder;
  std::filesystem::create_directory(folder / "shared");
  const std::vector<std::string> all{folder.write("a.tar", "a"), folder.write("shared/b.tar", "b"),
                                     "pipe:cat a.tar",           "memory:c.tar",
                                     "http://host/d.tar",        "s3://bucket/e.tar"};
  for (const std::size_t chunk : {64_KiB, 256_KiB, 1_MiB, 3_MiB}) {
    source_options options{.chunk_bytes = chunk};
    options.cache.folder = folder / "cache";
    options.cache.paths = {folder / "shared"};
    const source_memory most = memory_for(options, all);
    for (std::size_t first = 0; first < all.size(); ++first) {
      std::vector<std::string> list = all;
      std::ranges::rotate(list, list.begin() + static_cast<std::ptrdiff_t>(first));
      const source_memory need = memory_for(options, list);
      EXPECT_EQ(need.least, most.least) << list.front() << " first, " << chunk;
      EXPECT_EQ(need.most, most.most) << list.front() << " first, " << chunk;
      const source_memory alone = memory_for(options, std::span(list).first(1));
      EXPECT_GE(most.least, alone.least) << list.front();
      EXPECT_GE(most.most, alone.most) << list.front();
    }
    EXPECT_GE(most.least, with_cache({}, options).least);
  }
}

}  // namespace
}  // namespace millrace
