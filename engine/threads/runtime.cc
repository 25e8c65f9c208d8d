#include "engine/threads/runtime.h"

#include <atomic>

#include "engine/host/host.h"
#include "engine/host/log.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/pread_io.h"
#include "engine/threads/uring_io.h"
#include "engine/threads/worker_pool.h"

namespace millrace {
namespace {

std::unique_ptr<block_io> make_block_io(io_thread& home, io_backend backend,
                                        bool register_buffers) {
  if (backend == io_backend::pread) return std::make_unique<pread_io>(home);
  if (const auto refused = uring_refused()) {
    if (backend == io_backend::uring) {
      throw failure(error(errc::unsupported,
                          "engine_options.io (MILLRACE_IO) demands io_uring, but " + *refused)
                        .hint("io_backend::automatic (MILLRACE_IO=auto) falls back to pread"));
    }
    static std::atomic<bool> told = false;  // the refusal concerns all threads
    if (!told.exchange(true)) log_notice(*refused + "; files are read by a pread pool");
    return std::make_unique<pread_io>(home);
  }
  return std::make_unique<uring_io>(home, register_buffers);
}

}  // namespace

runtime::runtime(const runtime_options& options) {
  const auto make_files = [&](io_thread& home) {
    return make_block_io(home, options.io, options.register_buffers);
  };
  for (int i = 0; i < options.io_threads; ++i) {
    io_.push_back(std::make_unique<io_thread>(i, make_files));
  }
  cpu_ = std::make_unique<worker_pool>(
      "mr-cpu", options.cpu_threads > 0 ? options.cpu_threads : allowed_cpus(),
      io_.size() * io_thread::max_tasks);
  for (const auto& io : io_) io->set_pool(*cpu_);
}

runtime::~runtime() {
  cpu_.reset();
  io_.clear();
}

}  // namespace millrace
