#include "engine/pread_io.h"

#include <limits.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>

namespace millrace {
namespace {

// preadv gives at most 2 GiB; the callers go on with the rest.
constexpr std::size_t most_bytes = std::size_t{1} << 30;

std::byte* destination(const read_op& op) {
  return op.into.data() + op.buffer_offset;
}

}  // namespace

// One call of preadv for the reads at the front of a run.
class pread_io::call final : public pool_task {
 public:
  call(std::weak_ptr<pread_io*> owner, run_list::iterator of,
       std::vector<std::shared_ptr<read_op>> ops)
      : owner_(std::move(owner)), of_(of), ops_(std::move(ops)) {}

  void run() noexcept override {
    std::vector<iovec> pieces;
    pieces.reserve(ops_.size());
    for (const auto& op : ops_) pieces.push_back({destination(*op), op->size});
    const read_op& first = *ops_.front();
    const ssize_t n = ::preadv(first.file->fd(), pieces.data(), static_cast<int>(pieces.size()),
                               static_cast<off_t>(first.file_offset));
    if (n >= 0) {
      distribute(static_cast<std::size_t>(n));
    } else if (ops_.size() == 1) {
      outcomes_.push_back(-errno);
    } else {
      one_by_one();  // so that the one that fails is the one that says so
    }
  }

  // Too many tasks are away: asked again by read_at.
  void give_up() {
    for (const auto& op : ops_) op->finish(-EAGAIN);
  }

  void finish() noexcept override {
    const auto ops = std::move(ops_);
    const auto outcomes = std::move(outcomes_);
    const auto owner = owner_.lock();
    const auto of = of_;
    delete this;
    if (owner) {
      // What the call did not come to goes back to the front, before anything else is told.
      for (std::size_t i = ops.size(); i > outcomes.size(); --i) {
        of->waiting.push_front(ops[i - 1]);
      }
      (*owner)->ended(of);
    }
    for (std::size_t i = 0; i < outcomes.size(); ++i) ops[i]->finish(outcomes[i]);
  }

 private:
  // The first read behind the bytes given gets an answer (0 at the end of the file) only when none
  // before it got any.
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
      const ssize_t n =
          ::pread(op->file->fd(), destination(*op), op->size, static_cast<off_t>(op->file_offset));
      outcomes_.push_back(n < 0 ? -errno : static_cast<int>(n));
    }
  }

  std::weak_ptr<pread_io*> owner_;
  run_list::iterator of_;
  std::vector<std::shared_ptr<read_op>> ops_;
  std::vector<int> outcomes_;
};

void pread_io::submit(std::shared_ptr<read_op> op) {
  op->size = std::min(op->size, most_bytes);
  const std::uint64_t begin = op->file_offset;
  auto of = std::ranges::find_if(runs_, [&](const run& r) {
    return r.file == op->file && r.end == begin && (r.under_way || !r.waiting.empty());
  });
  if (of == runs_.end()) of = runs_.insert(runs_.end(), run{.file = op->file});
  of->end = begin + op->size;
  of->waiting.push_back(std::move(op));
  // Reads that are asked for in one turn of the event loop are to be seen together.
  if (start_posted_) return;
  start_posted_ = true;
  asio::post(home_.context(), [this] { start_runs(); });
}

void pread_io::start_runs() {
  start_posted_ = false;
  for (auto it = runs_.begin(); it != runs_.end();) {
    const auto which = it++;
    if (!which->under_way) start(which);
  }
}

void pread_io::start(run_list::iterator which) {
  std::vector<std::shared_ptr<read_op>> ops;
  std::size_t bytes = 0;
  while (!which->waiting.empty() && ops.size() < IOV_MAX) {
    const read_op& next = *which->waiting.front();
    if (!ops.empty()) {
      const read_op& last = *ops.back();
      const bool adjacent = last.file_offset + last.size == next.file_offset;
      if (!adjacent || next.apart || bytes + next.size > most_bytes) break;
    }
    bytes += next.size;
    ops.push_back(std::move(which->waiting.front()));
    which->waiting.pop_front();
  }
  if (ops.empty()) {
    runs_.erase(which);
    return;
  }
  auto* task = new call(here_, which, std::move(ops));
  which->under_way = true;
  if (home_.submit(pool_, task)) return;
  which->under_way = false;
  task->give_up();
  delete task;
}

void pread_io::ended(run_list::iterator which) {
  which->under_way = false;
  start(which);
}

void pread_io::cancel(read_op& op) {
  for (run& r : runs_) {
    const auto mine = std::ranges::find(r.waiting, &op, [](const auto& o) { return o.get(); });
    if (mine == r.waiting.end()) continue;
    r.waiting.erase(mine);  // a gap: the reads behind it are no longer adjacent to those before
    return;
  }
}

}  // namespace millrace
