#include "tests/support/tar_builder.h"

#include <fmt/format.h>

#include <cstring>

namespace millrace::testing {

std::string tar_builder::header(std::string_view name, std::size_t size, char type,
                                std::string_view prefix, std::string_view size_field) {
  std::string h(512, '\0');
  h.replace(0, name.size(), name);
  h.replace(100, 8, std::string("0000644\0", 8));
  h.replace(108, 8, std::string("0000000\0", 8));
  h.replace(116, 8, std::string("0000000\0", 8));
  const std::string octal = fmt::format("{:011o}", size);
  h.replace(124, 11, octal);
  if (!size_field.empty()) h.replace(124, size_field.size(), size_field);
  h.replace(136, 12, std::string("00000000000\0", 12));
  h.replace(148, 8, "        ");
  h[156] = type;
  h.replace(257, 8, std::string("ustar\00000", 8));
  h.replace(345, prefix.size(), prefix);
  unsigned sum = 0;
  for (const char c : h) sum += static_cast<unsigned char>(c);
  h.replace(148, 8, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  return h;
}

std::string tar_builder::pax_record(std::string_view key, std::string_view value) {
  const std::size_t rest = key.size() + value.size() + 3;  // blank, '=', line feed
  std::size_t length = rest + 1;
  while (fmt::format("{}", length).size() + rest != length) ++length;
  return fmt::format("{} {}={}\n", length, key, value);
}

tar_builder& tar_builder::raw(std::string_view bytes) {
  out_ += bytes;
  return *this;
}

tar_builder& tar_builder::padded(std::string_view content) {
  out_ += content;
  out_.append((512 - content.size() % 512) % 512, '\0');
  return *this;
}

tar_builder& tar_builder::file(std::string_view name, std::string_view content) {
  return raw(header(name, content.size())).padded(content);
}

tar_builder& tar_builder::extension(char type, std::string_view content) {
  return raw(header("././@ext", content.size(), type)).padded(content);
}

std::string text_shard(int first, int samples, std::size_t payload) {
  tar_builder t;
  for (int i = first; i < first + samples; ++i) {
    std::string text = fmt::format("sample {} ", i);
    while (text.size() < payload)
      text += static_cast<char>('a' + (text.size() + static_cast<std::size_t>(i)) % 26);
    text.resize(payload);
    t.file(fmt::format("s{:06}.txt", i), text)
        .file(fmt::format("s{:06}.cls", i), std::to_string(i));
  }
  return t.end().str();
}

}  // namespace millrace::testing
