#include "engine/threads/pread_io.h"

#include <limits.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <new>

#include "engine/files/file_system.h"

namespace millrace {
namespace {

// preadv returns at most 2 GiB; callers read the rest.
constexpr std::size_t most_bytes = std::size_t{1} << 30;

std::byte* destination(const read_op& op) {
  return op.into.data() + op.buffer_offset;
}

}  // namespace

// One call of preadv for the reads at the front of a run. Allocates only when it is created.
class pread_io::call final : public pool_task {
 public:
  call(std::weak_ptr<pread_io*> owner, run_list::iterator of, std::size_t reads)
      : owner_(std::move(owner)), of_(of) {
    pieces_.reserve(reads);
    outcomes_.reserve(reads);
  }

  // The reads from the front of the run to `end`.
  void take(op_list::iterator end) {
    ops_.splice(ops_.end(), of_->waiting, of_->waiting.begin(), end);
  }

  void run() noexcept override {
    for (const auto& op : ops_) pieces_.push_back({destination(*op), op->size});
    const read_op& first = *ops_.front();
    const ssize_t n = host_files().read(first.file->fd(), pieces_, first.file_offset);
    if (n >= 0) {
      distribute(static_cast<std::size_t>(n));
    } else if (pieces_.size() == 1) {
      outcomes_.push_back(static_cast<int>(n));
    } else {
      one_by_one();  // so that the failing read reports the error
    }
  }

  // Too many tasks in pools: read_at asks again.
  void give_up() {
    for (const auto& op : ops_) op->finish(-EAGAIN);
  }

  void finish() noexcept override {
    const std::unique_ptr<call> self(this);
    auto rest = ops_.begin();
    std::advance(rest, outcomes_.size());
    if (const auto owner = owner_.lock()) {
      // Unserved reads return to the front before any completion is reported.
      of_->waiting.splice(of_->waiting.begin(), ops_, rest, ops_.end());
      (*owner)->ended(of_);
    } else {
      ops_.erase(rest, ops_.end());
    }
    for (auto outcome = outcomes_.begin(); const auto& op : ops_) op->finish(*outcome++);
  }

 private:
  // The first read beyond the returned bytes is answered (0 at the end of the file) only if no
  // earlier one was.
  void distribute(std::size_t given) {
    for (const auto& op : ops_) {
      if (given == 0 && !outcomes_.empty()) return;
      const std::size_t part = std::min(given, op->size);
      outcomes_.push_back(static_cast<int>(part));
      given -= part;
      if (part < op->size) return;
    }
  }
  void one_by_one() {
    for (const auto& op : ops_) {
      const iovec into{destination(*op), op->size};
      const ssize_t n = host_files().read(op->file->fd(), std::span(&into, 1), op->file_offset);
      outcomes_.push_back(static_cast<int>(n));
    }
  }

  std::weak_ptr<pread_io*> owner_;
  run_list::iterator of_;
  op_list ops_;
  std::vector<iovec> pieces_;
  std::vector<int> outcomes_;
};

void pread_io::submit(std::shared_ptr<read_op> op) {
  op->size = std::min(op->size, most_bytes);
  const std::uint64_t begin = op->file_offset;
  const std::uint64_t end = begin + op->size;
  auto of = std::ranges::find_if(runs_, [&](const run& r) {
    return r.file == op->file && r.end == begin && (r.under_way || !r.waiting.empty());
  });
  if (of == runs_.end()) of = runs_.insert(runs_.end(), run{.file = op->file});
  of->waiting.push_back(std::move(op));
  of->end = end;
  start_runs_.ask();
}

void pread_io::start_runs() {
  for (auto it = runs_.begin(); it != runs_.end();) {
    const auto which = it++;
    if (!which->under_way) start(which);
  }
}

void pread_io::start(run_list::iterator which) {
  auto end = which->waiting.begin();
  std::size_t reads = 0;
  std::size_t bytes = 0;
  for (; end != which->waiting.end() && reads < IOV_MAX; ++end, ++reads) {
    const read_op& next = **end;
    if (reads > 0) {
      const read_op& last = **std::prev(end);
      const bool adjacent = last.file_offset + last.size == next.file_offset;
      if (!adjacent || next.apart || bytes + next.size > most_bytes) break;
    }
    bytes += next.size;
  }
  std::unique_ptr<call> task;
  try {
    if (reads > 0) task = std::make_unique<call>(here_, which, reads);
  } catch (const std::bad_alloc&) {
    task.reset();  // completes each of its reads
  }
  if (!task) {
    const op_list refused = std::move(which->waiting);
    runs_.erase(which);
    for (const auto& op : refused) op->finish(-ENOMEM);
    return;
  }
  task->take(end);
  which->under_way = true;
  if (home_.submit(pool_, task.get())) {
    [[maybe_unused]] const call* const under_way = task.release();  // deletes itself in finish()
    return;
  }
  which->under_way = false;
  task->give_up();
}

void pread_io::ended(run_list::iterator which) {
  which->under_way = false;
  start(which);
}

void pread_io::cancel(read_op& op) {
  for (run& r : runs_) {
    const auto mine = std::ranges::find(r.waiting, &op, [](const auto& o) { return o.get(); });
    if (mine == r.waiting.end()) continue;
    r.waiting.erase(mine);  // a gap: later reads are no longer adjacent to earlier ones
    return;
  }
}

}  // namespace millrace
