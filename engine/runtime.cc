#include "engine/runtime.h"

#include "engine/memory.h"

namespace millrace {

runtime::runtime(const runtime_options& options) {
  for (int i = 0; i < options.io_threads; ++i) {
    io_.push_back(std::make_unique<io_thread>(i, options.io, options.register_buffers));
  }
  cpu_ = std::make_unique<worker_pool>(
      "mr-cpu", options.cpu_threads > 0 ? options.cpu_threads : allowed_cpus(),
      io_.size() * io_thread::max_tasks);
}

runtime::~runtime() {
  cpu_.reset();
  io_.clear();
}

}  // namespace millrace
