#include "io/files/file_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <fstream>

#include "engine/base/hints.h"
#include "engine/base/units.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/timer.h"
#include "engine/host/host.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/offload.h"
#include "io/files/file_reader.h"
#include "io/read_ahead.h"

namespace millrace {
namespace {

using opened = result<std::unique_ptr<byte_source>>;

class file_source final : public byte_source {
 public:
  file_source(std::shared_ptr<read_window> window, scope::task reader)
      : window_(std::move(window)), reader_(std::move(reader)) {}
  ~file_source() override { window_->stop(); }
  file_source(const file_source&) = delete;
  file_source& operator=(const file_source&) = delete;

  awaitable<result<bytes>> read() override { return window_->take(); }

 private:
  std::shared_ptr<read_window> window_;
  scope::task reader_;
};

// Direct reads save a copy and leave the page cache to others. But cached data arrives from the
// cache faster than from any disk, and so does, from the second epoch on, data that will stay
// cached.
bool reads_directly(const open_file& file, const source_options& options) {
  if (options.direct != direct_reads::automatic) return options.direct == direct_reads::always;
  constexpr double mostly = 0.5;
  if (file.cached_share().value_or(0) > mostly) return false;
  return options.working_set_bytes == 0 || options.working_set_bytes > page_cache_room();
}

awaitable<void> run_reader(std::shared_ptr<file_reader> reader) {
  co_await reader->run();
}

awaitable<opened> open_path(std::shared_ptr<disk_table> disks, source_context context,
                            std::string path, byte_range range) {
  auto file = co_await open_readable(std::move(disks), context, path);
  if (!file) co_return file.error();
  if (context.version) {
    std::string& known = context.version->file;
    if (known.empty()) known = (*file)->file->version();
    if (known != (*file)->file->version()) {
      co_return error(errc::changed, "the file was replaced or changed while it was read")
          .at(path)
          .offset(range.begin)
          .skippable()
          .hint(new_names_hint);
    }
  }
  const std::uint64_t size = (*file)->file->size();
  if (range.begin > size) {
    co_return error(errc::changed, fmt::format("the file has only {} bytes", size))
        .at(path)
        .offset(range.begin)
        .skippable()
        .hint("the shard was replaced after its index or the saved state was made");
  }
  const std::uint64_t end = std::clamp(range.end.value_or(size), range.begin, size);
  co_return read_range(std::move(context), std::move(*file), range.begin, end);
}

using queue = read_ahead_source::queue;

awaitable<result<std::size_t>> read_some(std::shared_ptr<asio::posix::stream_descriptor> pipe,
                                         std::span<std::byte> into) {
  const auto [failed, got] =
      co_await pipe->async_read_some(asio::buffer(into.data(), into.size()), no_throw);
  if (failed == asio::error::eof) co_return std::size_t{0};
  if (failed) {
    co_return error(kind_of(failed.value()), "cannot read standard input").cause(failed.value());
  }
  co_return got;
}

awaitable<void> read_pipe(source_context context,
                          std::shared_ptr<asio::posix::stream_descriptor> pipe,
                          std::shared_ptr<queue> ahead) {
  for (;;) {
    auto chunk = co_await context.memory->acquire(context.options.chunk_bytes);
    if (!chunk) co_return ahead->fail(chunk.error());
    const auto got = co_await with_deadline(
        read_some(pipe, chunk->span()), context.options.read_timeout,
        error(errc::timed_out, "standard input gives no data")
            .hint("source_options.read_timeout (MILLRACE_READ_TIMEOUT) sets the limit"));
    if (!got) co_return ahead->fail(error(got.error()).at("-"));
    if (*got == 0) break;
    context.counters.bytes += *got;
    const auto taken = co_await ahead->push(std::move(*chunk).freeze(*got));
    if (!taken || !*taken) co_return;
  }
  ahead->close();
}

// A process has one standard input, whichever engine reads it.
bool is_read_first(const struct stat& input) {
  static std::atomic<ino_t> last{0};
  return last.exchange(input.st_ino) != input.st_ino;
}

awaitable<opened> open_stdin(std::shared_ptr<disk_table> disks, source_context context,
                             byte_range range) {
  struct stat info{};
  if (fstat(STDIN_FILENO, &info) == 0 && S_ISREG(info.st_mode)) {
    co_return co_await open_path(std::move(disks), std::move(context), "/dev/stdin", range);
  }
  if (range.begin > 0 || range.end) {
    co_return error(errc::unsupported, "standard input is read from its beginning to its end")
        .at("-")
        .offset(range.begin)
        .hint("name the shards, or redirect a file");
  }
  if (!is_read_first(info)) {
    co_return error(errc::unsupported, "standard input is a pipe, which can be read only once")
        .at("-")
        .hint("for several epochs or passes name the shards, or redirect a file");
  }
  ++context.counters.requests;
  auto pipe = std::make_shared<asio::posix::stream_descriptor>(context.io.executor());
  boost::system::error_code failed;
  pipe->assign(fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0), failed);
  if (failed) {
    co_return error(kind_of(failed.value()), "cannot read standard input")
        .at("-")
        .cause(failed.value());
  }
  auto ahead = std::make_shared<queue>(context.io.executor(), 1);
  auto source = std::make_unique<read_ahead_source>(ahead);
  scope& tasks = context.tasks;
  source->produced_by(
      tasks.spawn_stoppable(read_pipe(std::move(context), std::move(pipe), std::move(ahead))));
  co_return std::unique_ptr<byte_source>(std::move(source));
}

}  // namespace

awaitable<result<std::shared_ptr<readable_file>>> open_readable(std::shared_ptr<disk_table> disks,
                                                                const source_context& context,
                                                                std::string path) {
  ++context.counters.requests;
  auto file = co_await disks->files.open(context.threads, context.io, std::move(path));
  if (!file) co_return file.error();
  auto made = std::make_shared<readable_file>(disks, std::move(*file));
  made->device = co_await disks->of(context.threads, context.io, *made->file);
  if (reads_directly(*made->file, context.options)) made->file->read_directly();
  co_return made;
}

std::unique_ptr<byte_source> read_range(source_context context, std::shared_ptr<readable_file> from,
                                        std::uint64_t offset, std::uint64_t end,
                                        std::shared_ptr<memory_holder> keeps) {
  const auto window = std::make_shared<read_window>(context.io.executor());
  scope& tasks = context.tasks;
  auto reader = std::make_shared<file_reader>(std::move(context), std::move(from), offset, end,
                                              window, std::move(keeps));
  auto task = tasks.spawn_stoppable(run_reader(std::move(reader)));
  return std::make_unique<file_source>(window, std::move(task));
}

source_factory file_source_factory(const std::shared_ptr<disk_table>& disks) {
  return
      [disks](source_context context, const std::string& /*text*/, const url& where,
              byte_range range) { return open_path(disks, std::move(context), where.path, range); };
}

source_factory stdin_source_factory(const std::shared_ptr<disk_table>& disks) {
  return [disks](source_context context, const std::string& /*text*/, const url& /*where*/,
                 byte_range range) { return open_stdin(disks, std::move(context), range); };
}

std::uint64_t page_cache_room() {
  std::ifstream in("/proc/meminfo");
  std::uint64_t kib = 0;
  for (std::string word; in >> word;) {
    if (word == "MemAvailable:") in >> kib;
  }
  const std::uint64_t allowed = 4 * static_cast<std::uint64_t>(default_memory_bytes());
  return std::min<std::uint64_t>(kib * 1024, std::max<std::uint64_t>(allowed, 1)) / 4 * 3;
}

source_memory file_memory(const source_options& options, const std::string& path) {
  const std::size_t chunk = round_up(options.chunk_bytes, page_bytes);  // as file_reader does
  source_memory need{2 * chunk, (1 + static_cast<std::size_t>(options.read_ahead)) * chunk};
  const auto found = storage_of(path);
  if (!found) return need;  // opening it will report the error
  const storage on = with_overrides(*found, options);
  if (gate_permits(on, options) == 0) return need;
  const std::size_t extent = extent_controller(on, options.extent_bytes).wanted();
  need.most = std::max(need.most, 2 * extent + 2 * chunk);
  return need;
}

}  // namespace millrace
