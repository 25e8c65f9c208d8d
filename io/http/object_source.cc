#include "io/http/object_source.h"

#include <algorithm>
#include <deque>

#include <fmt/format.h>

#include "engine/base/hints.h"
#include "engine/base/units.h"
#include "engine/coroutines/timer.h"
#include "engine/host/log.h"
#include "io/http/checked_bytes.h"
#include "io/http/opened_again.h"
#include "io/http/range_fetch.h"

namespace millrace {
namespace {

// With this many objects open at once, each is requested as a whole.
constexpr int enough_sources = 4;

// Objects up to this size are checked against their digest before any byte is given out.
constexpr std::uint64_t checked_first_bytes = 4_MiB;

struct part {
  std::shared_ptr<range_fetch> fetch;
  scope::task running;
  std::size_t reserved;  // bytes of memory; 0: acquires one buffer after the other
  // A second request for the bytes that the first has not yet brought.
  std::shared_ptr<range_fetch> hedge;
  scope::task hedge_running;
};

// One object being read. Shared by its reader and the coroutine that starts parts ahead of it.
class assembly {
 public:
  assembly(source_context context, std::shared_ptr<http_stack> stack, http_object object,
           byte_range range, object_version known)
      : context_(std::move(context)),
        stack_(std::move(stack)),
        origin_(stack_->origin_of(object.target)),
        object_(std::move(object)),
        range_(range),
        known_(std::move(known)),
        offset_(range.begin),
        planner_(range),
        version_(known_),
        signals_(std::make_shared<fetch_signals>(context_.tasks.executor())) {}

  static void begin(const std::shared_ptr<assembly>& self);
  awaitable<result<bytes>> read();
  // The reader has ended.
  void give_up() {
    gone_ = true;
    starting_ = {};
    parts_.clear();
    for_hedge_ = {};
    signals_->changed.notify_all();
  }

 private:
  void ask_first();
  void restart(std::uint64_t came);
  static awaitable<void> start_parts(std::shared_ptr<assembly> self);
  static awaitable<void> while_may_reserve(std::shared_ptr<assembly> self, std::size_t size);
  // The number of parts that this object may have under way.
  int allowed() const {
    if (origin_.ignores_ranges || origin_.names_no_version ||
        stack_->options().split.value_or(2) <= 1)
      return 1;
    const int most = stack_->options().connections;  // others would wait for these
    if (stack_->options().split) return std::min(*stack_->options().split, most);
    return std::clamp(origin_.requests.depth() / std::max(1, origin_.sources), 1, most);
  }
  // The size of a request that is the only one under way; 0: all that is left.
  std::size_t bytes_of_one() const {
    const bool may_split =
        !origin_.ignores_ranges && !origin_.names_no_version && !stack_->options().split;
    return may_split && origin_.sources <= enough_sources ? origin_.part.bytes_alone() : 0;
  }
  int under_way() const {
    return static_cast<int>(
        std::ranges::count_if(parts_, [](const part& p) { return !p.fetch->ended; }));
  }
  bool may_hedge() const {
    return stack_->options().hedge > 0 &&
           context_.memory->limit() >= 6 * context_.options.chunk_bytes;
  }
  // Reserved with a part, so that a second request never waits for the memory of the late one.
  std::size_t lacking_for_hedge() const {
    const bool is_lacking = may_hedge() && for_hedge_.left() == 0;
    return is_lacking ? round_up(context_.options.chunk_bytes, page_bytes) : 0;
  }
  // The memory for a part that continues bit by bit: the buffer that the reader keeps, and the
  // next.
  std::size_t two_buffers() const {
    return 2 * std::min(context_.options.chunk_bytes, context_.memory->limit() / 2);
  }
  // While the first part has no memory of its own, half of all memory is left to it, and at least
  // what it needs: later bytes cannot be given out, and their memory not freed, before it has
  // ended.
  bool may_reserve(std::size_t size) const {
    if (parts_.empty() || parts_.front().reserved > 0) return true;
    std::size_t sum = size + for_hedge_.left();
    for (const part& p : parts_) sum += p.reserved;
    const std::size_t limit = context_.memory->limit();
    return sum <= limit - std::max(limit / 2, two_buffers());
  }
  // A digest usually covers only the whole object, so it cannot show which version a part is of.
  bool knows_version() const { return version_.etag || version_.last_modified; }
  void start(byte_range range, memory_reservation reserved);
  void learn_from(const range_fetch& first);
  bool began_anew();
  awaitable<void> wait_for_head(part& head);
  void consider_hedge(part& head);
  void settle_hedge(part& head);
  void drop_hedge(part& head);
  error failed_with(error why);
  error is_shorter() const;
  bytes cut_at_end(bytes piece, bool may_pass_end);
  void begin_checking(const object_version& seen);
  bytes checked(bytes piece, std::optional<std::uint64_t> total);
  bytes given(bytes piece);
  std::optional<result<bytes>> finish();

  source_context context_;
  std::shared_ptr<http_stack> stack_;
  http_origin& origin_;
  scoped_count source_{origin_.sources};
  http_object object_;
  byte_range range_;
  object_version known_;  // before the first request
  bool is_whole_ = range_.begin == 0 && !range_.end;
  // What answers have shown and brought; restart() forgets it.
  std::uint64_t offset_;  // of the next byte to give out
  range_planner planner_;
  object_version version_;
  bool is_known_ = false;  // a server has answered for the object
  std::deque<part> parts_;
  memory_reservation for_hedge_;  // the first buffer of a second request
  std::uint64_t hedge_begin_ = 0;
  std::optional<checked_bytes> check_;
  bool checking_begun_ = false;
  // State of the whole reading.
  std::shared_ptr<fetch_signals> signals_;
  scope::task starting_;
  std::weak_ptr<assembly> self_;
  bool is_checked_ = false;
  bool refetched_ = false;
  bool gone_ = false;
  bool failed_ = false;
};

void assembly::start(byte_range range, memory_reservation reserved) {
  const int priority = parts_.empty() ? 0 : 1;
  const std::size_t size = reserved.left();
  auto fetch = std::make_shared<range_fetch>(context_, stack_, object_, range, version_,
                                             std::move(reserved), priority, signals_);
  auto running = context_.tasks.spawn_stoppable(range_fetch::run(fetch));
  parts_.push_back({std::move(fetch), std::move(running), size, nullptr, {}});
}

void assembly::begin(const std::shared_ptr<assembly>& self) {
  self->self_ = self;
  if (self->stack_->options().hedge > 0) self->stack_->tick(self->context_.tasks, self->signals_);
  self->ask_first();
}

void assembly::ask_first() {
  if (allowed() == 1) start(*planner_.next(bytes_of_one()), {});
  if (!planner_.done()) starting_ = context_.tasks.spawn_stoppable(start_parts(self_.lock()));
}

// Requests everything again as if for the first time: the answers from now on may be of another
// version. Nothing was given out of the `came` bytes.
void assembly::restart(std::uint64_t came) {
  context_.counters.wasted_bytes += came;
  context_.counters.bytes -= came;
  offset_ = range_.begin;
  planner_ = range_planner(range_);
  version_ = known_;
  is_known_ = false;
  parts_.clear();
  for_hedge_ = {};
  hedge_begin_ = 0;
  check_.reset();
  checking_begun_ = false;
  ask_first();
}

// Starts parts ahead of the reader, as many at once as the origin is worth, until everything is
// requested.
awaitable<void> assembly::start_parts(std::shared_ptr<assembly> self) {
  assembly& a = *self;
  while (!a.gone_ && !a.failed_ && !a.planner_.done()) {
    if (a.began_anew()) continue;
    if (!a.parts_.empty()) a.learn_from(*a.parts_.front().fetch);
    // The part that was requested beyond the object's end may be the first to learn where it ends.
    for (const part& p : a.parts_) {
      const auto& total = p.fetch->transfer().version().total;
      if (p.fetch->ended && total) a.planner_.known(*total);
    }
    const bool may_split = a.allowed() > 1;
    const bool ready = a.parts_.empty() || (a.is_known_ && a.under_way() < a.allowed());
    if (a.planner_.done()) break;
    if (!ready) {
      co_await a.signals_->changed.wait();
      continue;
    }
    if (!may_split || (!a.parts_.empty() && !a.knows_version())) {
      // The rest in one part, once the parts under way have ended: its memory is acquired bit by
      // bit.
      if (a.parts_.empty()) {
        a.start(*a.planner_.next(a.bytes_of_one()), {});
      } else {
        co_await a.signals_->changed.wait();
      }
      continue;
    }
    const std::size_t limit = a.context_.memory->limit();
    const auto shares = static_cast<std::size_t>(a.allowed()) + 1;
    const std::size_t share = (limit - a.lacking_for_hedge() - a.for_hedge_.left()) / shares;
    const std::size_t size =
        round_up(std::min(a.origin_.part.bytes(std::min(share, 16_MiB)), limit / 2), page_bytes);
    const std::size_t sum = size + a.lacking_for_hedge();
    if (!a.may_reserve(sum)) {
      co_await a.signals_->changed.wait();
      continue;
    }
    // This waits in line before memory that the first part may need, once that is a second request
    // without memory of its own.
    auto reserved =
        co_await unless_first(while_may_reserve(self, sum), a.context_.memory->reserve(sum));
    if (!reserved || !*reserved || a.gone_ || a.failed_ || a.planner_.done()) continue;
    if (!a.may_reserve(sum)) continue;
    if (sum > size) a.for_hedge_ = (*reserved)->split(sum - size);
    a.start(*a.planner_.next(size), std::move(**reserved));
  }
}

awaitable<void> assembly::while_may_reserve(std::shared_ptr<assembly> self, std::size_t size) {
  while (self->may_reserve(size)) co_await self->signals_->changed.wait();
}

// Learns about the whole object from the first answers.
void assembly::learn_from(const range_fetch& first) {
  if (!first.begun() && !first.ended) return;
  is_known_ = true;
  const http_transfer& seen = first.transfer();
  version_ = seen.version();
  if (version_.total) planner_.known(*version_.total);
  if (seen.brings_the_rest()) planner_.all_asked();
}

// The first answer has no validator, so a second one may be of another version: requests everything
// again, in one part.
bool assembly::began_anew() {
  if (is_known_ || parts_.empty() || planner_.done()) return false;
  const range_fetch& first = *parts_.front().fetch;
  if (first.failed || !first.transfer().stands_alone()) return false;
  const auto total = first.transfer().version().total;
  const auto& end = range_.end;
  const auto wanted = end && total ? std::min(*end, *total) : (end ? end : total);
  if (wanted && *first.transfer().end() >= *wanted) return false;  // it brings all
  origin_.names_no_version = true;  // so one request will be for all of it
  restart(first.received());
  return true;
}

awaitable<void> assembly::wait_for_head(part& head) {
  head.fetch->is_awaited = true;
  head.fetch->set_priority(0);
  {
    const scoped_count waiting(origin_.waiting);
    co_await signals_->changed.wait();
  }
  if (!parts_.empty()) consider_hedge(parts_.front());
  if (!parts_.empty()) parts_.front().fetch->is_awaited = false;
}

void assembly::consider_hedge(part& head) {
  const range_fetch& slow = *head.fetch;
  const auto end = slow.transfer().end();
  if (head.hedge || slow.ended || slow.failed || !slow.ready.empty() || !end || !slow.begun() ||
      origin_.ignores_ranges || origin_.takes_turns || !knows_version()) {
    return;
  }
  if (!origin_.hedges.worth_it(slow.received(), slow.seconds(), *end - offset_)) return;
  if (!may_hedge()) return;
  ++context_.counters.hedges;
  hedge_begin_ = offset_;
  head.hedge =
      std::make_shared<range_fetch>(context_, stack_, object_, byte_range{offset_, end},
                                    slow.transfer().version(), std::move(for_hedge_), 0, signals_);
  head.hedge->is_awaited = true;
  head.hedge_running = context_.tasks.spawn_stoppable(range_fetch::run(head.hedge));
}

void assembly::drop_hedge(part& head) {
  if (!head.hedge) return;
  origin_.hedges.wasted(head.hedge->received());
  context_.counters.wasted_bytes += head.hedge->received();
  head.hedge_running = {};
  head.hedge.reset();
}

// The fetch that is ahead continues.
void assembly::settle_hedge(part& head) {
  if (!head.hedge) return;
  range_fetch& slow = *head.fetch;
  range_fetch& second = *head.hedge;
  const std::uint64_t twice = offset_ - hedge_begin_;  // brought meanwhile by the slow one
  if (second.failed || slow.ended || twice > origin_.hedges.allowance()) return drop_hedge(head);
  // Drops bytes that are no longer needed; the slow fetch may wait for their memory.
  while (second.next_ready() < offset_ && !second.ready.empty()) {
    const std::uint64_t needless_bytes = offset_ - second.next_ready();
    second.drop_ready(std::min<std::uint64_t>(needless_bytes, second.ready.front().size()));
    second.notify();
  }
  if (second.ready.empty() || !slow.ready.empty()) return;
  second.gave_out();
  const std::uint64_t lost = slow.transfer().offset() - hedge_begin_;
  origin_.hedges.wasted(lost);
  context_.counters.wasted_bytes += lost;
  ++context_.counters.hedges_won;
  head.running = std::move(head.hedge_running);
  head.fetch = std::move(head.hedge);
  head.reserved = 0;  // freed with the other fetch
  signals_->changed.notify_all();
}

awaitable<result<bytes>> assembly::read() {
  for (;;) {
    if (check_) {
      if (bytes waiting = check_->take(); !waiting.empty()) co_return given(std::move(waiting));
    }
    if (parts_.empty()) {
      if (planner_.done()) {
        auto last = finish();
        if (last) co_return *last;
        continue;
      }
      co_await signals_->changed.wait();
      continue;
    }
    if (began_anew()) continue;
    part& head = parts_.front();
    settle_hedge(head);
    range_fetch& fetch = *head.fetch;
    if (!fetch.ready.empty()) {
      if (fetch.next_ready() != offset_) co_return failed_with(is_shorter());
      if (!is_known_) learn_from(fetch);
      const bool may_pass_end = fetch.transfer().ignores_ranges();
      bytes piece = fetch.take_ready();
      fetch.notify();
      const auto& seen = fetch.transfer().version();
      const auto total = seen.total ? seen.total : version_.total;
      begin_checking(seen);
      piece = cut_at_end(std::move(piece), may_pass_end);  // may destroy `fetch`
      offset_ += piece.size();
      piece = checked(std::move(piece), total);
      if (piece.empty()) continue;
      co_return given(std::move(piece));
    }
    if (fetch.failed) {
      co_return failed_with(*fetch.failed);
    }
    if (fetch.ended) {
      learn_from(fetch);
      drop_hedge(head);
      parts_.pop_front();
      signals_->changed.notify_all();
      continue;
    }
    co_await wait_for_head(head);
  }
}

error assembly::failed_with(error why) {
  failed_ = true;
  give_up();
  return why;
}

// A part ended before its end, and bytes after it have arrived.
error assembly::is_shorter() const {
  return error(errc::changed, "the object is shorter than when it was first read")
      .at(object_.name.empty() ? to_string(object_.target) : object_.name)
      .offset(offset_)
      .skippable()
      .hint(new_names_hint);
}

// A server without ranges also sends what follows the requested end. Drops the parts when the end
// is reached.
bytes assembly::cut_at_end(bytes piece, bool may_pass_end) {
  const auto& end = range_.end;
  if (!end || piece.size() < *end - offset_) return piece;
  if (!may_pass_end && piece.size() == *end - offset_) return piece;
  piece = piece.slice(0, static_cast<std::size_t>(*end - offset_));
  give_up();
  planner_ = range_planner({.begin = *end, .end = end});
  return piece;
}

// Before the first byte: chooses the check by what the answer says about the object.
void assembly::begin_checking(const object_version& seen) {
  if (std::exchange(checking_begun_, true) || !is_whole_ || !seen.digest) return;
  const std::size_t limit = context_.memory->limit();
  const bool is_length_known = seen.total || version_.total;
  // If the length is unknown, the following bytes need room in addition to those withheld.
  const std::size_t room = is_length_known ? limit : limit - two_buffers();
  check_.emplace(*seen.digest, std::min<std::uint64_t>({checked_first_bytes, limit / 4, room}));
}

// The bytes that may be given out once `piece` has arrived; possibly none.
bytes assembly::checked(bytes piece, std::optional<std::uint64_t> total) {
  if (!check_) return piece;
  check_->put(std::move(piece), total);
  return check_->take();
}

// Gives bytes to the reader. Records their version, for readers that open the object again.
bytes assembly::given(bytes piece) {
  if (context_.version) {
    note(*context_.version, version_);
    context_.version->ignores_ranges = origin_.ignores_ranges;
  }
  return piece;
}

// Everything has arrived. Nullopt: withheld bytes may be given out, or everything is fetched once
// more.
std::optional<result<bytes>> assembly::finish() {
  const auto& total = version_.total;
  const bool has_reached_end = range_.end && offset_ == *range_.end;
  if (total && offset_ != *total && !has_reached_end) return failed_with(is_shorter());
  begin_checking(version_);  // an empty object has no first byte
  if (!check_ || is_checked_) return given({});
  const bool given_any = check_->given_any();
  const auto right = check_->finish();
  if (right) {
    is_checked_ = true;
    return std::nullopt;
  }
  if (!given_any && !std::exchange(refetched_, true)) {
    log_notice(fmt::format("{}; fetching it again",
                           error(right.error()).at(to_string(object_.target)).message()));
    ++context_.counters.retries;
    restart(offset_);
    return std::nullopt;
  }
  failed_ = true;
  error why = right.error();
  return result<bytes>(why.at(to_string(object_.target))
                           .skippable()
                           .hint("do not trust what was read of it; compare it with its source"));
}

class assembled_source final : public byte_source {
 public:
  explicit assembled_source(std::shared_ptr<assembly> whole) : whole_(std::move(whole)) {
    assembly::begin(whole_);
  }
  ~assembled_source() override { whole_->give_up(); }
  assembled_source(const assembled_source&) = delete;
  assembled_source& operator=(const assembled_source&) = delete;

  awaitable<result<bytes>> read() override { return whole_->read(); }

 private:
  std::shared_ptr<assembly> whole_;
};

// An empty range.
class empty_source final : public byte_source {
 public:
  awaitable<result<bytes>> read() override { co_return bytes(); }
};

}  // namespace

std::unique_ptr<byte_source> http_object_source(source_context context,
                                                std::shared_ptr<http_stack> stack,
                                                http_object object, byte_range range,
                                                object_version known) {
  if (range.end && *range.end <= range.begin) return std::make_unique<empty_source>();
  if (context.version && !known.total && !known.is_known()) known = noted(*context.version);
  return std::make_unique<assembled_source>(std::make_shared<assembly>(
      std::move(context), std::move(stack), std::move(object), range, std::move(known)));
}

}  // namespace millrace
