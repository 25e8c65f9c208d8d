#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>

#include "engine/base/units.h"
#include "engine/coroutines/scope.h"
#include "engine/coroutines/spawn_on.h"
#include "engine/host/log.h"
#include "engine/threads/io_thread.h"
#include "io/cache/cached_source.h"
#include "io/hashes.h"
#include "tests/support/numbered.h"
#include "tests/support/spine.h"
#include "tests/support/temporary_folder.h"

namespace millrace::testing {

using namespace std::chrono_literals;

inline const std::string object_url = "http://host/a.tar";

// The origin of one object, in pieces; counts how often it is opened. A reader of the whole gets an
// error at its end if the digest does not match, as from an HTTP source.
struct origin {
  std::string content;
  object_version version;
  int opened = 0;
  std::uint64_t stop_at = ~std::uint64_t{0};  // gives no byte from here on, until it is changed
  std::function<void()> before_piece;
  bool ends_wrong = false;  // its source finds that the whole does not match its digest

  explicit origin(std::string bytes)
      : content(std::move(bytes)),
        version{.total = content.size(), .etag = "\"v1\"", .last_modified = {}} {}
};

class origin_source final : public byte_source {
 public:
  origin_source(std::shared_ptr<origin> of, byte_range range)
      : of_(std::move(of)),
        at_(range.begin),
        end_(range.end.value_or(of_->content.size())),
        is_whole_(range.begin == 0 && !range.end) {}
  awaitable<result<bytes>> read() override {
    if (of_->before_piece) of_->before_piece();
    while (at_ < end_ && at_ >= of_->stop_at) {
      steady_timer soon(co_await this_executor, 1ms);
      co_await soon.async_wait(no_throw);
    }
    const auto size = std::min<std::uint64_t>(100'000, end_ - at_);
    if (size > 0 && at_ + size == end_ && (of_->ends_wrong || (is_whole_ && !is_right()))) {
      co_return error(errc::integrity, "the bytes do not have the digest");
    }
    const auto piece = std::string_view(of_->content).substr(at_, size);
    at_ += size;
    co_return bytes::unowned(piece);
  }

 private:
  bool is_right() const {
    const auto& digest = of_->version.digest;
    return !digest || digest_of(digest->algorithm, of_->content) == digest->value;
  }

  std::shared_ptr<origin> of_;
  std::uint64_t at_;
  std::uint64_t end_;
  bool is_whole_;
};

inline awaitable<result<object_version>> probe(std::shared_ptr<origin> of) {
  co_return of->version;
}

inline awaitable<result<std::unique_ptr<byte_source>>> open_origin(std::shared_ptr<origin> of,
                                                                   byte_range range) {
  ++of->opened;
  co_return std::make_unique<origin_source>(std::move(of), range);
}

inline awaitable<result<std::string>> read_all(std::unique_ptr<byte_source> source) {
  std::string out;
  bytes held;  // like a consumer
  for (;;) {
    auto piece = co_await source->read();
    if (!piece) co_return piece.error();
    if (piece->empty()) co_return out;
    out += piece->text();
    held = std::move(*piece);
  }
}

// A cache in a folder of its own, an object, and readers of it.
class cache_test : public ::testing::Test {
 protected:
  cache_test() {
    std::filesystem::create_directory(folder_ / "c");
    std::filesystem::permissions(folder_ / "c", std::filesystem::perms::owner_all);
    set_log_sink([this](std::string_view line) {
      const std::scoped_lock lock(mutex_);
      said_ += std::string(line) + "\n";
    });
  }
  ~cache_test() override { set_log_sink({}); }

  cache_options cache(std::chrono::milliseconds patience = 60s) {
    return {.folder = folder_ / "c",
            .most_bytes = 0,
            .least_free = 0,
            .paths = {},
            .patience = patience};
  }
  std::string said() {
    const std::scoped_lock lock(mutex_);
    return said_;
  }
  std::string path(const std::string& ending = "") {
    return folder_ / "c/" + cache_name(object_url, from_->version) + ending;
  }

  // Concurrent readers at these offsets; returns the bytes that each got, or the error's message.
  std::vector<std::string> read(const cache_options& how, const std::vector<std::uint64_t>& offsets,
                                std::size_t memory_bytes = 64_MiB) {
    auto& io = threads_.io(0);
    scope tasks(io.executor());
    std::vector<std::future<result<std::string>>> running;
    std::promise<void> spawned;
    std::shared_ptr<object_cache> cached;
    asio::post(io.context(), [&] {
      cached = std::make_shared<object_cache>(
          how, std::make_shared<disk_table>(io.executor(), options_));
      for (const std::uint64_t at : offsets) {
        auto memory =
            std::make_shared<memory_share>("reads", memory_bytes, default_host_allocator());
        if (before_reading) before_reading(*memory);
        source_context context{threads_, io, tasks, memory, options_, counters_};
        cache_origin origin{
            .url = object_url,
            .probe = [of = from_] { return probe(of); },
            .open = [of = from_](const source_context&, byte_range range,
                                 const object_version&) { return open_origin(of, range); }};
        running.push_back(
            spawn_on(io.executor(), read_all(cached->open(std::move(context), std::move(origin),
                                                          {.begin = at, .end = {}}))));
      }
      spawned.set_value();
    });
    spawned.get_future().get();
    std::vector<std::string> out;
    for (auto& r : running) {
      const auto got = r.get();
      out.push_back(got ? *got : got.error().message());
    }
    run_on(io, tasks.join());
    std::promise<void> gone;
    asio::post(io.context(), [&] {
      cached.reset();
      gone.set_value();
    });
    gone.get_future().get();
    return out;
  }
  std::string read(std::uint64_t offset = 0, std::size_t memory_bytes = 64_MiB) {
    return read(cache(), {offset}, memory_bytes).front();
  }

  std::unique_ptr<cache_writer> writer() {
    auto made = cache_writer::open(path(), object_url, from_->version);
    return made ? std::move(*made) : nullptr;
  }
  std::span<const std::byte> content(std::size_t from, std::size_t size) {
    return std::as_bytes(std::span(from_->content).subspan(from, size));
  }
  std::vector<std::string> files() {
    std::vector<std::string> out;
    for (const auto& f : std::filesystem::directory_iterator(folder_ / "c")) {
      out.push_back(f.path().filename());
    }
    return out;
  }

  temporary_folder folder_;
  std::mutex mutex_;
  std::string said_;
  runtime threads_{{.cpu_threads = 2}};
  source_options options_{.chunk_bytes = 64_KiB};
  source_counters counters_;
  std::function<void(memory_share&)> before_reading;  // on each reader's memory
  std::shared_ptr<origin> from_ = std::make_shared<origin>(numbered(2'500'000));
};

}  // namespace millrace::testing
