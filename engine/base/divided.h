#pragma once

namespace millrace {

// `all` divided by `by`, rounded up. Safe for sizes from users: no addition, so no overflow.
template <class T>
constexpr T divided_up(T all, T by) {
  return static_cast<T>(all / by + (all % by != 0 ? 1 : 0));
}

}  // namespace millrace
