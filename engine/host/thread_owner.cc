#include "engine/host/thread_owner.h"

namespace millrace {
namespace {

thread_local const void* owner_here = nullptr;

}  // namespace

const void* owner_of_this_thread() {
  return owner_here;
}

void set_owner_of_this_thread(const void* owner) {
  owner_here = owner;
}

}  // namespace millrace
