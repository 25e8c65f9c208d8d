#include "tools/inspect/digest.h"

#include <algorithm>
#include <array>

namespace millrace {

void sample_digest::add(const sample& s) {
  std::vector<const field*> fields;
  fields.reserve(s.fields.size());
  for (const field& f : s.fields) fields.push_back(&f);
  std::ranges::sort(fields, {}, [](const field* f) -> const std::string& { return f->extension; });
  // With its terminating zero byte.
  const auto add_text = [&](const std::string& text) {
    so_far_.add(std::string_view(text.c_str(), text.size() + 1));
  };
  add_text(s.key);
  for (const field* f : fields) {
    add_text(f->extension);
    std::array<std::byte, 8> length{};
    for (std::size_t i = 0; i < length.size(); ++i) {
      length[i] = static_cast<std::byte>(std::uint64_t{f->data.size()} >> (8 * i));
    }
    so_far_.add(length);
    so_far_.add(f->data.span());
  }
}

std::string sample_digest::finish() {
  return hex(so_far_.finish());
}

}  // namespace millrace
