// Any text as a document that is read from a network or a disk: states, indexes, lists of stores.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "io/stores/listing_page.h"
#include "pipeline/shards/shard_index.h"
#include "pipeline/state/state.h"

using namespace millrace;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto none = [](const std::string&) -> result<std::string> {
    return error(errc::not_found, "none");
  };
  switch (data[0] % 4) {
    case 0:
      if (const auto saved = state::from_json(text)) {
        if (state::from_json(saved->to_json()).value() != *saved) std::abort();
      }
      break;
    case 1:
      if (const auto index = parse_index(text, "http://h/d/i.json", "", none)) {
        if (index->samples() < 0) std::abort();
      }
      break;
    case 2:
      (void)parse_s3_listing(text);
      break;
    default:
      (void)parse_azure_listing(text);
  }
  return 0;
}
