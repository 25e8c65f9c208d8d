#include "engine/threads/uring_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "engine/base/units.h"
#include "engine/host/log.h"
#include "engine/memory/read_blocks.h"
#include "engine/threads/io_thread.h"

namespace millrace {
namespace {

constexpr unsigned ring_entries = 256;
constexpr std::chrono::milliseconds first_ring_pause{1};
constexpr std::chrono::milliseconds most_ring_pause{100};
constexpr unsigned most_arenas = 1024;
constexpr std::size_t least_registered = 1_MiB;

void say_once_how_much_is_pinned(const std::vector<std::span<std::byte>>& parts) {
  static std::once_flag said;
  std::call_once(said, [&] {
    std::size_t pinned = 0;
    for (const auto& p : parts) pinned += p.size();
    log_notice(
        fmt::format("{} of read buffers are registered with io_uring, then locked memory ran out; "
                    "registering all needs a `ulimit -l` of the read budget",
                    format_bytes(pinned)));
  });
}

error no_ring(int os_errno) {
  const errc kind =
      kind_of(os_errno) == errc::no_descriptors ? errc::no_descriptors : errc::unsupported;
  return error(kind, "cannot create an io_uring")
      .cause(os_errno)
      .hint(kind == errc::no_descriptors
                ? "raise `ulimit -n`, or lower engine_options.io_threads (MILLRACE_IO_THREADS)"
                : "io_backend::pread (MILLRACE_IO=pread) does without");
}

}  // namespace

struct uring_io::ring {
  explicit ring(asio::io_context& context) : readable(context) {
    // Asio would accept an invalid descriptor.
    const int own = fcntl(uring.of.ring_fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) throw failure(no_ring(errno));
    boost::system::error_code refused;
    readable.assign(own, refused);
    if (refused) {
      close(own);
      throw failure(no_ring(refused.value()));
    }
  }
  ~ring() { readable.close(); }
  ring(const ring&) = delete;
  ring& operator=(const ring&) = delete;

  struct queues {
    queues() {
      const int code = io_uring_queue_init(ring_entries, &of, 0);
      if (code < 0) throw failure(no_ring(-code));
    }
    ~queues() { io_uring_queue_exit(&of); }
    queues(const queues&) = delete;
    queues& operator=(const queues&) = delete;
    io_uring of{};
  };
  queues uring;
  asio::posix::stream_descriptor readable;
};

std::optional<std::string> uring_refused() {
  io_uring probe{};
  const int code = io_uring_queue_init(2, &probe, 0);
  // Not specific to io_uring: the pread pool would lack descriptors too.
  if (kind_of(-code) == errc::no_descriptors) throw failure(no_ring(-code));
  if (code == 0) {
    io_uring_queue_exit(&probe);
    return std::nullopt;
  }
  switch (-code) {
    case EPERM:
      return "io_uring is refused (EPERM): allow it in the container's seccomp profile, or `sysctl "
             "-w kernel.io_uring_disabled=0`";
    case ENOSYS:
      return "this kernel has no io_uring (ENOSYS; Linux 5.6 or newer has)";
    case ENOMEM:
      return "io_uring has no locked memory (ENOMEM): raise `ulimit -l`";
    default:
      return fmt::format("io_uring is refused ({})", std::strerror(-code));
  }
}

uring_io::uring_io(io_thread& home, bool register_buffers)
    : home_(home),
      ring_(std::make_unique<ring>(home.context())),
      registering_(register_buffers),
      refused_(home.executor()) {
  if (registering_) {
    registering_ = io_uring_register_buffers_sparse(&ring_->uring.of, most_arenas) == 0;
  }
}

// Pins arenas mapped since the last call. If locked memory runs out (RLIMIT_MEMLOCK), tries half of
// the arena, then half of that, and then pins no more.
void uring_io::register_new_arenas() {
  for (const auto& arena : read_block_allocator::instance().arenas(registered_.size())) {
    std::span<std::byte> part = arena;
    int code = -ENOMEM;
    while (registering_ && registered_.size() < most_arenas && part.size() >= least_registered) {
      iovec where{part.data(), part.size()};
      __u64 no_tag = 0;
      code = io_uring_register_buffers_update_tag(
          &ring_->uring.of, static_cast<unsigned>(registered_.size()), &where, &no_tag, 1);
      if (code >= 0) break;
      part = part.first(part.size() / 2);
    }
    if (code < 0) part = {};
    registered_.push_back(part);
    if (part.size() < arena.size() && registering_) {
      registering_ = false;
      say_once_how_much_is_pinned(registered_);
    }
  }
}

std::optional<int> uring_io::registered(const std::byte* data, std::size_t size) {
  const auto holds = [&](const std::span<std::byte>& r) {
    return data >= r.data() && data + size <= r.data() + r.size();
  };
  auto found = std::ranges::find_if(registered_, holds);
  if (found == registered_.end() && registering_) {
    register_new_arenas();
    found = std::ranges::find_if(registered_, holds);
  }
  if (found == registered_.end()) return std::nullopt;
  return static_cast<int>(found - registered_.begin());
}

uring_io::~uring_io() {
  // The thread has ended. The kernel may still write into the buffers of abandoned reads until
  // their completions arrive. Reads that it never accepted are not waited for.
  io_uring_submit(&ring_->uring.of);
  const std::size_t not_taken = io_uring_sq_ready(&ring_->uring.of);
  while (in_kernel_.size() > not_taken) {
    io_uring_cqe* cqe = nullptr;
    const int code = io_uring_wait_cqe(&ring_->uring.of, &cqe);
    if (code == -EINTR) continue;
    if (code < 0) break;
    in_kernel_.erase(static_cast<read_op*>(io_uring_cqe_get_data(cqe)));
    io_uring_cqe_seen(&ring_->uring.of, cqe);
  }
}

void uring_io::stop() {
  stopped_ = true;
  ring_->readable.cancel();
  refused_.cancel();
}

void uring_io::submit(std::shared_ptr<read_op> op) {
  if (op->file->is_fuse()) {
    if (!for_fuse_) for_fuse_ = std::make_unique<pread_io>(home_);
    for_fuse_->submit(std::move(op));
    return;
  }
  // A completion's result is an int: read_at continues larger reads.
  op->size = std::min<std::size_t>(op->size, std::size_t{1} << 30);
  if (!waiting_.empty() || !prepare(op)) waiting_.push_back(std::move(op));
  flush_later();
}

bool uring_io::prepare(const std::shared_ptr<read_op>& op) {
  // The completion queue is twice the submission queue: with this bound it cannot overflow.
  if (in_kernel_.size() >= ring_entries || io_uring_sq_space_left(&ring_->uring.of) == 0)
    return false;
  std::byte* const to = op->into.data() + op->buffer_offset;
  const auto size = static_cast<unsigned>(op->size);
  const auto index = registered(to, size);
  in_kernel_.emplace(op.get(), op);  // the last step that can fail
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_->uring.of);
  if (index) {
    io_uring_prep_read_fixed(sqe, op->file->fd(), to, size, op->file_offset, *index);
  } else {
    io_uring_prep_read(sqe, op->file->fd(), to, size, op->file_offset);
  }
  io_uring_sqe_set_data(sqe, op.get());
  return true;
}

void uring_io::cancel(read_op& op) {
  const auto mine = [&op](const auto& other) { return other.get() == &op; };
  if (std::erase_if(waiting_, mine) > 0 || !in_kernel_.contains(&op)) return;
  if (io_uring_sqe* sqe = io_uring_get_sqe(&ring_->uring.of)) {
    io_uring_prep_cancel(sqe, &op, 0);
    io_uring_sqe_set_data(sqe, nullptr);
    flush_later();
  }
}

void uring_io::flush_later() {
  if (!is_refused_) flush_.ask();
}

void uring_io::flush() {
  const int code = io_uring_submit(&ring_->uring.of);
  // EAGAIN, EBUSY: the kernel is short of memory or of room for completions; EINTR: a signal. What
  // was prepared stays prepared and goes with a later call, after completions are drained: it may
  // refuse for long, while the reads' deadlines keep running.
  pause_ = code < 0 ? std::min(2 * pause_, most_ring_pause) : first_ring_pause;
  if (code < 0 && !stopped_) flush_after(pause_);
  watch();
}

void uring_io::flush_after(std::chrono::milliseconds pause) {
  if (is_refused_) return;
  is_refused_ = true;
  try {
    refused_.expires_after(pause);
    refused_.async_wait([this](boost::system::error_code ended) {
      is_refused_ = false;
      if (!ended) flush();
    });
  } catch (const std::bad_alloc&) {
    is_refused_ = false;
    flush_.ask();  // without a pause
  }
}

void uring_io::watch() {
  if (watching_ || stopped_ || in_kernel_.empty()) return;
  watching_ = true;
  try {
    ring_->readable.async_wait(asio::posix::stream_descriptor::wait_read,
                               [this](boost::system::error_code ended) {
                                 watching_ = false;
                                 if (!ended) drain();
                               });
  } catch (const std::bad_alloc&) {
    watching_ = false;
    drain();  // which looks again
  }
}

void uring_io::drain() {
  struct completion {
    read_op* op;
    int outcome;
  };
  std::array<io_uring_cqe*, 64> cqes{};
  std::array<completion, 64> arrived{};
  while (const unsigned n = io_uring_peek_batch_cqe(&ring_->uring.of, cqes.data(), cqes.size())) {
    for (unsigned i = 0; i < n; ++i) {
      arrived[i] = {static_cast<read_op*>(io_uring_cqe_get_data(cqes[i])), cqes[i]->res};
    }
    io_uring_cq_advance(&ring_->uring.of, n);
    for (const completion& c : std::span(arrived).first(n)) {
      if (c.op == nullptr) continue;  // the answer to a cancellation
      auto done = in_kernel_.extract(c.op);
      done.mapped()->finish(c.outcome);
    }
  }
  while (!waiting_.empty() && prepare_or_refuse(waiting_.front())) waiting_.pop_front();
  flush_later();
}

// Called by the event loop, where no error could be reported.
bool uring_io::prepare_or_refuse(const std::shared_ptr<read_op>& op) {
  try {
    return prepare(op);
  } catch (const std::bad_alloc&) {
    op->finish(-ENOMEM);
    return true;
  }
}

}  // namespace millrace
