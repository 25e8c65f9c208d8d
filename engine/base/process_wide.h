#pragma once

#include <pthread.h>

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace millrace {

// A number that identifies this process; a forked child has a different one. Cheap: no system call.
// Any thread.
unsigned process_number() noexcept;

// Remembers the process that created it. In a forked child, locks may be held by threads that do
// not exist there, so they can be neither taken nor waited for. Any thread.
class home_process {
 public:
  // False in a forked child of the process that created this.
  bool is_this() const noexcept { return number_ == process_number(); }

 private:
  unsigned number_ = process_number();
};

// An object that is never destroyed and needs no heap: threads, and destructors of a program's
// global objects, may use it until the process ends. The libraries have no other static objects
// with a destructor (-Wexit-time-destructors).
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

// The one T of this process: never destroyed, and a fresh one in a forked child, since threads that
// do not exist there may have held the parent's locks, or been in the middle of a change. A T that
// keeps something in a child has begin_in_child(), which resets the rest.
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
