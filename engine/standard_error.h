#pragma once

#include <fmt/format.h>

#include <exception>
#include <string_view>
#include <utility>

namespace millrace {

// Writes `text` to stderr, at once. Text that cannot be written is dropped: a run does not end
// because nobody reads its messages. Any thread.
void write_to_stderr(std::string_view text) noexcept;

// The same for whoever must not wait, such as what ends the process: where stderr does not take it
// now, or another thread waits for it, it is dropped or passes by. Less than a page.
void write_to_stderr_now(std::string_view text) noexcept;

// write_to_stderr(), formatted; dropped also where there is no memory for that.
template <class... T>
void to_stderr(fmt::format_string<T...> format, T&&... values) noexcept {
  try {
    write_to_stderr(fmt::format(format, std::forward<T>(values)...));
  } catch (const std::exception&) {
    return;  // dropped
  }
}

}  // namespace millrace
