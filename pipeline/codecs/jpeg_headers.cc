#include "pipeline/codecs/jpeg_headers.h"

#include <algorithm>
#include <string_view>

#include "engine/base/divided.h"
#include "pipeline/pixels/kernels.h"

namespace millrace {
namespace {

// Markers: ITU-T T.81, table B.1.
constexpr unsigned tem = 0x01;
constexpr unsigned soi = 0xD8;
constexpr unsigned eoi = 0xD9;
constexpr unsigned sos = 0xDA;
constexpr unsigned dqt = 0xDB;
constexpr unsigned dht = 0xC4;
constexpr unsigned dri = 0xDD;
constexpr unsigned sof_baseline = 0xC0;
constexpr unsigned sof_extended = 0xC1;
constexpr unsigned rst0 = 0xD0;
constexpr unsigned app0 = 0xE0;   // JFIF: colour space
constexpr unsigned app1 = 0xE1;   // EXIF
constexpr unsigned app14 = 0xEE;  // Adobe: colour space
constexpr unsigned com = 0xFE;    // a comment

constexpr std::size_t most_kept = 1000;  // headers, of a file that is cut into runs

constexpr int block_side = 8;
// Pixels that fancy upsampling reads beyond a region's edge, plus one.
constexpr int margin = 2;

unsigned byte_at(std::span<const std::byte> file, std::size_t at) {
  return std::to_integer<unsigned>(file[at]);
}
int word_at(std::span<const std::byte> file, std::size_t at) {
  return static_cast<int>(byte_at(file, at) << 8 | byte_at(file, at + 1));
}
void put_word(std::vector<std::byte>& to, std::size_t at, int word) {
  to[at] = static_cast<std::byte>(word >> 8);
  to[at + 1] = static_cast<std::byte>(word & 255);
}
// Whether an image can be decoded without segments of this kind.
bool is_optional(unsigned code) {
  return (code >= app0 && code <= app0 + 15) || code == com;
}

// Reads SOF's content (after its length). False if the JPEG is of another kind.
bool read_frame(std::span<const std::byte> s, jpeg_headers::run_layout& l, int& components) {
  constexpr std::size_t fixed = 6;
  if (s.size() < fixed || byte_at(s, 0) != 8) return false;
  l.height = word_at(s, 1);
  l.width = word_at(s, 3);
  components = static_cast<int>(byte_at(s, 5));
  if (l.height == 0 || l.width == 0 || components < 1 || components > 4) return false;
  if (s.size() != fixed + static_cast<std::size_t>(components) * 3) return false;
  int across = 1;
  int down = 1;
  for (int c = 0; c < components; ++c) {
    const unsigned factors = byte_at(s, fixed + static_cast<std::size_t>(c) * 3 + 1);
    const int h = static_cast<int>(factors >> 4);
    const int v = static_cast<int>(factors & 15);
    if (h < 1 || h > 4 || v < 1 || v > 4) return false;
    across = std::max(across, h);
    down = std::max(down, v);
  }
  // A scan of one component has MCUs of one block, whatever its sampling factors.
  if (components == 1) across = down = 1;
  l.mcu_width = across * block_side;
  l.mcu_height = down * block_side;
  l.mcus_across = divided_up(l.width, l.mcu_width);
  l.mcus_down = divided_up(l.height, l.mcu_height);
  return true;
}

// The tables defined by a segment of Huffman or quantisation tables, as bits numbered like
// jpeg_headers::tables.
std::uint32_t tables_in(std::span<const std::byte> s, bool quantisation) {
  constexpr std::size_t counts = 16;
  constexpr std::size_t coefficients = 64;
  std::uint32_t out = 0;
  for (std::size_t at = 0; at < s.size();) {
    const unsigned kind = byte_at(s, at) >> 4;
    const unsigned number = byte_at(s, at) & 15;
    std::size_t size = 1 + coefficients * (kind == 0 ? 1 : 2);
    if (!quantisation) {
      size = 1 + counts;
      if (s.size() - at < size) return out;
      for (std::size_t i = 1; i <= counts; ++i) size += byte_at(s, at + i);
    }
    if (kind > 1 || number > 3 || s.size() - at < size) return out;
    out |= 1U << (number + (quantisation ? 8 : kind * 4));
    at += size;
  }
  return out;
}

// Whether another image's scan follows the end of the one whose scan data is `scan`.
bool has_scan_after(std::span<const std::byte> scan) {
  const std::string_view text(reinterpret_cast<const char*>(scan.data()), scan.size());
  auto at = text.find("\xFF\xD9");
  while (at != text.npos) {
    at = text.find("\xFF\xDA", at + 2);
    if (at == text.npos || at + 5 > text.size()) return false;
    const unsigned components = byte_at(scan, at + 4);
    const bool has_length_of_scan = word_at(scan, at + 2) == static_cast<int>(6 + 2 * components);
    if (components >= 1 && components <= 4 && has_length_of_scan) return true;
  }
  return false;
}

// Runs to keep: columns of runs [left, right), rows of runs [top, bottom).
struct run_range {
  int left = 0;
  int right = 0;
  int top = 0;
  int bottom = 0;
};

}  // namespace

void jpeg_headers::read(std::span<const std::byte> file) {
  orientation = {};
  runs = {};
  kept.clear();
  tables = 0;
  passed_junk_ = false;
  has_runs = read_runs(file);
  may_be_preview = passed_junk_ && runs.scan_at > 0 && has_scan_after(file.subspan(runs.scan_at));
}

// False as soon as the file is found not to be divisible into runs. `orientation` is set if it came
// before.
bool jpeg_headers::read_runs(std::span<const std::byte> file) {
  if (file.size() < 4 || byte_at(file, 0) != 0xFF || byte_at(file, 1) != soi) return false;
  int components = 0;
  bool can_have_runs = true;
  for (std::size_t at = 2; at + 4 <= file.size();) {
    const unsigned code = byte_at(file, at + 1);
    // Skips what is not a marker, as libjpeg does.
    if (byte_at(file, at) != 0xFF || code == 0 || code == 0xFF) {
      const bool is_fill = byte_at(file, at) == 0xFF && code == 0xFF;
      passed_junk_ = passed_junk_ || !is_fill;
      ++at;
      continue;
    }
    const bool is_bare = code == tem || (code >= rst0 && code < soi);
    if (is_bare) {
      at += 2;
      continue;
    }
    // Codes that have no segment, or an unknown one.
    if (code < sof_baseline || code == soi || code == eoi) return false;
    const auto length = static_cast<std::size_t>(word_at(file, at + 2));
    // A length too small to include itself: libjpeg continues after it.
    if (length < 2 && is_optional(code)) {
      passed_junk_ = true;
      at += 4;
      continue;
    }
    if (length < 2 || at + 2 + length > file.size()) return false;
    const auto content = file.subspan(at + 4, length - 2);
    const bool is_frame = code >= 0xC0 && code <= 0xCF && code != dht && code != 0xC8;
    if (is_frame) {
      const bool is_known = (code == sof_baseline || code == sof_extended) && runs.width == 0;
      can_have_runs = is_known && read_frame(content, runs, components);
      runs.size_at = at + 5;
    }
    if (code == app1 && orientation.number == 1) orientation = orientation_of(content);
    if (code == dht || code == dqt) tables |= tables_in(content, code == dqt);
    if (code == dri) runs.interval = content.size() == 2 ? word_at(content, 0) : 0;
    const bool is_needed = is_frame || code == dri || code == dqt || code == dht || code == app0 ||
                           code == app14 || code == sos;
    if (is_needed && kept.size() < most_kept) kept.emplace_back(at, at + 2 + length);
    can_have_runs = can_have_runs && kept.size() < most_kept;
    at += 2 + length;
    if (code != sos) continue;
    runs.scan_at = at;
    const bool is_whole =
        !content.empty() && byte_at(content, 0) == static_cast<unsigned>(components);
    if (!can_have_runs || components == 0 || !is_whole || runs.interval == 0) return false;
    return runs.mcus_across % runs.interval == 0 || runs.interval % runs.mcus_across == 0;
  }
  return false;
}

namespace {

run_range runs_under(const jpeg_headers::run_layout& l, const pixel_box& region) {
  // In MCUs: a run is a part of a row, or several whole rows.
  const int run_columns = std::min(l.interval, l.mcus_across);
  const int run_rows = std::max(1, l.interval / l.mcus_across);
  const auto cut = [](int from, int size, int unit, int units) {
    const int first = std::max(0, from - margin) / unit;
    const int end = std::min(units, divided_up(from + size + margin, unit));
    return std::pair(first, end);
  };
  const int run_width = run_columns * l.mcu_width;
  auto [left, right] =
      cut(region.x, region.width, run_width, divided_up(l.mcus_across, run_columns));
  while (left > 0 && std::min(l.width, right * run_width) - left * run_width < narrowest_region) {
    --left;
  }
  const auto [top, bottom] =
      cut(region.y, region.height, run_rows * l.mcu_height, divided_up(l.mcus_down, run_rows));
  return {left, right, top, bottom};
}

// Appends the runs of the range, renumbering the restart markers. False if a marker is not the
// expected one.
bool append_runs(std::span<const std::byte> file, const jpeg_headers::run_layout& l,
                 const run_range& range, std::vector<std::byte>& to) {
  const int columns = std::max(1, l.mcus_across / l.interval);
  const int last = (range.bottom - 1) * columns + range.right - 1;
  int joined = 0;
  std::size_t begin = l.scan_at;
  for (int run = 0; run <= last; ++run) {
    const std::size_t end = kernels::find_marker(file, begin);
    if (end == file.size()) return false;
    const int column = run % columns;
    const bool is_wanted =
        run >= range.top * columns && column >= range.left && column < range.right;
    if (is_wanted) {
      if (joined > 0) {
        to.push_back(std::byte{0xFF});
        to.push_back(static_cast<std::byte>(rst0 + static_cast<unsigned>((joined - 1) % 8)));
      }
      ++joined;
      const auto content = file.subspan(begin, end - begin);
      to.insert(to.end(), content.begin(), content.end());
    }
    const unsigned code = byte_at(file, end + 1);
    const bool is_very_last =
        run + 1 == columns * divided_up(l.mcus_down * l.mcus_across, columns * l.interval);
    const unsigned expected = is_very_last ? eoi : rst0 + static_cast<unsigned>(run % 8);
    if (code != expected) return false;
    begin = end + 2;
  }
  to.push_back(std::byte{0xFF});
  to.push_back(static_cast<std::byte>(eoi));
  return true;
}

}  // namespace

bool join_runs(std::span<const std::byte> file, const jpeg_headers& headers,
               const pixel_box& region, joined_runs& into) {
  const jpeg_headers::run_layout& l = headers.runs;
  const run_range range = runs_under(l, region);
  const int run_width = std::min(l.interval, l.mcus_across) * l.mcu_width;
  const int run_height = std::max(1, l.interval / l.mcus_across) * l.mcu_height;
  into.x = range.left * run_width;
  into.y = range.top * run_height;
  const int width = std::min(l.width, range.right * run_width) - into.x;
  const int height = std::min(l.height, range.bottom * run_height) - into.y;
  // Rows below the region are never decoded, so nothing would be saved.
  if (into.x == 0 && into.y == 0 && width == l.width) return false;
  auto& out = into.file;
  out.clear();
  out.push_back(std::byte{0xFF});
  out.push_back(static_cast<std::byte>(soi));
  for (const auto& [from, to] : headers.kept) {
    const auto header = file.subspan(from, to - from);
    const std::size_t at = out.size();
    out.insert(out.end(), header.begin(), header.end());
    if (l.size_at < from || l.size_at >= to) continue;
    put_word(out, at + (l.size_at - from), height);
    put_word(out, at + (l.size_at - from) + 2, width);
  }
  return append_runs(file, l, range, out);
}

}  // namespace millrace
