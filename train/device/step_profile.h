#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/base/error.h"

namespace millrace {

// A trace of a few steps: the host's operators and, on a GPU, its kernels and copies, as JSON that
// chrome://tracing and ui.perfetto.dev show. Steps before them are left out, in which kernels are
// chosen. One thread, that of the steps.
class step_profile {
 public:
  static constexpr std::int64_t first = 20;  // step of this process, from 0
  static constexpr std::int64_t count = 10;

  // An empty `file`: none is made.
  step_profile(std::string file, bool is_on_gpu);
  // Without end(), nothing is written.
  ~step_profile();
  step_profile(const step_profile&) = delete;
  step_profile& operator=(const step_profile&) = delete;

  // Before each step; `taken`: by this process. A trace that cannot be written is told, and
  // training goes on.
  void before_step(std::int64_t taken);
  // After the last step: writes what there is, or says that there were too few steps. Throws
  // `failure` if the trace could not be written.
  void end();

 private:
  void write();

  std::string file_;
  bool is_on_gpu_;
  bool is_running_ = false;
  std::optional<error> failed_;
};

}  // namespace millrace
