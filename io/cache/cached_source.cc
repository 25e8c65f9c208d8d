#include "io/cache/cached_source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>

#include "engine/log.h"
#include "engine/offload.h"
#include "engine/time_source.h"
#include "io/file_source.h"
#include "io/hashes.h"

namespace millrace {
namespace {

// How often a reader looks whether another process has fetched more.
constexpr auto look_again = std::chrono::milliseconds(10);

// What is left of an open file when its holder goes.
struct held_descriptor {
  int fd = -1;
  ~held_descriptor() {
    if (fd >= 0) close(fd);
  }
};

// Fetches the whole object into the cache. The entry is finished in the same step that appends its
// last byte: a program that ends as soon as it has read that byte leaves a whole entry.
awaitable<void> fill(std::shared_ptr<object_cache> cache, source_context context, cache_origin from,
                     object_version version, std::shared_ptr<cache_writer> writer) {
  const auto opened = co_await from.open(context, {.begin = writer->size(), .end = {}}, version);
  if (!opened) co_return writer->give_up();
  for (;;) {
    const auto piece = co_await (*opened)->read();
    if (!piece) co_return writer->give_up();  // readers ask the origin themselves, and hear why
    const bool ended = piece->empty() || writer->size() + piece->size() == version.total;
    const auto put = co_await offload(context.io, context.threads.cpu(), [&] {
      const auto appended = writer->append(piece->span());
      return appended && ended ? writer->finish() : appended;
    });
    if (!put) co_return cache->fail(put.error());
    if (ended) co_return;
  }
}

class cached_source final : public byte_source {
 public:
  cached_source(std::shared_ptr<object_cache> cache, source_context context, cache_origin from,
                byte_range range)
      : cache_(std::move(cache)),
        context_(std::move(context)),
        from_(std::move(from)),
        at_(range.begin),
        end_(range.end) {}

  awaitable<result<bytes>> read() override {
    for (;;) {
      if (!ready_.empty()) {
        bytes piece = std::move(ready_.front());
        ready_.pop_front();
        at_ += piece.size();
        co_return piece;
      }
      if (end_ && at_ >= *end_) co_return bytes();
      switch (phase_) {
        case phase::unopened:
          if (auto opened = co_await open(); !opened) co_return opened.error();
          break;
        case phase::filled:
          co_await read_block();
          break;
        case phase::filling:
          if (auto followed = co_await follow(); !followed) co_return followed.error();
          break;
        case phase::origin: {
          auto piece = co_await origin_->read();
          if (piece) at_ += piece->size();
          co_return piece;
        }
      }
    }
  }

 private:
  enum class phase { unopened, filled, filling, origin };

  template <class F>
  auto blocking(F f) {
    return offload(context_.io, context_.threads.cpu(), std::move(f));
  }

  awaitable<result<void>> open() {
    if (!cache_->usable()) co_return co_await go_to_origin();
    if (!version_.total) {
      if (auto known = co_await learn_version(); !known) co_return known.error();
      if (!version_.total) co_return co_await go_to_origin();
      if (!end_ || *end_ > *version_.total) end_ = version_.total;
      name_ = cache_name(from_.url, version_);
      if (at_ >= *end_) co_return result<void>();
    }
    file_ = co_await blocking([&] { return cache_->folder().open(name_); });
    if (file_) co_return co_await begin_file();
    auto writer =
        co_await blocking([&] { return cache_->folder().fill(name_, from_.url, version_); });
    if (!writer) {
      if (writer.error().kind() == errc::too_large) {
        log_debug(writer.error().message());
      } else {
        cache_->fail(writer.error());
      }
      co_return co_await go_to_origin();
    }
    const bool ours = *writer != nullptr;
    part_ = std::make_unique<held_descriptor>();
    part_->fd = cache_->folder().open_part(name_);
    if (ours) {
      ++context_.counters.cache_misses;
      context_.tasks.spawn(fill(cache_, context_, from_, version_,
                                std::shared_ptr<cache_writer>(std::move(*writer))));
    }
    // Else somebody completed it just now: look again.
    if (part_->fd >= 0) phase_ = phase::filling;
    co_return result<void>();
  }

  // What the origin has; where it cannot be reached, what it had when it was last seen.
  awaitable<result<void>> learn_version() {
    auto now = co_await from_.probe();
    if (now) {
      version_ = std::move(*now);
      if (version_.total) {
        co_await blocking([&] { cache_->folder().remember(from_.url, version_); });
      }
      co_return result<void>();
    }
    const errc why = now.error().kind();
    const bool away = why == errc::connect_failed || why == errc::timed_out || why == errc::cut;
    if (!away) co_return now.error();
    const auto before = co_await blocking([&] { return cache_->folder().remembered(from_.url); });
    if (!before || !co_await blocking([&] {
          return cache_->folder().open(cache_name(from_.url, *before)) != nullptr;
        })) {
      co_return now.error();
    }
    log_notice(fmt::format("{}; reading what the cache has of it", now.error().message()));
    version_ = *before;
    co_return result<void>();
  }

  awaitable<result<void>> go_to_origin() {
    auto opened = co_await from_.open(context_, {.begin = at_, .end = end_}, version_);
    if (!opened) co_return opened.error();
    origin_ = std::move(*opened);
    phase_ = phase::origin;
    co_return result<void>();
  }

  // Reads a complete entry as any file is read, from the beginning of a block on.
  awaitable<result<void>> begin_file() {
    auto opened = co_await open_readable(cache_->disks(), context_, file_->path());
    if (!opened) {  // evicted by somebody else, in this moment
      file_.reset();
      co_return result<void>();
    }
    block_ = at_ / cache_block_bytes;
    const std::uint64_t first = block_ * cache_block_bytes;
    file_bytes_ = read_range(context_, std::move(*opened), first, file_->bytes());
    ++context_.counters.cache_hits;
    phase_ = phase::filled;
    co_return result<void>();
  }

  // The next block into `ready_`, once it is known to be right.
  awaitable<void> read_block() {
    const std::uint64_t begin = block_ * cache_block_bytes;
    const auto size = static_cast<std::size_t>(
        std::min<std::uint64_t>(cache_block_bytes, file_->bytes() - begin));
    std::deque<bytes> pieces;
    for (std::size_t got = 0; got < size;) {
      if (rest_.empty()) {
        auto piece = co_await file_bytes_->read();
        if (!piece || piece->empty()) co_return heal();
        rest_ = std::move(*piece);
      }
      const std::size_t n = std::min(rest_.size(), size - got);
      pieces.push_back(rest_.slice(0, n));
      rest_ = rest_.slice(n);
      got += n;
    }
    // In the pool: this thread is to keep the device busy.
    const std::uint32_t sum = co_await blocking([&] {
      std::uint32_t crc = 0;
      for (const bytes& piece : pieces) crc = crc32c(piece.span(), crc);
      return crc;
    });
    if (!file_->has_sum(block_, sum)) co_return heal();
    std::uint64_t offset = begin;
    for (bytes& piece : pieces) {
      const std::uint64_t from = std::max(offset, at_);
      const std::uint64_t to = std::min(offset + piece.size(), *end_);
      if (to > from) ready_.push_back(piece.slice(from - offset, to - from));
      offset += piece.size();
    }
    ++block_;
  }

  // A block is not what was written: the entry goes, and is fetched again.
  void heal() {
    ++context_.counters.cache_healed;
    log_notice(fmt::format("the cache's copy of {} is damaged at byte {}; fetching it anew",
                           redacted(from_.url), block_ * cache_block_bytes));
    cache_->folder().remove(name_);
    file_bytes_.reset();
    rest_ = {};
    file_.reset();
    phase_ = phase::unopened;
  }

  // Reads behind whoever fills the entry.
  awaitable<result<void>> follow() {
    struct stat info{};
    if (fstat(part_->fd, &info) != 0) info.st_size = 0;
    const std::uint64_t there =
        std::min<std::uint64_t>(static_cast<std::uint64_t>(info.st_size), *end_);
    if (there > at_) co_return co_await read_part(there);
    // Nothing new. Gone without being complete: the disk was full, or the origin failed.
    const bool removed = info.st_nlink == 0;
    if (removed) {
      const bool complete =
          co_await blocking([&] { return cache_->folder().open(name_) != nullptr; });
      if (!complete) co_return co_await go_to_origin();
    }
    if (co_await is_abandoned()) {
      phase_ = phase::unopened;  // whoever filled it has died: perhaps it is our turn
      part_.reset();
      co_return result<void>();
    }
    co_await real_time().sleep(look_again);
    co_return result<void>();
  }

  awaitable<bool> is_abandoned() {
    co_return co_await blocking([&] {
      struct flock whole{};
      whole.l_type = F_RDLCK;
      whole.l_whence = SEEK_SET;
      return fcntl(part_->fd, F_OFD_GETLK, &whole) == 0 && whole.l_type == F_UNLCK;
    });
  }

  awaitable<result<void>> read_part(std::uint64_t there) {
    const auto size = static_cast<std::size_t>(
        std::min<std::uint64_t>(there - at_, context_.options.chunk_bytes));
    auto memory = co_await context_.memory->acquire(size);
    if (!memory) co_return memory.error();
    const auto got = co_await blocking(
        [&] { return pread(part_->fd, memory->data(), size, static_cast<off_t>(at_)); });
    if (got <= 0) co_return co_await go_to_origin();
    ready_.push_back(std::move(*memory).freeze(static_cast<std::size_t>(got)));
    co_return result<void>();
  }

  std::shared_ptr<object_cache> cache_;
  source_context context_;
  cache_origin from_;
  std::uint64_t at_;  // of the next byte to give out
  std::optional<std::uint64_t> end_;
  phase phase_ = phase::unopened;
  object_version version_;
  std::string name_;
  std::deque<bytes> ready_;
  // filled
  std::unique_ptr<cached_file> file_;
  std::unique_ptr<byte_source> file_bytes_;
  std::uint64_t block_ = 0;
  bytes rest_;
  // filling
  std::unique_ptr<held_descriptor> part_;
  // origin
  std::unique_ptr<byte_source> origin_;
};

// A file's version: when it was changed.
awaitable<result<object_version>> version_of_file(io_thread* io, runtime* threads,
                                                  std::string path) {
  co_return co_await offload(*io, threads->cpu(), [&]() -> result<object_version> {
    struct stat info{};
    if (stat(path.c_str(), &info) != 0) {
      return error(errno == ENOENT ? errc::not_found : errc::io_failed, "cannot find the file")
          .at(path)
          .cause(errno);
    }
    return object_version{
        .total = static_cast<std::uint64_t>(info.st_size),
        .etag = fmt::format("\"{}.{}\"", info.st_mtim.tv_sec, info.st_mtim.tv_nsec),
        .last_modified = {}};
  });
}

awaitable<result<std::unique_ptr<byte_source>>> open_cached_file(
    std::shared_ptr<object_cache> cache, source_factory plain, source_context context,
    std::string text, url where, byte_range range) {
  const auto& paths = cache->folder().options().paths;
  const bool cached = std::ranges::any_of(
      paths, [&](const std::string& begin) { return where.path.starts_with(begin); });
  if (!cached || !cache->usable()) {
    co_return co_await plain(std::move(context), std::move(text), std::move(where), range);
  }
  cache_origin from{
      .url = where.path,
      .probe = [io = &context.io, threads = &context.threads,
                path = where.path] { return version_of_file(io, threads, path); },
      .open = [plain, text, where](
                  source_context c, byte_range r,
                  const object_version&) { return plain(std::move(c), text, where, r); }};
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

object_cache::object_cache(cache_options options, std::shared_ptr<disk_table> disks)
    : folder_(std::move(options)), disks_(std::move(disks)) {}

bool object_cache::usable() {
  if (folder_.options().folder.empty() || broken_) return false;
  if (!std::exchange(prepared_, true)) {
    if (const auto made = folder_.prepare(); !made) fail(made.error());
  }
  return !broken_;
}

void object_cache::fail(const error& why) {
  if (std::exchange(broken_, true)) return;
  log_notice(fmt::format("{}; reading goes on without a cache", why.message()));
}

std::unique_ptr<byte_source> object_cache::open(source_context context, cache_origin from,
                                                byte_range range) {
  return std::make_unique<cached_source>(shared_from_this(), std::move(context), std::move(from),
                                         range);
}

}  // namespace millrace
