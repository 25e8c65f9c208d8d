// Exits with 0 when temporaries in co_await expressions are constructed and destroyed equally
// often. Run at configure time (cmake/CheckCompiler.cmake) and as a test.
#include <coroutine>
#include <cstdio>
#include <string>

namespace {

int alive = 0;

struct counted {
  counted() { ++alive; }
  counted(const counted&) { ++alive; }
  counted(counted&&) noexcept { ++alive; }
  counted& operator=(const counted&) = default;
  ~counted() { --alive; }
};

struct options {
  counted first;
  int retries = 0;
  counted second;
};

struct task {
  struct promise_type {
    task get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() {}
  };
  bool await_ready() const noexcept { return true; }
  void await_suspend(std::coroutine_handle<>) const noexcept {}
  void await_resume() const noexcept {}
};

task take_options(options) {
  co_return;
}

template <class F>
task take_callable(F f) {
  f();
  co_return;
}

task exercise() {
  co_await take_options({.first = {}, .retries = 2, .second = {}});
  co_await take_options(options{});
  counted captured;
  co_await take_callable([captured] {});
}

}  // namespace

int main() {
  exercise();
  if (alive != 0) std::printf("%d objects too many or too few\n", alive);
  return alive == 0 ? 0 : 1;
}
