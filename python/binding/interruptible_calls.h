#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

namespace millrace::python {

// Calls that wait for the engine while handlers of signals run, so that Ctrl-C ends them: on a
// thread of its own, or, where a wait can be divided, on the calling one. They run one at a time;
// any thread may make them. The calling thread holds the GIL, which is released while it waits; the
// calls themselves have no GIL and touch no Python object.
class interruptible_calls {
 public:
  // Starts nothing: the first call() starts the thread, in the process that makes it.
  interruptible_calls();
  // Ends the thread and waits for it. A call that was given up is left to end by itself, and in a
  // forked child everything is left to the parent.
  ~interruptible_calls();
  interruptible_calls(const interruptible_calls&) = delete;
  interruptible_calls& operator=(const interruptible_calls&) = delete;

  // Runs `what` on the thread, and throws what it throws. Handlers of signals run while it waits.
  // If one raises, calls `interrupt` (may be null), which has to make `what` end soon, waits for
  // that up to a second, and throws the handler's exception. `what` may then still be under way:
  // it must own what it uses. The next call waits for its end. Throws `failure` (usage) in a
  // forked child.
  void call(const std::function<void()>& what, const std::function<void()>& interrupt = nullptr);

  // Runs `what` on the calling thread, without the GIL, and throws what it throws: for short waits,
  // which no signal ends. The thread is idle, and no other one makes calls meanwhile.
  void call_here(const std::function<void()>& what);
  // The same for a wait of any length: calls `is_done`, which waits for at most the time that it is
  // given, until it returns true. If a handler raises, calls `interrupt`, which must make `is_done`
  // return true soon, waits for that for up to a second, and throws the handler's exception.
  void wait_here(const std::function<bool(std::chrono::milliseconds)>& is_done,
                 const std::function<void()>& interrupt);

  // Whether a fork lies between the first call and now.
  bool is_of_parent() const;
  // Throws `failure` (usage) in a forked child.
  void check_process() const;
  // Whether a call() is under way: another thread's, or one that was given up.
  bool is_busy() const;
  // Waits, without the GIL, until no other thread is in any of these calls, for at most that long.
  // False: one still is. A thread without the GIL does not survive the interpreter's end.
  bool wait_for_callers(std::chrono::milliseconds most);

 private:
  struct task;
  struct inside;
  void start();

  std::shared_ptr<inside> inside_;
  pid_t process_ = 0;  // that started the thread; 0: none has
  std::atomic<int> callers_ = 0;
};

}  // namespace millrace::python
