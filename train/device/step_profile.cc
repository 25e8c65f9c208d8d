#include "train/device/step_profile.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "engine/log.h"
#include "engine/printable.h"
#include "engine/written_file.h"
#include "train/files.h"

namespace millrace {
namespace {

namespace profiler = torch::autograd::profiler;
using profiled = torch::profiler::impl::ActivityType;

// The profiler only writes to a path, over whatever has that name, devices included, and says
// nothing of a full disk: it gets a folder of its own.
std::string text_of(profiler::ProfilerResult& result) {
  std::error_code why;
  const std::filesystem::path base = std::filesystem::temp_directory_path(why);
  std::string folder = (base / "millrace-profile-XXXXXX").string();
  if (why || mkdtemp(folder.data()) == nullptr) {
    throw failure(cannot_write("the profile", folder, why ? why.value() : errno));
  }
  const std::string file = folder + "/trace.json";
  result.save(file);
  std::ifstream in(file, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  std::filesystem::remove_all(folder, why);
  constexpr std::string_view blanks = " \n";
  const auto last = text.find_last_not_of(blanks);
  if (last == text.npos || text[last] != '}') {
    throw failure(cannot_write("the profile", file, ENOSPC));
  }
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
