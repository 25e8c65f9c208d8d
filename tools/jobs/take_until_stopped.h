#pragma once

#include <stop_token>
#include <type_traits>

#include "pipeline/run/engine.h"

namespace millrace {

// Passes each item of `data` to `each` until the end, until `each` returns false (if it returns a
// value), or until `stop`. Returns false if it was stopped.
template <class T, class Function>
bool take_until_stopped(loader<T>& data, const std::stop_token& stop, Function each) {
  const std::stop_callback stopping(stop, [&data] { data.stop(); });
  try {
    for (T& item : data) {
      if constexpr (std::is_void_v<std::invoke_result_t<Function&, T&>>) {
        each(item);
      } else if (!each(item)) {
        break;
      }
    }
  } catch (const failure& f) {
    if (f.kind() != errc::stopped || !stop.stop_requested()) throw;
    return false;
  }
  return true;
}

}  // namespace millrace
