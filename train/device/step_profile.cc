#include "train/device/step_profile.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <set>
#include <utility>

#include "engine/log.h"
#include "engine/printable.h"
#include "train/files.h"

namespace millrace {
namespace {

namespace profiler = torch::autograd::profiler;
using profiled = torch::profiler::impl::ActivityType;

// The profiler says nothing of a full disk: a whole trace ends as JSON does.
bool is_whole(const std::string& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  const std::streamoff size = in.tellg();
  if (size < 2) return false;
  in.seekg(std::max<std::streamoff>(0, size - 16));
  std::string tail;
  for (std::string word; in >> word;) tail = word;
  return tail.ends_with('}');
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
  const std::string partial = file + ".partial";
  result->save(partial);
  const int code = !is_whole(partial)                                ? EIO
                   : std::rename(partial.c_str(), file.c_str()) != 0 ? errno
                                                                     : 0;
  if (code == 0) return log_notice("the profile of a few steps is in " + printable(file));
  std::remove(partial.c_str());
  failed_ = cannot_write("the profile", file, code);
  log_notice(failed_->message());
}

}  // namespace millrace
