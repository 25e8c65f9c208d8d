// Any text as a URL, a brace pattern, a name, an index, the offsets beside one, a state.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "io/brace_expand.h"
#include "io/url.h"
#include "pipeline/fields.h"
#include "pipeline/shards.h"
#include "pipeline/state.h"
#include "pipeline/tools/names.h"
#include "pipeline/wids/shard_index.h"

using namespace millrace;

namespace {

void try_index(const std::string& text) {
  const auto none = [](const std::string&) -> result<std::string> {
    return error(errc::not_found, "none");
  };
  auto index = parse_index(text, "http://h/d/i.json", "", none);
  if (index && index->samples() < 0) std::abort();
  shard_index known{.name = "", .info = "", .base = "", .shards = {{.url = "a", .samples = 3}}};
  if (add_offsets(known, text, "f") && known.shards[0].blocks.size() != 4) std::abort();
}

void try_state(const std::string& text) {
  const auto saved = state::from_json(text);
  if (!saved) return;
  if (state::from_json(saved->to_json()).value() != *saved) std::abort();
  try {
    tail_in(*saved);
  } catch (const failure&) {
  }
}

void try_fields(const std::string& text) {
  for (const char* extension :
       {"txt", "cls", "json", "mp", "cbor", "npy", "npz", "ten", "txt.gz"}) {
    (void)decode_field(extension, bytes::unowned(text));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      if (const auto parsed = parse_url(text)) (void)redacted(to_string(*parsed));
      break;
    case 1: {
      // A summary's expansion is the names.
      if (text.find('\n') != text.npos || text.empty()) break;
      const auto back = brace_expand(brace_summary({text}).front());
      if (!back || back->size() != 1 || back->front() != text) std::abort();
      break;
    }
    case 2:
      try_index(text);
      break;
    case 3:
      try_state(text);
      break;
    default:
      try_fields(text);
  }
  return 0;
}
