// Any bytes as an archive: read whole and in pieces, strictly and with resync, it gives the same.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "pipeline/formats/group.h"
#include "pipeline/formats/tar_parser.h"
#include "pipeline/samples/sample_name.h"

namespace {

using namespace millrace;
using event = tar_parser::event;

// What the parser says of `archive`, fed in pieces of `piece` bytes.
std::string told(std::span<const std::byte> archive, std::size_t piece, bool resync) {
  tar_parser parser;
  std::string out;
  std::size_t errors = 0;
  for (std::size_t at = 0; at < archive.size(); at += piece) {
    auto input = archive.subspan(at, std::min(piece, archive.size() - at));
    for (;;) {
      const auto step = parser.step(input);
      if (!step) {
        out += "!" + step.error().message();
        // Each error consumes a block at least, so there are no more of them than blocks.
        if (!resync) return out;
        if (++errors > archive.size() / tar_parser::block_size + 1) std::abort();
        parser.resync();
        continue;
      }
      if (*step == event::need_input) break;
      if (*step == event::header) {
        out += "\n" + parser.current().name + " " + std::to_string(parser.current().size);
        if (const auto name = split_name(parser.current().name)) out += " " + name->key;
      }
      if (*step == event::data) {
        for (const std::byte b : parser.data()) out += static_cast<char>(b);
      }
      if (*step == event::member_end) out += ".";
    }
  }
  if (const auto whole = parser.finish(); !whole) out += "!" + whole.error().message();
  return out + " " + std::to_string(parser.lost_bytes());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto archive = std::as_bytes(std::span(data, size));
  for (const bool resync : {false, true}) {
    const std::string whole = told(archive, size + 1, resync);
    for (const std::size_t piece : {511U, 513U, 4096U}) {
      if (told(archive, piece, resync) != whole) std::abort();
    }
  }
  return 0;
}
