#include "io/disks/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/files/file_system.h"
#include "engine/threads/offload.h"

namespace millrace {
namespace {

// Three quarters of the unused descriptors: the rest of the process needs some.
std::size_t descriptors_to_use() {
  rlimit allowed{};
  getrlimit(RLIMIT_NOFILE, &allowed);
  std::vector<std::string> used_now;
  host_files().list("/proc/self/fd", used_now);
  const std::size_t used = used_now.size();
  const std::size_t free = allowed.rlim_cur > used ? allowed.rlim_cur - used : 0;
  return std::max<std::size_t>(1, free / 4 * 3);
}

}  // namespace

open_files::open_files(const asio::any_io_executor& executor)
    : limit_(descriptors_to_use()), room_(executor), let_go_(executor) {}

bool open_files::is_idle(const entry& e) {
  return e.holders == 0 && !e.opening && e.file->has_descriptor();
}

bool open_files::has_idle() const {
  return std::ranges::any_of(entries_, is_idle);
}

bool open_files::close_least_recent() {
  const auto idle = std::ranges::find_if(entries_, is_idle);
  if (idle == entries_.end()) return false;
  idle->file->close_descriptor();
  --descriptors_;
  return true;
}

// A descriptor, counted from before it is opened; no longer counted if it was not opened.
class open_files::place {
 public:
  explicit place(open_files& of) : of_(of) { ++of_.descriptors_; }
  ~place() {
    if (is_kept_) return;
    --of_.descriptors_;
    of_.room_.notify_one();
  }
  place(const place&) = delete;
  place& operator=(const place&) = delete;
  void keep() { is_kept_ = true; }

 private:
  open_files& of_;
  bool is_kept_ = false;
};

awaitable<void> open_files::next_change(condition& of) {
  co_await of.wait();
  // A waiter that was stopped meanwhile passes its wake-up to the next.
  if ((co_await this_fiber).is_stopped()) of.notify_one();
}

awaitable<void> open_files::make_room() {
  while (descriptors_ >= limit_) {
    if (!close_least_recent()) co_await next_change(room_);
  }
}

// A request that ends without a descriptor leaves it to another one, which may sleep.
error open_files::failed(error why) {
  let_go_.notify_one();
  return why;
}

awaitable<result<std::shared_ptr<open_file>>> open_files::open(runtime& threads, io_thread& io,
                                                               std::string path) {
  for (;;) {
    co_await make_room();
    {
      place mine(*this);
      auto opened = co_await offload(io, threads.cpu(), [path] { return open_file::open(path); });
      if (opened) {
        places_[opened->get()] = entries_.insert(entries_.end(), {.file = *opened});
        mine.keep();
        co_return opened;
      }
      if (opened.error().kind() != errc::no_descriptors) co_return failed(opened.error());
      // The rest of the process has used them up: with fewer of ours it may work.
      if (held_ == 0 && !has_idle()) co_return failed(opened.error());
    }
    if (!close_least_recent()) co_await next_change(let_go_);
  }
}

awaitable<result<void>> open_files::hold(runtime& threads, io_thread& io,
                                         std::shared_ptr<open_file> file) {
  // held over co_await: the place lives as long as `file`, which is held here
  const auto mine = places_.at(file.get());
  entries_.splice(entries_.end(), entries_, mine);
  while (!file->has_descriptor()) {
    co_await make_room();
    if (file->has_descriptor()) break;  // by another reader of it
    {
      place descriptor(*this);
      mine->opening = true;
      const auto opened = co_await offload(io, threads.cpu(), [file] { return file->reopen(); });
      mine->opening = false;
      if (opened) {
        descriptor.keep();
        break;
      }
      if (opened.error().kind() != errc::no_descriptors) co_return failed(opened.error());
      if (held_ == 0 && !has_idle()) co_return failed(opened.error());
    }
    if (!close_least_recent()) co_await next_change(let_go_);
  }
  if (mine->holders++ == 0) ++held_;
  co_return result<void>();
}

void open_files::hold_again(const std::shared_ptr<open_file>& file) {
  ++places_.at(file.get())->holders;
}

void open_files::let_go(const std::shared_ptr<open_file>& file) {
  const auto place = places_.find(file.get());
  if (place == places_.end()) return;
  if (--place->second->holders == 0) --held_;
  room_.notify_one();
  let_go_.notify_one();
}

void open_files::forget(const std::shared_ptr<open_file>& file) {
  const auto place = places_.find(file.get());
  if (place == places_.end()) return;
  if (place->second->holders > 0) --held_;
  if (file->has_descriptor()) --descriptors_;
  entries_.erase(place->second);
  places_.erase(place);
  room_.notify_one();
  let_go_.notify_one();
}

}  // namespace millrace
