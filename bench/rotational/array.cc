#include "bench/rotational/array.h"

#include <sys/prctl.h>

#include <chrono>
#include <utility>

#include "engine/host/start_thread.h"

namespace millrace::rotational {

struct array::arm {
  arm(const disk_parameters& disk, scheduling order) : model(disk, order) {}
  spindle model;
  std::thread thread;
};

array::array(int spindles, const disk_parameters& disk, scheduling order, std::FILE* timeline)
    : timeline_(timeline) {
  for (int i = 0; i < spindles; ++i) {
    arm& a = *arms_.emplace_back(std::make_unique<arm>(disk, order));
    a.thread = start_thread("spindle-" + std::to_string(i), [this, &a, i] { serve(a, i); });
  }
}

array::~array() {
  stop();
}

void array::stop() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (const auto& a : arms_) {
    if (a->thread.joinable()) a->thread.join();
  }
}

double array::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void array::submit(const std::vector<stripe::piece>& pieces, std::function<void()> done) {
  {
    const std::scoped_lock lock(mutex_);
    const std::uint64_t id = next_request_++;
    requests_[id] = {pieces.size(), std::move(done)};
    for (const stripe::piece& p : pieces) {
      arms_[static_cast<std::size_t>(p.spindle)]->model.add({p.position, p.size, now(), id});
    }
  }
  changed_.notify_all();
}

void array::set_hung(bool hung) {
  {
    const std::scoped_lock lock(mutex_);
    hung_ = hung;
  }
  changed_.notify_all();
}

void array::serve(arm& a, int index) {
  prctl(PR_SET_TIMERSLACK, 1UL);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || (!hung_ && !a.model.idle()); });
    if (ending_) return;
    const auto service = *a.model.serve();
    const std::chrono::steady_clock::time_point end{
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
            std::chrono::duration<double>(service.end))};
    changed_.wait_until(lock, end, [&] { return ending_ || hung_; });
    changed_.wait(lock, [&] { return ending_ || !hung_; });
    if (timeline_ != nullptr) {
      std::fprintf(timeline_, "%.6f %.6f %d %llu %llu\n", service.begin, service.end, index,
                   static_cast<unsigned long long>(service.what.position),
                   static_cast<unsigned long long>(service.what.size));
    }
    const auto whose = requests_.find(service.what.request);
    if (--whose->second.parts > 0) continue;
    auto done = std::move(whose->second.done);
    requests_.erase(whose);
    lock.unlock();
    done();
    lock.lock();
  }
}

}  // namespace millrace::rotational
