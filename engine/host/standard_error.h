#pragma once

#include <fmt/format.h>

#include <exception>
#include <string_view>
#include <utility>

namespace millrace {

// Writes `text` to stderr, at once. Text that cannot be written is dropped: a run does not end
// because nobody reads its messages. Any thread.
void write_to_stderr(std::string_view text) noexcept;

// The same for code that must not wait, such as code that ends the process: if stderr would block,
// the text is dropped; it may overtake another thread's text. Less than a page.
void write_to_stderr_now(std::string_view text) noexcept;

// write_to_stderr(), formatted; dropped if there is no memory for that.
template <class... T>
void to_stderr(fmt::format_string<T...> format, T&&... values) noexcept {
  try {
    write_to_stderr(fmt::format(format, std::forward<T>(values)...));
  } catch (const std::exception&) {
    return;  // dropped
  }
}

}  // namespace millrace
