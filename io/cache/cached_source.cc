#include "io/cache/cached_source.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <deque>

#include "engine/base/units.h"
#include "engine/coroutines/time_source.h"
#include "engine/files/file_system.h"
#include "engine/host/log.h"
#include "engine/threads/offload.h"
#include "io/cache/seen_versions.h"
#include "io/files/file_source.h"
#include "io/hashes.h"
#include "io/http/opened_again.h"

namespace millrace {
namespace {

// The interval at which a reader checks whether another process has fetched more.
constexpr auto look_again = std::chrono::milliseconds(10);
// Attempts to open an entry that others remove or complete at the same time.
constexpr int most_tries = 4;

template <class F>
auto in_pool(const source_context& context, F f) {
  return offload(context.io, context.threads.cpu(), std::move(f));
}

// Shows readers in other processes that this one has not been stopped, however slow the origin is.
// Skips this while there is no memory for a piece: the own program has the memory, and may keep it
// for long.
awaitable<void> keep_alive(source_context context, std::shared_ptr<cache_writer> writer,
                           steady_clock::duration every) {
  for (;;) {
    co_await real_time().sleep(every);
    if (!context.memory->try_acquire(context.options.chunk_bytes)) continue;
    co_await in_pool(context, [&] { writer->keep_alive(); });
  }
}

// Called when a fetched file has lost its name: checks whether the whole folder is gone.
awaitable<void> look_for_folder(std::shared_ptr<object_cache> cache, source_context context) {
  const auto there = co_await in_pool(context, [&] { return cache->folder().check(); });
  if (there) co_return;
  if (there.error().kind() == errc::not_found) co_return cache->lost();
  cache->fail(there.error());
}

awaitable<void> give_up(source_context context, std::shared_ptr<cache_writer> writer) {
  return in_pool(context, [writer = std::move(writer)] { writer->give_up(); });
}

// Fetches the whole object into the cache. The step that appends the last byte also finishes the
// entry, so a program that ends right after reading that byte leaves a complete entry.
awaitable<void> fill(std::shared_ptr<object_cache> cache, source_context context, cache_origin from,
                     object_version version, std::shared_ptr<cache_writer> writer) {
  const auto beat = context.tasks.spawn_stoppable(
      keep_alive(context, writer, cache->folder().options().patience / 4));
  const auto opened = co_await from.open(context, {.begin = writer->size(), .end = {}}, version);
  if (!opened) co_return co_await give_up(context, writer);
  for (;;) {
    const auto piece = co_await (*opened)->read();
    if (!piece && piece.error().kind() == errc::integrity) {
      co_return co_await in_pool(context, [&] { writer->refuse(); });
    }
    // Readers ask the origin, and get its error.
    if (!piece) co_return co_await give_up(context, writer);
    const std::uint64_t size = writer->size() + piece->size();
    if (size > *version.total || (piece->empty() && size < *version.total)) {
      co_return co_await give_up(context, writer);
    }
    const bool ended = size == *version.total;
    const auto put = co_await in_pool(context, [&] {
      const auto appended = writer->append(piece->span());
      return appended && ended ? writer->finish() : appended;
    });
    if (!put && put.error().kind() == errc::integrity) co_return;  // its readers see that
    if (!put) co_return cache->fail(put.error());
    if (writer->has_lost_its_name()) co_await look_for_folder(cache, context);
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
        range_(range),
        at_(range.begin),
        end_(range.end),
        is_whole_(range.begin == 0 && !range.end) {}

  awaitable<result<bytes>> read() override {
    for (;;) {
      if (!ready_.empty()) {
        bytes piece = std::move(ready_.front());
        ready_.pop_front();
        co_return co_await checked(std::move(piece));
      }
      if (end_ && at_ >= *end_) co_return bytes();
      switch (phase_) {
        case phase::unopened:
          if (auto opened = co_await open(); !opened) co_return opened.error();
          break;
        case phase::filled:
          if (auto taken = co_await read_block(); !taken) co_return taken.error();
          break;
        case phase::filling:
          if (auto followed = co_await follow(); !followed) co_return followed.error();
          break;
        case phase::origin: {
          auto piece = co_await origin_->read();
          if (!piece && may_be_another(piece.error())) {
            if (auto again = co_await go_by_answer(); !again) co_return again.error();
            break;
          }
          if (!piece) co_return piece;
          co_return co_await checked(std::move(*piece));
        }
      }
    }
  }

 private:
  enum class phase { unopened, filled, filling, origin };

  template <class F>
  auto blocking(F f) {
    return in_pool(context_, std::move(f));
  }

  // Passes on the next piece. Withholds the last piece of a whole object that does not match its
  // digest, if the object was read in several ways or from an unchecked entry.
  awaitable<result<bytes>> checked(bytes piece) {
    if (check_) {
      check_->add(piece.span());
      if (at_ + piece.size() == *version_.total) {
        const auto right = check_->finish();
        check_.reset();
        if (!right) {
          if (file_) co_await blocking([&] { cache_->folder().remove(name_, *file_); });
          co_return not_the_object(right.error());
        }
      }
    }
    at_ += piece.size();
    co_return piece;
  }

  error not_the_object(error why) const {
    return why.at(redacted(from_.url))
        .skippable()
        .hint("do not trust what was read of it; compare it with its source");
  }

  awaitable<bool> have_folder() {
    if (cache_->usable() && !cache_->is_prepared()) {
      cache_->prepared(co_await blocking([&] { return cache_->folder().prepare(); }));
    }
    co_return cache_->usable();
  }

  awaitable<result<void>> open() {
    if (!co_await have_folder()) co_return co_await go_to_origin();
    if (name_.empty()) {
      if (auto known = co_await learn_version(); !known) co_return known.error();
      if (name_.empty()) co_return co_await go_to_origin();
      if (auto same = compare_version(); !same) co_return same.error();
      if (!end_ || *end_ > *version_.total) end_ = version_.total;
      if (at_ >= *end_) co_return result<void>();
      if (is_whole_ && version_.digest) check_.emplace(*version_.digest);
    }
    if (++tries_ > most_tries) co_return co_await go_to_origin();
    file_ = co_await blocking([&] { return cache_->folder().open(name_); });
    if (file_) co_return co_await begin_file();
    auto writer =
        co_await blocking([&] { return cache_->folder().fill(name_, from_.url, version_); });
    if (!writer) co_return co_await without_entry(writer.error());
    const bool ours = *writer != nullptr;
    auto part = co_await blocking([&] { return cache_->folder().open_part(name_); });
    if (!part) {
      // Another reader has just completed or removed it: try again. Otherwise it cannot be
      // followed.
      if (!ours && part.error().kind() == errc::not_found) co_return result<void>();
      co_return co_await go_to_origin();
    }
    part_ = std::move(*part);
    if (ours) {
      ++context_.counters.cache_misses;
      context_.tasks.spawn(fill(cache_, context_, from_, version_,
                                std::shared_ptr<cache_writer>(std::move(*writer))));
    }
    seen_ = {};
    phase_ = phase::filling;
    co_return result<void>();
  }

  // Decides what to do if the cache has no entry and cannot create one.
  awaitable<result<void>> without_entry(error why) {
    if (why.kind() == errc::not_found) {
      co_await look_for_folder(cache_, context_);
      co_return result<void>();  // try again
    }
    if (why.kind() == errc::too_large) {
      cache_->say_once(object_cache::notice::no_room,
                       why.message() + "; what does not fit is read without the cache");
    } else if (why.kind() != errc::no_descriptors) {
      cache_->fail(why);
    }
    co_return co_await go_to_origin();
  }

  // Compares with the version of the reader that opened the object before. This object's own
  // sources get the version.
  result<void> compare_version() {
    before_ = std::exchange(context_.version, nullptr);
    is_first_ = !before_ || !before_->is_of_server;
    const auto same = before_ ? compared(*before_, version_) : result<void>();
    if (same) return {};
    return error(same.error()).at(redacted(from_.url)).offset(at_);
  }

  // Asks the origin for the version; if it cannot be reached, uses the version that was seen last.
  awaitable<result<void>> learn_version() {
    if (cache_->is_away(from_.url) && co_await take_copy()) co_return result<void>();
    auto now = co_await from_.probe();
    if (now) {
      cache_->found_back(from_.url);
      if (now->total.value_or(0) == 0) co_return result<void>();  // some servers answer 0 to a HEAD
      if (!identifies(*now)) {
        cache_->say_once(object_cache::notice::no_version,
                         fmt::format("{}: the server gives no version of it (neither ETag nor "
                                     "Last-Modified); such objects are not cached",
                                     redacted(from_.url)));
        co_return result<void>();
      }
      version_ = std::move(*now);
      name_ = cache_name(from_.url, version_);
      co_await blocking(
          [&] { remember_version(cache_->folder().options().folder, from_.url, version_); });
      co_return result<void>();
    }
    const errc why = now.error().kind();
    const bool away = why == errc::connect_failed || why == errc::timed_out || why == errc::cut;
    if (!away || !co_await take_copy()) co_return now.error();
    cache_->found_away(from_.url, now.error());
    co_return result<void>();
  }

  // Whether there is an entry of the version that was last seen at the origin; selects it.
  awaitable<bool> take_copy() {
    const auto before = co_await blocking(
        [&] { return remembered_version(cache_->folder().options().folder, from_.url); });
    if (!before) co_return false;
    const std::string name = cache_name(from_.url, *before);
    const bool there = co_await blocking([&] { return cache_->folder().open(name) != nullptr; });
    if (!there) co_return false;
    version_ = *before;
    name_ = name;
    co_return true;
  }

  // If nothing was given out yet, opens the whole object, which the origin's source checks.
  awaitable<result<void>> go_to_origin() {
    const bool all = is_whole_ && at_ == 0;
    if (all) check_.reset();
    const byte_range left{.begin = at_, .end = all ? std::nullopt : end_};
    auto opened = co_await from_.open(context_, left, version_);
    if (!opened) co_return opened.error();
    origin_ = std::move(*opened);
    phase_ = phase::origin;
    co_return result<void>();
  }

  // Some servers answer a HEAD with another version, or another encoding, than a GET.
  bool may_be_another(const error& why) const {
    return why.kind() == errc::changed && is_first_ && at_ == range_.begin && !name_.empty();
  }

  // Nothing was given out yet: whatever arrives is the object.
  awaitable<result<void>> go_by_answer() {
    name_.clear();
    version_ = {};
    end_ = range_.end;
    check_.reset();
    if (before_) *before_ = {};
    context_.version = std::exchange(before_, nullptr);
    co_return co_await go_to_origin();
  }

  // Reads a complete entry like any file, starting at a block.
  awaitable<result<void>> begin_file() {
    auto opened = co_await open_readable(cache_->disks(), context_, file_->path());
    if (!opened) {
      file_.reset();
      co_return co_await go_to_origin();
    }
    if (check_ && at_ == 0 && file_->has_digest(*version_.digest)) check_.reset();
    block_ = at_ / cache_block_bytes;
    const std::uint64_t first = block_ * cache_block_bytes;
    keeps_ = std::make_shared<memory_holder>(context_.memory, "a block of the cache");
    file_bytes_ = read_range(context_, std::move(*opened), first, file_->bytes(), keeps_);
    ++context_.counters.cache_hits;
    phase_ = phase::filled;
    co_return result<void>();
  }

  // The pieces of the next block; fewer if it cannot be read.
  awaitable<result<std::deque<bytes>>> take_block(std::size_t size) {
    std::deque<bytes> pieces;
    for (std::size_t got = 0; got < size;) {
      if (rest_.empty()) {
        for (const bytes& piece : pieces) keeps_->keep(piece);
        auto next = co_await file_bytes_->read();
        keeps_->let_go();
        if (!next && next.error().kind() == errc::no_memory) co_return next.error();
        if (!next || next->empty()) break;
        rest_ = std::move(*next);
      }
      const std::size_t n = std::min(rest_.size(), size - got);
      pieces.push_back(rest_.slice(0, n));
      rest_ = rest_.slice(n);
      got += n;
    }
    co_return pieces;
  }

  // Reads the next block into `ready_`, once its sum is verified.
  awaitable<result<void>> read_block() {
    const std::uint64_t begin = block_ * cache_block_bytes;
    const auto size = static_cast<std::size_t>(
        std::min<std::uint64_t>(cache_block_bytes, file_->bytes() - begin));
    const auto pieces = co_await take_block(size);
    if (!pieces) co_return pieces.error();
    // In the pool: this thread must keep the device busy.
    const std::uint32_t sum = co_await blocking([&] {
      std::uint32_t crc = 0;
      for (const bytes& piece : *pieces) crc = crc32c(piece.span(), crc);
      return crc;
    });
    if (!file_->has_sum(block_, sum)) co_return co_await heal();
    std::uint64_t offset = begin;
    for (const bytes& piece : *pieces) {
      const std::uint64_t from = std::max(offset, at_);
      const std::uint64_t to = std::min(offset + piece.size(), *end_);
      if (to > from) ready_.push_back(piece.slice(from - offset, to - from));
      offset += piece.size();
    }
    ++block_;
    co_return result<void>();
  }

  // A block does not match its sum: removes the entry, which is then fetched again.
  awaitable<result<void>> heal() {
    ++context_.counters.cache_healed;
    log_notice(fmt::format("the cache's copy of {} is damaged at byte {}; fetching it again",
                           redacted(from_.url), block_ * cache_block_bytes));
    co_await blocking([&] { cache_->folder().remove(name_, *file_); });
    if (is_whole_ && version_.digest && !check_) {
      // Bytes already given out are checked together with the rest, which comes from elsewhere.
      check_ = co_await blocking([&] { return file_->digest_of(block_, *version_.digest); });
      if (!check_) {
        co_return not_the_object(
            error(errc::integrity, "the cache's copy changed while it was read"));
      }
    }
    file_bytes_.reset();
    rest_ = {};
    file_.reset();
    phase_ = phase::unopened;
    co_return result<void>();
  }

  // Follows the process that fills the entry.
  awaitable<result<void>> follow() {
    const auto now = co_await blocking([&] { return part_->look(); });
    if (now.filling) {
      const std::uint64_t there = std::min(now.there, *end_);
      if (there > at_) co_return co_await read_part(there);
      co_return co_await wait_for_more(now);
    }
    file_ = co_await blocking([&] { return part_->completed(); });
    const auto part = std::exchange(part_, nullptr);
    if (file_) co_return co_await begin_file();
    const bool may_be_refused = !now.named && is_whole_ && at_ > 0;
    if (may_be_refused && co_await blocking([&] { return part->is_refused(); })) {
      co_return not_the_object(
          error(errc::integrity, "the bytes do not have the digest that the server says"));
    }
    // Given up: the disk was full, or the origin failed. Otherwise the process that filled it has
    // died.
    if (!now.named) co_return co_await go_to_origin();
    phase_ = phase::unopened;
    co_return result<void>();
  }

  awaitable<result<void>> wait_for_more(part_file::state now) {
    if (now != std::exchange(seen_, now)) moved_ = steady_clock::now();
    const auto patience = cache_->folder().options().patience;
    if (steady_clock::now() - moved_ < patience) {
      co_await real_time().sleep(look_again);
      co_return result<void>();
    }
    cache_->say_once(
        object_cache::notice::stopped_filler,
        fmt::format("{}: the process that fetches it into the cache has given no sign of life for "
                    "{} s (is it stopped?); no longer waiting for it",
                    redacted(from_.url), std::chrono::duration<double>(patience).count()));
    part_.reset();
    co_return co_await go_to_origin();
  }

  awaitable<result<void>> read_part(std::uint64_t there) {
    const auto size = static_cast<std::size_t>(
        std::min<std::uint64_t>(there - at_, context_.options.chunk_bytes));
    auto memory = co_await context_.memory->acquire(size);
    if (!memory) co_return memory.error();
    const auto got =
        co_await blocking([&] { return read_all(part_->fd(), memory->span().first(size), at_); });
    if (got <= 0) co_return co_await go_to_origin();
    ready_.push_back(std::move(*memory).freeze(static_cast<std::size_t>(got)));
    tries_ = 0;
    co_return result<void>();
  }

  std::shared_ptr<object_cache> cache_;
  source_context context_;
  cache_origin from_;
  byte_range range_;  // as requested
  std::uint64_t at_;  // of the next byte to give out
  std::optional<std::uint64_t> end_;
  bool is_whole_;                      // the whole object was requested
  std::optional<digest_check> check_;  // of what was given out; see checked()
  phase phase_ = phase::unopened;
  object_version version_;
  std::string name_;                        // of the entry; empty: unknown, or there is none
  std::shared_ptr<opened_version> before_;  // shared by those that open it several times
  bool is_first_ = true;                    // of those that open it
  int tries_ = 0;                           // attempts to find it, since the last byte gained
  std::deque<bytes> ready_;
  // filled
  std::unique_ptr<cached_file> file_;
  std::unique_ptr<byte_source> file_bytes_;
  std::uint64_t block_ = 0;
  bytes rest_;
  std::shared_ptr<memory_holder> keeps_;
  // filling
  std::unique_ptr<part_file> part_;
  part_file::state seen_;
  steady_clock::time_point moved_ = steady_clock::now();  // or first looked at
  // origin
  std::unique_ptr<byte_source> origin_;
};

}  // namespace

bool is_cached(const url& where, const cache_options& options) {
  if (options.folder.empty()) return false;
  if (where.scheme != "file") return !where.host.empty();
  return std::ranges::any_of(
      options.paths, [&](const std::string& begin) { return where.path.starts_with(begin); });
}

source_memory with_cache(source_memory need, const source_options& options) {
  const std::size_t chunk = round_up(options.chunk_bytes, page_bytes);  // as file_reader does
  const std::size_t whole = (cache_block_bytes + chunk - 1) / chunk;
  const bool fits = chunk % cache_block_bytes == 0 || cache_block_bytes % chunk == 0;
  const std::size_t chunks = whole + (fits ? 0 : 1) + 1;
  return {std::max(need.least, chunks * chunk), std::max(need.most, chunks * chunk)};
}

std::unique_ptr<byte_source> object_cache::open(source_context context, cache_origin from,
                                                byte_range range) {
  return std::make_unique<cached_source>(shared_from_this(), std::move(context), std::move(from),
                                         range);
}

}  // namespace millrace
