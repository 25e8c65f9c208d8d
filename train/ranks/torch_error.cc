#include "train/ranks/torch_error.h"

#include <string>
#include <string_view>

namespace millrace {

error error_of_torch(const c10::Error& e) {
  const std::string_view all = e.what_without_backtrace();
  const std::string what(all.substr(0, all.find('\n')));
  if (dynamic_cast<const c10::OutOfMemoryError*>(&e) != nullptr) {
    // What follows tells how PyTorch's memory is divided.
    const std::string short_of = what.substr(0, what.find(" Including non-PyTorch"));
    return error(errc::no_memory, short_of).hint("lower --batch-size, or raise --accumulate");
  }
  if (what.find("does not have a deterministic implementation") != what.npos) {
    return error(errc::unsupported, what.substr(0, what.find(',')))
        .hint("leave out --deterministic");
  }
  const bool is_of_device =
      what.find("CUDA error") != what.npos || what.find("cuDNN error") != what.npos;
  if (!is_of_device) return {errc::internal, what};
  return error(errc::device_failed, what)
      .hint("see the host's kernel log; start again on another host, or without this GPU");
}

}  // namespace millrace
