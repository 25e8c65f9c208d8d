#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace millrace {

// Tensors by name.
using tensor_dict = std::map<std::string, at::Tensor>;

// Reads named tensors from a file of the safetensors format
// (https://github.com/huggingface/safetensors, "Format"): no pickle, so reading one runs nothing.
// Types: float64/32/16, bfloat16, int64/32, uint8, bool. Python reads and writes it with
// safetensors.torch. The tensors are contiguous, in memory. Throws `failure`: not_found, io_failed,
// or bad_state for a file that is not well formed.
tensor_dict load_tensors(const std::string& file);
// Writes such a file. Throws `failure` with the kind of the host's error, such as io_failed.
void save_tensors(const std::string& file, const tensor_dict& tensors);
// Parses a file's whole text; `file` names it in errors. Throws as load_tensors() does.
tensor_dict tensors_in(const std::string& text, const std::string& file);
// The text of such a file.
std::string tensors_text(const tensor_dict& tensors);

}  // namespace millrace
