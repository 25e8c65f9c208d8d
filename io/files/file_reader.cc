#include "io/files/file_reader.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>

#include "engine/base/hints.h"
#include "engine/base/units.h"
#include "engine/coroutines/timer.h"
#include "engine/files/block_io.h"
#include "engine/host/log.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/offload.h"

namespace millrace {
namespace {

// The part of a turn that is still under way when the turn is passed on: long enough for the next
// turn to reach the device.
constexpr double handover_s = 0.004;

}  // namespace

// One extent under way. Releases the gate's permit when all but its last bytes have arrived, and
// records the device's speed when all have.
class file_reader::turn {
 public:
  turn(std::shared_ptr<disk> on, gate_permit permit, std::size_t size, std::size_t handover)
      : on_(std::move(on)),
        after_another_(permit.contended()),
        permit_(std::move(permit)),
        size_(size),
        left_(size),
        handover_(handover) {}

  void arrived(std::size_t n, bool whole) {
    left_ -= n;
    good_ &= whole;
    permit_.keep_alive();
    if (left_ <= handover_) permit_.release();
    if (left_ > 0 || !good_) return;
    // It began while the previous turn was still under way.
    const double rate = on_->extents.speed().bytes_per_s;
    const double before = after_another_ ? static_cast<double>(handover_) / rate : 0;
    on_->extents.observed(size_, std::max(0.0, seconds_since(begin_) - before));
  }

 private:
  std::shared_ptr<disk> on_;
  bool after_another_;
  gate_permit permit_;
  std::size_t size_;
  std::size_t left_;
  std::size_t handover_;
  bool good_ = true;
  steady_clock::time_point begin_ = steady_clock::now();
};

// The things that a chunk holds while it is under way: its place at the device, a hold on the
// descriptor, and a part of a turn. All are given back however the chunk ends, even if its
// coroutine never began to run. It is created before any of them is taken, so that a failure in
// between cannot leak one.
class file_reader::place {
 public:
  explicit place(std::shared_ptr<readable_file> of) : of_(std::move(of)) {}
  ~place() {
    if (at_device_) of_->device->end_chunk();
    if (holds_) of_->disks->files.let_go(of_->file);
    if (in_) in_->arrived(size_, whole_);
  }
  place(const place&) = delete;
  place& operator=(const place&) = delete;

  void is_held() { holds_ = true; }
  void is_at_device() { at_device_ = true; }
  void is_part_of(std::shared_ptr<turn> in, std::size_t size) {
    in_ = std::move(in);
    size_ = size;
  }
  void arrived_whole() { whole_ = true; }

 private:
  std::shared_ptr<readable_file> of_;
  bool holds_ = false;
  bool at_device_ = false;
  std::shared_ptr<turn> in_;
  std::size_t size_ = 0;
  bool whole_ = false;
};

file_reader::file_reader(source_context context, std::shared_ptr<readable_file> from,
                         std::uint64_t offset, std::uint64_t end,
                         std::shared_ptr<read_window> window, std::shared_ptr<memory_holder> keeps)
    : context_(std::move(context)),
      from_(std::move(from)),
      device_(from_->device),
      file_(from_->file),
      chunk_(round_up(context_.options.chunk_bytes, std::max(page_bytes, file_->alignment()))),
      offset_(offset),
      end_(end),
      dropped_to_(offset),
      window_(std::move(window)),
      most_ahead_(static_cast<std::size_t>(context_.options.read_ahead)),
      ahead_(std::min<std::size_t>(2, most_ahead_)),
      keeps_(std::move(keeps)) {}

awaitable<void> file_reader::run() {
  while (offset_ < end_) {
    const auto asked = device_->gate ? co_await read_extent() : co_await read_one();
    if (!asked) co_return window_->end(asked.error());
  }
  window_->end();
}

// Up to the next multiple of a chunk, so all but the first are whole and aligned.
file_reader::piece file_reader::next_piece() {
  const auto size =
      static_cast<std::size_t>(std::min<std::uint64_t>(chunk_ - offset_ % chunk_, end_ - offset_));
  const std::size_t skipped = offset_ % file_->alignment();
  const piece p{offset_ - skipped, skipped, skipped + size};
  offset_ += size;
  return p;
}

awaitable<result<void>> file_reader::read_one() {
  // A consumer that never waits needs no more chunks ahead, and each is memory.
  while (window_->chunks() >= ahead_) {
    if (window_->take_late()) {
      ahead_ = std::min(2 * ahead_, most_ahead_);
    } else {
      co_await window_->changed();
    }
  }
  const auto asked = steady_clock::now();
  auto into = co_await context_.memory->acquire(chunk_, keeps_);
  if (!into) co_return into.error();
  context_.counters.memory_wait_s += seconds_since(asked);
  auto at = std::make_unique<place>(from_);
  if (auto held = co_await from_->disks->files.hold(context_.threads, context_.io, file_); !held) {
    co_return held.error();
  }
  at->is_held();
  co_await device_->begin_chunk();
  at->is_at_device();
  start(next_piece(), std::move(*into), std::move(at), false);
  co_return result<void>();
}

// Reserves memory for as much of the wanted extent as the share allows. A consumer that waits for
// this file may itself hold a part of the share; the free part must then suffice.
awaitable<result<memory_reservation>> file_reader::memory_for_extent() {
  const std::size_t unit = chunk_;
  memory_share& memory = *context_.memory;
  const std::uint64_t left = end_ - offset_;
  const std::size_t room = affordable_extent(memory.limit(), unit);
  const extent_controller& extents = device_->extents;
  const std::size_t wanted = context_.options.quick_start ? extents.next() : extents.wanted();
  // A quarter more, if that saves a part.
  const std::size_t most = std::clamp(wanted / 4 * 5, unit, std::max(room, unit));
  // Equal parts: a short last one would cost as long a move as the others.
  const std::uint64_t parts = (left + most - 1) / most;
  const std::size_t count = static_cast<std::size_t>((left + parts * unit - 1) / (parts * unit));
  while (window_->bytes_ahead() >= count * unit) co_await window_->changed();
  for (;;) {
    if (window_->starving()) {
      const std::size_t free = memory.limit() - std::min(memory.limit(), memory.in_use());
      co_return co_await memory.reserve(std::clamp<std::size_t>(free / unit, 1, count) * unit,
                                        keeps_);
    }
    auto reserved = co_await unless_first(window_->changed(), memory.reserve(count * unit));
    if (reserved) co_return std::move(*reserved);
  }
}

awaitable<result<void>> file_reader::read_extent() {
  auto asked = steady_clock::now();
  auto memory = co_await memory_for_extent();
  if (!memory) co_return memory.error();
  context_.counters.memory_wait_s += seconds_since(asked);
  // One hold before the turn, so that the turn never waits for a descriptor.
  open_files& files = from_->disks->files;
  std::vector<std::unique_ptr<place>> places;
  places.push_back(std::make_unique<place>(from_));
  if (auto held = co_await files.hold(context_.threads, context_.io, file_); !held) {
    co_return held.error();
  }
  places.front()->is_held();
  asked = steady_clock::now();
  auto permit = co_await device_->gate->enter([w = window_] { return w->bytes_ahead(); });
  context_.counters.gate_wait_s += seconds_since(asked);
  std::vector<piece> pieces;
  std::size_t size = 0;
  const std::size_t count = memory->left() / chunk_;
  while (pieces.size() < count && offset_ < end_) {
    pieces.push_back(next_piece());
    size += pieces.back().size - pieces.back().skipped;
  }
  log_debug(fmt::format("a turn of {} at {}, measured: {:.0f} MB/s, {:.1f} ms a move",
                        format_bytes(size), device_->what.identity,
                        device_->extents.speed().bytes_per_s / 1e6,
                        1e3 * device_->extents.speed().move_s));
  if (permit.contended()) {
    const std::size_t window = std::max<std::size_t>(
        128_KiB,
        device_->what.devices.empty() ? 0 : device_->what.devices.front().read_ahead_bytes);
    context_.counters.seeks_avoided += size / window;
  }
  const auto handover =
      std::max(chunk_, static_cast<std::size_t>(handover_s * device_->extents.speed().bytes_per_s));
  while (places.size() < pieces.size()) {
    places.push_back(std::make_unique<place>(from_));
    files.hold_again(file_);
    places.back()->is_held();
  }
  const auto in = std::make_shared<turn>(device_, std::move(permit), size, handover);
  if (file_->alignment() == 1) co_await prepare_cache(pieces.front().offset, size);
  std::size_t left = size;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const bool first_of_last = left <= handover && left + pieces[i].size > handover && i > 0;
    left -= pieces[i].size - pieces[i].skipped;
    device_->begin_chunk_now();
    places[i]->is_at_device();
    places[i]->is_part_of(in, pieces[i].size - pieces[i].skipped);
    start(pieces[i], memory->take(chunk_), std::move(places[i]), first_of_last);
  }
  co_return result<void>();
}

// Through the page cache, the kernel reads ahead by its own small window. If asked in pieces that
// it accepts whole, it queues the whole extent at once.
awaitable<void> file_reader::prepare_cache(std::uint64_t from, std::size_t size) {
  constexpr std::size_t step = 128_KiB;
  co_await offload(context_.io, from_->disks->cache_thread(), [file = file_, from, size] {
    for (std::size_t at = 0; at < size; at += step) {
      posix_fadvise(file->fd(), static_cast<off_t>(from + at), step, POSIX_FADV_WILLNEED);
    }
  });
}

void file_reader::start(const piece& what, buffer into, std::unique_ptr<place> at, bool apart) {
  const auto chunk = window_->add(what.size - what.skipped);
  context_.counters.most_depth =
      std::max(context_.counters.most_depth, static_cast<std::uint64_t>(device_->under_way()));
  chunk->task = context_.tasks.spawn_stoppable(
      read_chunk(shared_from_this(), chunk, what, std::move(into), std::move(at), apart));
}

awaitable<void> file_reader::read_chunk(std::shared_ptr<file_reader> self,
                                        std::shared_ptr<read_window::chunk> chunk, piece what,
                                        buffer into, std::unique_ptr<place> at, bool apart) {
  file_reader& r = *self;
  const bool direct = r.file_->alignment() > 1;
  const auto begin = steady_clock::now();
  const auto got = co_await r.context_.io.files().read_at(r.file_, what.offset, what.size, into,
                                                          r.context_.options.read_timeout, apart);
  if (!got) {
    r.window_->fail(*chunk, got.error());
    co_return;
  }
  if (*got < what.size) {
    r.window_->fail(*chunk, r.shrank(what.offset + *got));
    co_return;
  }
  if (const auto same = r.file_->check_unchanged(); !same) {
    r.window_->fail(*chunk, error(same.error()).offset(what.offset));
    co_return;
  }
  at->arrived_whole();
  const double took = seconds_since(begin);
  source_counters& counters = r.context_.counters;
  counters.bytes += chunk->size;
  if (direct) counters.direct_bytes += chunk->size;
  counters.reads.add(took);
  const double now = std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count();
  r.device_->depth.completed(chunk->size, now, took, r.device_->crowded());
  r.window_->fill(*chunk, std::move(into).freeze(what.size).slice(what.skipped));
  if (!direct && r.context_.options.drop_cache) r.drop_cache(what.offset);
}

error file_reader::shrank(std::uint64_t at) const {
  return error(errc::changed, fmt::format("the file shrank while it was read: it had {} bytes "
                                          "when it was opened",
                                          file_->size()))
      .at(file_->path())
      .offset(at)
      .skippable()
      .hint(new_names_hint);
}

// Drops pages well before the reads under way. Nothing is read or waited for, so this needs no
// thread.
void file_reader::drop_cache(std::uint64_t up_to) {
  constexpr std::uint64_t kept_bytes = 16_MiB;
  const bool last = up_to + chunk_ >= end_;
  if (!last && up_to < dropped_to_ + 2 * kept_bytes) return;
  const std::uint64_t end = last ? end_ : up_to - kept_bytes;
  posix_fadvise(file_->fd(), static_cast<off_t>(dropped_to_), static_cast<off_t>(end - dropped_to_),
                POSIX_FADV_DONTNEED);
  dropped_to_ = end;
}

}  // namespace millrace
