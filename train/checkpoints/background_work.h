#pragma once

#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>

namespace millrace {

// One piece of work at a time on a thread of its own, such as writing files. One thread calls it.
class background_work {
 public:
  // `thread`: the name of the thread, at most 15 characters.
  explicit background_work(std::string thread) : name_(std::move(thread)) {}
  // Waits; what the work throws is lost.
  ~background_work();
  background_work(const background_work&) = delete;
  background_work& operator=(const background_work&) = delete;

  // Begins `work`. The piece before it must have been waited for.
  void begin(std::function<void()> work);
  // Whether work was begun that was not waited for.
  bool is_begun() const { return ending_.valid(); }
  // Whether wait() returns at once.
  bool has_ended() const;
  // Waits until the work that was begun has ended, and throws what it threw.
  void wait();

 private:
  std::string name_;
  std::thread thread_;
  std::future<void> ending_;
};

}  // namespace millrace
