#include "io/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/file_system.h"
#include "engine/offload.h"

namespace millrace {
namespace {

// Three quarters of the descriptors that are not in use yet: the rest of the process needs some.
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
    : limit_(descriptors_to_use()), let_go_(executor) {}

bool open_files::close_least_recent() {
  const auto idle = std::ranges::find_if(entries_, [](const entry& e) {
    return e.holders == 0 && !e.opening && e.file->has_descriptor();
  });
  if (idle == entries_.end()) return false;
  idle->file->close_descriptor();
  --descriptors_;
  return true;
}

awaitable<void> open_files::make_room() {
  while (descriptors_ >= limit_) {
    if (!close_least_recent()) co_await let_go_.wait();
  }
}

awaitable<result<std::shared_ptr<open_file>>> open_files::open(runtime& threads, io_thread& io,
                                                               std::string path) {
  for (;;) {
    co_await make_room();
    ++descriptors_;
    auto opened = co_await offload(io, threads.cpu(), [path] { return open_file::open(path); });
    if (opened) {
      places_[opened->get()] = entries_.insert(entries_.end(), {.file = *opened});
      co_return opened;
    }
    --descriptors_;
    if (opened.error().kind() != errc::no_descriptors) co_return opened;
    // Somebody else in this process has used them up: with fewer of ours it may work.
    if (close_least_recent()) continue;
    if (held_ == 0) co_return opened;
    co_await let_go_.wait();
  }
}

awaitable<result<void>> open_files::hold(runtime& threads, io_thread& io,
                                         std::shared_ptr<open_file> file) {
  // held over co_await: its place goes with `file`, which is held here
  const auto mine = places_.at(file.get());
  entries_.splice(entries_.end(), entries_, mine);
  while (!file->has_descriptor()) {
    co_await make_room();
    ++descriptors_;
    mine->opening = true;
    const auto opened = co_await offload(io, threads.cpu(), [file] { return file->reopen(); });
    mine->opening = false;
    if (opened) break;
    --descriptors_;
    if (opened.error().kind() != errc::no_descriptors) co_return opened;
    if (close_least_recent()) continue;
    if (held_ == 0) co_return opened;
    co_await let_go_.wait();
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
  let_go_.notify_one();
}

void open_files::forget(const std::shared_ptr<open_file>& file) {
  const auto place = places_.find(file.get());
  if (place == places_.end()) return;
  if (place->second->holders > 0) --held_;
  if (file->has_descriptor()) --descriptors_;
  entries_.erase(place->second);
  places_.erase(place);
  let_go_.notify_one();
}

}  // namespace millrace
