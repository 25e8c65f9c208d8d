#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace millrace {

using tensor_dict = std::map<std::string, at::Tensor>;

// Named tensors in a file of the safetensors format (https://github.com/huggingface/safetensors,
// "Format"): no pickle, so reading one runs nothing. Types: float64/32/16, bfloat16, int64/32,
// uint8, bool. Python reads and writes it with safetensors.torch.
//
// Throw `failure`: not_found, io_failed, or bad_state for a file that is not well formed. The
// tensors are contiguous, in memory.
tensor_dict load_tensors(const std::string& file);
void save_tensors(const std::string& file, const tensor_dict& tensors);
// The same of a file's whole text; `file` names it in errors.
tensor_dict tensors_in(const std::string& text, const std::string& file);
std::string tensors_text(const tensor_dict& tensors);

}  // namespace millrace
