// Any text as a URL, a store's listing, a brace pattern, names, an index, the offsets beside one, a
// state.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "io/names/brace_expand.h"
#include "io/names/url.h"
#include "io/stores/listing_page.h"
#include "pipeline/formats/group.h"
#include "pipeline/samples/fields.h"
#include "pipeline/samples/sample_name.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/shards/shards.h"
#include "pipeline/state/records.h"
#include "pipeline/state/state.h"
#include "pipeline/wids/sidecar.h"
#include "tools/jobs/names.h"

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

// Whether a name belongs to a key, told with and without splitting it.
void try_names(const std::string& text) {
  const auto zero = std::min(text.find('\0'), text.size());
  const auto first = split_name(std::string_view(text).substr(0, zero));
  if (!first || zero == text.size()) return;
  const auto second = split_name(std::string_view(text).substr(zero + 1));
  const bool same = second && second->key == first->key;
  if (extension_after(first->key, std::string_view(text).substr(zero + 1)).has_value() != same) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0:
      if (const auto parsed = parse_url(text)) (void)redacted(to_string(*parsed));
      (void)redacted(text);
      (void)parse_s3_listing(text);
      (void)parse_azure_listing(text);
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
    case 4:
      try_fields(text);
      break;
    default:
      try_names(text);
  }
  return 0;
}
