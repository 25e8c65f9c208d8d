#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "engine/memory/memory.h"

namespace millrace {

// The device of this host for "auto", "cpu" or "cuda": with several GPUs, the one with the number
// of the local rank. Throws `failure`: unsupported without a GPU for "cuda", usage if there are
// fewer than local ranks. One GPU alone is taken for this rank's own, as launchers show it.
c10::Device pick_device(const std::string& name, int local_rank);
// The number of the local rank's GPU, of `gpus` that torch finds. Throws `failure` (usage).
int gpu_of(int local_rank, int gpus);
// Two devices are one GPU, also seen from two processes, if these are equal. Empty: not a GPU.
std::string gpu_identity(c10::Device device);

// An allocator of pinned host memory for engine_options::allocator if the device is a GPU; else
// null.
std::unique_ptr<host_allocator> make_pinned_allocator(c10::Device device);

}  // namespace millrace
