#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace millrace {

// A program that PyTorch's Inductor compiled ahead of time. It works on tensors of its caller. One
// thread.
class compiled_program {
 public:
  // Loads the program of these files by name, a library (.so) and what it reads when it is loaded,
  // for "cpu" or "cuda". Writes them to a temporary folder (TMPDIR), which is removed before this
  // returns. Throws `failure` (bad_state, io_failed, ...); `where` names their origin in messages.
  compiled_program(const std::map<std::string, std::string>& files, const std::string& device,
                   const std::string& where);
  ~compiled_program();
  compiled_program(const compiled_program&) = delete;
  compiled_program& operator=(const compiled_program&) = delete;

  // The names of the tensors that it works on: parameters, buffers, constants.
  const std::vector<std::string>& tensors() const;
  // Works on these from now on, in the order of tensors(): of the shapes and formats that it was
  // compiled for, which it does not check. It reads them in each run, and writes the buffers.
  void use(const std::vector<at::Tensor>& tensors);

  // Its outputs. The inputs have the types and formats of those that it was compiled for, which it
  // does not check.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
