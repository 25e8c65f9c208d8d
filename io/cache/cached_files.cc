#include <fmt/format.h>
#include <sys/stat.h>

#include "engine/base/hints.h"
#include "engine/files/file_system.h"
#include "engine/threads/offload.h"
#include "io/cache/cached_source.h"

namespace millrace {
namespace {

// A file's version: its modification time.
awaitable<result<object_version>> version_of_file(io_thread* io, runtime* threads,
                                                  std::string path) {
  co_return co_await offload(*io, threads->cpu(), [&]() -> result<object_version> {
    struct stat info{};
    if (const int none = host_files().stat(path, info); none != 0) {
      return error(kind_of(-none), "cannot find the file").at(path).cause(-none);
    }
    return object_version{
        .total = static_cast<std::uint64_t>(info.st_size),
        .etag = fmt::format("\"{}.{}\"", info.st_mtim.tv_sec, info.st_mtim.tv_nsec),
        .last_modified = {}};
  });
}

// Opens the file if it is still the version that was seen; once open, its reader watches it for
// changes.
awaitable<result<std::unique_ptr<byte_source>>> open_version(source_factory plain,
                                                             source_context context,
                                                             std::string text, url where,
                                                             byte_range range,
                                                             object_version version) {
  io_thread* const io = &context.io;
  runtime* const threads = &context.threads;
  const std::string path = where.path;
  auto opened = co_await plain(std::move(context), std::move(text), std::move(where), range);
  if (!opened) co_return opened.error();
  const auto now = co_await version_of_file(io, threads, path);
  if (!now) co_return now.error();
  if (now->etag != version.etag || now->total != version.total) {
    co_return error(errc::changed, "the file was replaced while it was read")
        .at(path)
        .skippable()
        .hint(new_names_hint);
  }
  co_return std::move(*opened);
}

awaitable<result<std::unique_ptr<byte_source>>> open_cached_file(
    std::shared_ptr<object_cache> cache, source_factory plain, source_context context,
    std::string text, url where, byte_range range) {
  if (!is_cached(where, cache->folder().options()) || !cache->usable()) {
    co_return co_await plain(std::move(context), std::move(text), std::move(where), range);
  }
  cache_origin from{
      .url = where.path,
      .probe = [io = &context.io, threads = &context.threads,
                path = where.path] { return version_of_file(io, threads, path); },
      .open =
          [plain, text, where](source_context c, byte_range r, object_version version) {
            return open_version(plain, std::move(c), text, where, r, std::move(version));
          }};
  co_return cache->open(std::move(context), std::move(from), range);
}

}  // namespace

source_factory cached_files(std::shared_ptr<object_cache> cache, source_factory plain) {
  return [cache = std::move(cache), plain = std::move(plain)](
             source_context context, std::string text, url where, byte_range range) {
    return open_cached_file(cache, plain, std::move(context), std::move(text), std::move(where),
                            range);
  };
}

}  // namespace millrace
