#include "train/safetensors.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "engine/file_system.h"
#include "engine/folders.h"
#include "engine/json_tree.h"
#include "engine/written_file.h"
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

at::Tensor tensor_from(const std::string& file, const nlohmann::json& entry,
                       std::string_view payload) {
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
  const auto* known =
      std::ranges::find_if(types, [&](const named_type& t) { return t.name == name; });
  if (known == types.end()) bad(file, "type '" + name + "'");
  const bool is_within = range.size() == 2 && range[0] <= range[1] && range[1] <= payload.size();
  const std::size_t bytes = is_within ? range[1] - range[0] : 0;
  // Before anything is allocated by what the header says.
  std::size_t expected = c10::elementSize(known->type);
  bool fits = is_within;
  for (const std::int64_t side : shape) {
    fits = fits && side >= 0 &&
           !__builtin_mul_overflow(expected, static_cast<std::size_t>(side), &expected);
  }
  if (!fits || expected != bytes) bad(file, "a tensor whose bytes do not match its shape");
  auto tensor = torch::empty(shape, known->type);
  if (bytes > 0) std::memcpy(tensor.data_ptr(), payload.data() + range[0], tensor.nbytes());
  return tensor;
}

// What is plainly no safetensors file is not read whole: it may be larger than the memory there is.
void check_head(const std::string& file) {
  constexpr std::uint64_t largest_header = 100'000'000;  // as the format says
  struct stat about{};
  if (host_files().stat(file, about) != 0) return;  // who reads it says why
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
  return tensors_in(read_whole_file(file).value(), file);
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
  const bool is_bounded = json_tree::parse(text).has_value();
  const auto header = is_bounded ? nlohmann::json::parse(text, nullptr, false) : nlohmann::json();
  if (!header.is_object()) bad(file, "its header is not a JSON object");
  const auto payload = std::string_view(whole).substr(length_bytes + header_size);
  tensor_dict out;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") out.emplace(name, tensor_from(file, entry, payload));
  }
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
