#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

using file_bytes = std::vector<std::byte>;

inline file_bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// The fuzzers' inputs of one kind, by name: small files of every format.
inline std::vector<std::pair<std::string, file_bytes>> seed_files(const std::string& kind) {
  const auto folder =
      std::filesystem::path(__FILE__).parent_path().parent_path() / "fuzz/corpus" / kind;
  std::vector<std::pair<std::string, file_bytes>> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    out.emplace_back(kind + "/" + entry.path().filename().string(), read_file(entry.path()));
  }
  std::ranges::sort(out, {}, &std::pair<std::string, file_bytes>::first);
  return out;
}

}  // namespace millrace
