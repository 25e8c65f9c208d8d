#include "train/device/step_profile.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "engine/file_system.h"
#include "engine/log.h"
#include "engine/printable.h"
#include "engine/written_file.h"

namespace millrace {
namespace {

namespace profiler = torch::autograd::profiler;
using profiled = torch::profiler::impl::ActivityType;

// The profiler only writes to a path, says nothing of a failed write, and would write over devices
// by name: it gets a file in memory.
std::string text_of(profiler::ProfilerResult& result) {
  const held_file memory(memfd_create("profile", MFD_CLOEXEC));
  if (!memory) throw failure(error(errc::no_memory, "no memory for a profile").cause(errno));
  const std::string path = fmt::format("/proc/self/fd/{}", memory.fd());
  result.save(path);
  std::ifstream in(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  if (text.find_last_of('}') == text.npos) throw failure(error(errc::no_memory, "no profile came"));
  return text;
}

}  // namespace

step_profile::step_profile(std::string file, bool is_on_gpu)
    : file_(std::move(file)), is_on_gpu_(is_on_gpu) {}

step_profile::~step_profile() {
  if (is_running_) profiler::disableProfiler();
}

void step_profile::before_step(std::int64_t taken) {
  if (file_.empty()) return;
  if (taken == first && !is_running_) {
    std::set<profiled> what{profiled::CPU};
    if (is_on_gpu_) what.insert(profiled::CUDA);
    const torch::profiler::impl::ProfilerConfig how(torch::profiler::impl::ProfilerState::KINETO);
    profiler::prepareProfiler(how, what);
    profiler::enableProfiler(how, what);
    is_running_ = true;
  }
  if (is_running_ && taken == first + count) write();
}

void step_profile::end() {
  if (is_running_) write();
  if (failed_) throw failure(*failed_);
  if (file_.empty()) return;
  log_notice(fmt::format("no profile is written: it begins after {} steps", first));
}

void step_profile::write() {
  is_running_ = false;
  if (is_on_gpu_) torch::cuda::synchronize();
  const auto result = profiler::disableProfiler();
  const std::string file = std::exchange(file_, {});
  try {
    write_whole_file(file, text_of(*result), "profile");
    log_notice("the profile of a few steps is in " + printable(file));
  } catch (const failure& f) {
    log_notice(f.what());
    failed_ = f.why();
  }
}

}  // namespace millrace
