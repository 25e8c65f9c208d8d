#include "engine/coroutines/posted_call.h"

#include <boost/asio/post.hpp>
#include <cstdlib>
#include <utility>

#include "engine/coroutines/async.h"
#include "engine/host/standard_error.h"

namespace millrace {
namespace {

class function_call final : public posted_call {
 public:
  function_call(const asio::any_io_executor& home, std::function<void()> what)
      : posted_call(home), what_(std::move(what)) {}

 private:
  void run() override { what_(); }
  std::function<void()> what_;
};

asio::io_context::executor_type executor_of(const asio::any_io_executor& home) {
  const auto* const of = home.target<asio::io_context::executor_type>();
  if (of == nullptr) {
    to_stderr("millrace: a call was posted to an executor that is not an I/O thread's\n");
    std::abort();
  }
  return *of;
}

}  // namespace

// One operation at a time: Asio frees its memory before it calls the handler.
template <class T>
struct posted_call::room_allocator {
  using value_type = T;

  explicit room_allocator(std::byte* at) : room(at) {}
  template <class U>
  room_allocator(const room_allocator<U>& other) : room(other.room) {}
  T* allocate(std::size_t /*one*/) {
    static_assert(sizeof(T) <= sizeof room_ && alignof(T) <= alignof(std::max_align_t));
    return reinterpret_cast<T*>(room);
  }
  void deallocate(T* /*at*/, std::size_t /*one*/) {}
  template <class U>
  bool operator==(const room_allocator<U>& other) const {
    return room == other.room;
  }

  std::byte* room;
};

template <>
struct posted_call::room_allocator<void> {
  using value_type = void;

  explicit room_allocator(std::byte* at) : room(at) {}
  template <class U>
  room_allocator(const room_allocator<U>& other) : room(other.room) {}
  template <class U>
  bool operator==(const room_allocator<U>& other) const {
    return room == other.room;
  }

  std::byte* room;
};

struct posted_call::handler {
  using allocator_type = room_allocator<void>;

  std::shared_ptr<posted_call> call;

  allocator_type get_allocator() const { return allocator_type(call->room_); }
  void operator()() const {
    // Makes visible what was done before the latest post().
    call->asked_.exchange(false, std::memory_order_acq_rel);
    call->run();
  }
};

posted_call::posted_call(const asio::any_io_executor& home) : home_(executor_of(home)) {}

void posted_call::post() noexcept {
  if (!process_.is_this()) return;
  if (asked_.exchange(true, std::memory_order_acq_rel)) return;
  asio::post(home_, handler{shared_from_this()});
}

wake_up::wake_up(const io_executor& home, std::function<void()> what)
    : call_(std::make_shared<function_call>(home, std::move(what))) {}

void wake_up::ask() const noexcept {
  call_->post();
}

}  // namespace millrace
