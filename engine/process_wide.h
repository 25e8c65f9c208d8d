#pragma once

#include <pthread.h>

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace millrace {

// A number of this process: a forked child has another one than its parent. For what is asked
// often: no system call. Any thread.
unsigned process_number() noexcept;

// Knows the process that made it. What belongs to threads of another process can neither be locked
// nor waited for: a thread that is not there may hold the lock. Any thread.
class home_process {
 public:
  // False in a forked child of the process that made this.
  bool is_this() const noexcept { return number_ == process_number(); }

 private:
  unsigned number_ = process_number();
};

// An object that is made and never destroyed, without memory of the heap: threads, and the
// destructors of a program's global objects, use it until the process ends. The libraries have no
// other static objects with a destructor (-Wexit-time-destructors).
template <class T>
class never_destroyed {
 public:
  template <class... From>
  explicit never_destroyed(From&&... from) {
    std::construct_at(at(), std::forward<From>(from)...);
  }
  never_destroyed(const never_destroyed&) = delete;
  never_destroyed& operator=(const never_destroyed&) = delete;

  T& operator*() { return *std::launder(at()); }
  const T& operator*() const { return *std::launder(reinterpret_cast<const T*>(room_)); }

 private:
  T* at() { return reinterpret_cast<T*>(room_); }

  alignas(T) std::byte room_[sizeof(T)];
};

// The one T of this process: never destroyed, and another one in a forked child, since threads that
// are not there may have held the locks of the parent's, or been in the middle of a change. A T
// that keeps something in a child has begin_in_child(), which makes the rest of it anew.
template <class T>
T& process_wide() {
  struct one {
    one() { pthread_atfork(nullptr, nullptr, &begin_in_child); }
    static void begin_in_child() {
      if constexpr (requires(T& t) { t.begin_in_child(); }) {
        process_wide<T>().begin_in_child();
      } else {
        std::construct_at(&process_wide<T>());
      }
    }
    never_destroyed<T> value;
  };
  static never_destroyed<one> all;
  return *(*all).value;
}

}  // namespace millrace
