#pragma once

#include <cstdint>
#include <string_view>

namespace millrace {

// A stable 64-bit fingerprint (FNV-1a), to distinguish plans, keys and URLs. Any thread.
constexpr std::uint64_t fingerprint(std::string_view text,
                                    std::uint64_t so_far = 0xcbf29ce484222325U) {
  for (const char c : text) {
    so_far = (so_far ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  return so_far;
}

}  // namespace millrace
