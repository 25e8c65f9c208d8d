#include "io/disks/mounts.h"

#include <sys/sysmacros.h>

#include <cstdio>
#include <fstream>
#include <sstream>

namespace millrace {
namespace {

// Space, tab, newline and backslash are written as \040 and so on.
std::string unescaped(const std::string& text) {
  const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && is_octal(text[i + 1]) && is_octal(text[i + 2]) &&
        is_octal(text[i + 3])) {
      out +=
          static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + text[i + 3] - '0');
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool lies_on(const std::string& path, const std::string& point) {
  if (point == "/") return true;
  return path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/');
}

}  // namespace

std::vector<mount> read_mounts(const std::filesystem::path& mountinfo) {
  std::vector<mount> mounts;
  std::ifstream in(mountinfo);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string skip;
    std::string numbers;
    mount m;
    words >> skip >> skip >> numbers >> skip >> m.point;
    while (words >> skip && skip != "-") {
    }
    words >> m.type >> m.source >> m.options;
    unsigned major_number = 0;
    unsigned minor_number = 0;
    if (std::sscanf(numbers.c_str(), "%u:%u", &major_number, &minor_number) != 2) continue;
    m.device = makedev(major_number, minor_number);
    m.point = unescaped(m.point);
    m.source = unescaped(m.source);
    mounts.push_back(std::move(m));
  }
  return mounts;
}

std::optional<mount> mount_of(const std::vector<mount>& all, dev_t device,
                              const std::string& path) {
  const mount* best = nullptr;
  for (const mount& m : all) {
    if ((device != 0 && m.device != device) || !lies_on(path, m.point)) continue;
    if (best == nullptr || m.point.size() >= best->point.size()) best = &m;
  }
  return best == nullptr ? std::nullopt : std::optional(*best);
}

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace millrace
