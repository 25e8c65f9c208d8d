// Any bytes as a field of any format: a value or an error, in bounded memory and stack, and the
// same the second time.
#include <array>
#include <cstdint>
#include <cstdlib>

#include "engine/base/nesting.h"
#include "engine/base/units.h"
#include "engine/memory/work_memory.h"
#include "pipeline/samples/fields.h"

using namespace millrace;

namespace {

constexpr std::array extensions{"txt", "cls",    "json",    "mp",    "cbor",    "npy",    "npz",
                                "ten", "txt.gz", "json.gz", "mp.gz", "cbor.gz", "npy.gz", "npz.gz"};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static work_memory memory(32_MiB);
  const work_memory_scope in(memory);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const char* extension = extensions[data[0] % extensions.size()];
  const auto first = decode_field(extension, bytes::unowned(text));
  const auto second = decode_field(extension, bytes::unowned(text));
  if (first.has_value() != second.has_value()) std::abort();
  if (first) {
    const auto* one = std::get_if<json_text>(&*first);
    const auto* other = std::get_if<json_text>(&*second);
    if (one != nullptr && (one->text != other->text || nests_deeper(one->text))) std::abort();
  }
  if (memory.in_use() != 0) std::abort();
  return 0;
}
