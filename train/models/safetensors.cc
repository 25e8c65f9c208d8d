#include "train/models/safetensors.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/json_tree.h"
#include "engine/files/file_system.h"
#include "engine/files/folders.h"
#include "engine/files/written_file.h"
#include "engine/threads/worker_pool.h"
#include "train/files.h"

namespace millrace {
namespace {

struct named_type {
  const char* name;
  at::ScalarType type;
};
constexpr std::array types{named_type{"F64", at::kDouble}, named_type{"F32", at::kFloat},
                           named_type{"F16", at::kHalf},   named_type{"BF16", at::kBFloat16},
                           named_type{"I64", at::kLong},   named_type{"I32", at::kInt},
                           named_type{"U8", at::kByte},    named_type{"BOOL", at::kBool}};

constexpr std::size_t length_bytes = 8;

[[noreturn]] void bad(const std::string& file, const std::string& what) {
  throw failure(error(errc::bad_state, "not a safetensors file: " + what)
                    .at(file)
                    .hint("write it with safetensors.torch.save_file(model.state_dict(), FILE)"));
}

// Whether it is a list of whole numbers.
bool are_whole(const nlohmann::json& numbers) {
  return numbers.is_array() && std::ranges::all_of(numbers, [](const nlohmann::json& n) {
           return n.is_number_integer();
         });
}

// The place of a tensor's bytes.
struct tensor_place {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::string name;
  auto operator<=>(const tensor_place&) const = default;
};

// The format requires contiguous tensors up to the end of the file.
void check_places(const std::string& file, std::vector<tensor_place> places, std::size_t bytes) {
  std::ranges::sort(places);
  std::size_t at = 0;
  for (const tensor_place& p : places) {
    if (p.begin < at) bad(file, fmt::format("the bytes of '{}' overlap another tensor's", p.name));
    if (p.begin > at) {
      bad(file, fmt::format("{} bytes before '{}' belong to no tensor", p.begin - at, p.name));
    }
    at = p.end;
  }
  if (at < bytes) bad(file, fmt::format("{} bytes after the last tensor", bytes - at));
}

// The header, or null if it is not JSON. Throws for a duplicate key, of which only one would count.
nlohmann::json header_in(const std::string& file, const std::string& text) {
  if (!json_tree::parse(text)) return {};
  std::vector<std::set<std::string>> keys;  // of the enclosing objects
  using event = nlohmann::json::parse_event_t;
  const auto look = [&](int /*depth*/, event what, nlohmann::json& parsed) {
    if (what == event::object_start) keys.emplace_back();
    if (what == event::object_end) keys.pop_back();
    if (what == event::key && !keys.back().insert(parsed.get<std::string>()).second) {
      bad(file, fmt::format("its header has the key '{}' twice", parsed.get<std::string>()));
    }
    return true;
  };
  return nlohmann::json::parse(text, look, false);
}

at::Tensor tensor_from(const std::string& file, const nlohmann::json& entry,
                       std::string_view payload, tensor_place& place) {
  if (!entry.is_object()) bad(file, "an entry that is not an object");
  std::vector<std::int64_t> shape;
  std::vector<std::size_t> range;
  std::string name;
  try {
    name = entry.value("dtype", "");
    shape = entry.value("shape", shape);
    range = entry.value("data_offsets", range);
  } catch (const nlohmann::json::exception&) {
    bad(file, "an entry of the wrong types");
  }
  for (const char* key : {"shape", "data_offsets"}) {
    if (entry.contains(key) && !are_whole(entry[key])) {
      bad(file, fmt::format("the {} of '{}' has values other than whole numbers", key, place.name));
    }
  }
  const auto* known =
      std::ranges::find_if(types, [&](const named_type& t) { return t.name == name; });
  if (known == types.end()) bad(file, "type '" + name + "'");
  const bool is_within = range.size() == 2 && range[0] <= range[1] && range[1] <= payload.size();
  const std::size_t bytes = is_within ? range[1] - range[0] : 0;
  // Checked before anything is allocated on the header's word.
  std::size_t expected = c10::elementSize(known->type);
  std::size_t step = expected;  // stride, which torch requires even without elements
  bool fits = is_within;
  for (const std::int64_t side : shape) {
    fits = fits && side >= 0 &&
           !__builtin_mul_overflow(expected, static_cast<std::size_t>(side), &expected) &&
           !__builtin_mul_overflow(step, std::max(static_cast<std::size_t>(side), std::size_t{1}),
                                   &step) &&
           step <= std::numeric_limits<std::int64_t>::max();
  }
  if (!fits || expected != bytes) bad(file, "a tensor whose bytes do not match its shape");
  place.begin = range[0];
  place.end = range[1];
  auto tensor = torch::empty(shape, known->type);
  if (bytes > 0) std::memcpy(tensor.data_ptr(), payload.data() + range[0], tensor.nbytes());
  return tensor;
}

// Refuses other files before reading them whole: they may be larger than memory.
void check_head(const std::string& file) {
  constexpr std::uint64_t largest_header = 100'000'000;  // as the format says
  struct stat about{};
  if (host_files().stat(file, about) != 0) return;  // reading it reports why
  // A device may have no end, and a FIFO no writer.
  if (!S_ISREG(about.st_mode)) bad(file, "it is not a regular file");
  std::array<char, length_bytes + 1> head{};
  if (!std::ifstream(file, std::ios::binary).read(head.data(), head.size())) return;
  std::uint64_t length = 0;
  std::memcpy(&length, head.data(), length_bytes);
  const bool fits = length <= largest_header &&
                    length <= static_cast<std::uint64_t>(about.st_size) - length_bytes;
  if (!fits) bad(file, "its header is cut");
  if (head.back() != '{') bad(file, "its header is not a JSON object");
}

}  // namespace

tensor_dict load_tensors(const std::string& file) {
  check_head(file);
  return tensors_in(read_whole_file(file, any_size).value(), file);
}

void save_tensors(const std::string& file, const tensor_dict& tensors) {
  write_whole_file(file, tensors_text(tensors));
}

tensor_dict tensors_in(const std::string& whole, const std::string& file) {
  std::uint64_t length = 0;
  if (whole.size() < length_bytes) bad(file, "too short");
  std::memcpy(&length, whole.data(), length_bytes);
  if (length > whole.size() - length_bytes) bad(file, "its header is cut");
  const auto header_size = static_cast<std::size_t>(length);
  const std::string text = whole.substr(length_bytes, header_size);
  const auto header = header_in(file, text);
  if (!header.is_object()) bad(file, "its header is not a JSON object");
  const auto payload = std::string_view(whole).substr(length_bytes + header_size);
  tensor_dict out;
  std::vector<tensor_place> places;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    tensor_place& place = places.emplace_back(tensor_place{.name = name});
    out.emplace(name, tensor_from(file, entry, payload, place));
  }
  check_places(file, std::move(places), payload.size());
  return out;
}

std::string tensors_text(const tensor_dict& tensors) {
  auto header = nlohmann::json::object();
  std::string payload;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor plain = tensor.detach().cpu().contiguous();
    const auto* known = std::ranges::find(types, plain.scalar_type(), &named_type::type);
    if (known == types.end()) throw failure(error(errc::internal, name + " has an unknown type"));
    const std::size_t begin = payload.size();
    payload.append(static_cast<const char*>(plain.data_ptr()), plain.nbytes());
    header[name] = {{"dtype", known->name},
                    {"shape", plain.sizes().vec()},
                    {"data_offsets", {begin, payload.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + length_bytes - 1) / length_bytes * length_bytes, ' ');
  const std::uint64_t length = text.size();
  std::string whole(reinterpret_cast<const char*>(&length), length_bytes);
  return whole + text + payload;
}

}  // namespace millrace
