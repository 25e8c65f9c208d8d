#include "io/file_source.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "engine/offload.h"
#include "io/read_ahead.h"

namespace millrace {
namespace {

using queue = read_ahead_source::queue;

awaitable<void> read_extents(source_context context, std::shared_ptr<const open_file> file,
                             std::uint64_t offset, std::shared_ptr<queue> ahead) {
  extent_ramp extents(context.options.extent_bytes);
  while (offset < file->size()) {
    const auto size =
        static_cast<std::size_t>(std::min<std::uint64_t>(extents.next(), file->size() - offset));
    auto extent = co_await context.memory->acquire(size);
    if (!extent) co_return ahead->fail(extent.error());
    const auto got = co_await context.io.files().read_at(file, offset, size, *extent,
                                                         context.options.read_timeout);
    if (!got) co_return ahead->fail(got.error());
    if (*got < size) {
      co_return ahead->fail(
          error(errc::changed, fmt::format("the file shrank while it was read: it had {} bytes "
                                           "when it was opened",
                                           file->size()))
              .at(file->path())
              .offset(offset + *got)
              .skippable()
              .hint("do not rewrite shards in use; write a new name and rename"));
    }
    context.counters.bytes += size;
    const auto taken = co_await ahead->push(std::move(*extent).freeze(size));
    if (!taken || !*taken) co_return;
    offset += size;
  }
  ahead->close();
}

std::unique_ptr<byte_source> start_reading(source_context context,
                                           std::shared_ptr<const open_file> file,
                                           std::uint64_t offset) {
  // One extent is under way while the queue is full: read_ahead extents in all.
  const auto capacity = static_cast<std::size_t>(std::max(1, context.options.read_ahead - 1));
  auto ahead = std::make_shared<queue>(context.io.executor(), capacity);
  auto source = std::make_unique<read_ahead_source>(ahead);
  scope& tasks = context.tasks;
  source->produced_by(tasks.spawn_stoppable(
      read_extents(std::move(context), std::move(file), offset, std::move(ahead))));
  return source;
}

awaitable<void> read_pipe(source_context context,
                          std::shared_ptr<asio::posix::stream_descriptor> pipe,
                          std::shared_ptr<queue> ahead) {
  for (;;) {
    auto extent = co_await context.memory->acquire(context.options.extent_bytes);
    if (!extent) co_return ahead->fail(extent.error());
    const auto [failed, got] =
        co_await pipe->async_read_some(asio::buffer(extent->data(), extent->size()), no_throw);
    if (failed == asio::error::eof) break;
    if (failed) {
      co_return ahead->fail(
          error(errc::io_failed, "cannot read standard input").at("-").cause(failed.value()));
    }
    context.counters.bytes += got;
    const auto taken = co_await ahead->push(std::move(*extent).freeze(got));
    if (!taken || !*taken) co_return;
  }
  ahead->close();
}

}  // namespace

awaitable<result<std::unique_ptr<byte_source>>> open_file_source(source_context context,
                                                                 std::string /*text*/, url where,
                                                                 std::uint64_t offset) {
  ++context.counters.requests;
  // Opening looks names up on the device, which may take its time: not on the spine.
  const auto open = [path = where.path] { return open_file::open(path); };
  auto file = co_await offload(context.io, context.threads.cpu(), open);
  if (!file) co_return file.error();
  if (offset > (*file)->size()) {
    co_return error(errc::changed, fmt::format("the file has only {} bytes", (*file)->size()))
        .at(where.path)
        .offset(offset)
        .skippable()
        .hint("the shard was replaced since the state was saved");
  }
  co_return start_reading(std::move(context), std::move(*file), offset);
}

awaitable<result<std::unique_ptr<byte_source>>> open_stdin_source(source_context context,
                                                                  std::string text, url where,
                                                                  std::uint64_t offset) {
  struct stat info{};
  if (fstat(STDIN_FILENO, &info) == 0 && S_ISREG(info.st_mode)) {
    where.path = "/dev/stdin";
    co_return co_await open_file_source(std::move(context), std::move(text), std::move(where),
                                        offset);
  }
  if (offset > 0) {
    co_return error(errc::unsupported, "standard input cannot be resumed")
        .at("-")
        .offset(offset)
        .hint("name the shards, or redirect a file");
  }
  ++context.counters.requests;
  auto pipe = std::make_shared<asio::posix::stream_descriptor>(context.io.executor());
  boost::system::error_code failed;
  pipe->assign(dup(STDIN_FILENO), failed);
  if (failed) {
    co_return error(errc::io_failed, "cannot read standard input").at("-").cause(failed.value());
  }
  auto ahead = std::make_shared<queue>(context.io.executor(), 1);
  auto source = std::make_unique<read_ahead_source>(ahead);
  scope& tasks = context.tasks;
  source->produced_by(
      tasks.spawn_stoppable(read_pipe(std::move(context), std::move(pipe), std::move(ahead))));
  co_return std::unique_ptr<byte_source>(std::move(source));
}

}  // namespace millrace
