#include "train/device/step_graph.h"

#include "engine/base/error.h"

#ifdef MILLRACE_CUDA
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#endif

namespace millrace {

#ifdef MILLRACE_CUDA

struct step_graph::impl {
  // Runs `f` on the side stream, after what is queued on the current one and before what follows.
  void aside(const std::function<void()>& f) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    const c10::Stream current = guard.getStream(device);
    const auto follows = [&](const c10::Stream& first, const c10::Stream& then) {
      c10::Event done(device.type());
      done.record(first);
      done.block(then);
    };
    follows(current, side);
    {
      const c10::StreamGuard on_side(side);
      f();
    }
    follows(side, current);
  }

  c10::Device device;
  c10::Stream side = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  int runs = 0;
  std::optional<at::cuda::CUDAGraph> graph;
};

step_graph::step_graph(c10::Device device) {
  if (!device.is_cuda()) {
    throw failure(error(errc::usage, "--graph needs a GPU").hint("leave it out on a CPU"));
  }
  impl_ = std::make_unique<impl>(impl{.device = device});
}

void step_graph::run(const std::function<void()>& work) {
  constexpr int warm_up = 11;  // as PyTorch's notes say
  if (impl_->runs++ < warm_up) return impl_->aside(work);
  if (!impl_->graph) {
    // Recorded on a stream of its own, and not run. Other threads may allocate pinned memory and
    // wait for events meanwhile.
    impl_->aside([&] {
      impl_->graph.emplace();
      impl_->graph->capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
      work();
      impl_->graph->capture_end();
    });
  }
  impl_->graph->replay();
}

#else

struct step_graph::impl {};

step_graph::step_graph(c10::Device /*device*/) {
  throw failure(error(errc::unsupported, "--graph: built without CUDA")
                    .hint("build against a LibTorch with CUDA, or leave it out"));
}

void step_graph::run(const std::function<void()>& work) {
  work();
}

#endif

step_graph::~step_graph() = default;

}  // namespace millrace
