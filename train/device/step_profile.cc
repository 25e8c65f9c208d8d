#include "train/device/step_profile.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <cerrno>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "engine/base/printable.h"
#include "engine/files/written_file.h"
#include "engine/host/log.h"
#include "train/files.h"

namespace millrace {
namespace {

namespace profiler = torch::autograd::profiler;
using profiled = torch::profiler::impl::ActivityType;

// A folder of a name of its own below TMPDIR, for as long as this lives.
class temporary_folder {
 public:
  temporary_folder() {
    std::error_code why;
    const std::filesystem::path base = std::filesystem::temp_directory_path(why);
    path_ = (base / "millrace-profile-XXXXXX").string();
    if (why || mkdtemp(path_.data()) == nullptr) {
      throw failure(cannot_write("the profile", path_, why ? why.value() : errno));
    }
  }
  ~temporary_folder() {
    std::error_code ignored;  // what is left there is found below TMPDIR
    std::filesystem::remove_all(path_, ignored);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The profiler only writes to a path, over whatever has that name, devices included, and says
// nothing of a full disk: it gets a folder of its own.
std::string text_of(profiler::ProfilerResult& result) {
  const temporary_folder folder;
  const std::string file = folder.path() + "/trace.json";
  result.save(file);
  std::ifstream in(file, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  constexpr std::string_view blanks = " \n";
  const auto last = text.find_last_not_of(blanks);
  if (last == text.npos || text[last] != '}') {
    throw failure(error(errc::io_failed, "PyTorch's profiler has written only a part of the trace")
                      .at(file)
                      .hint("see whether that disk is full, or set TMPDIR to another one"));
  }
  return text;
}

}  // namespace

step_profile::step_profile(std::string file, bool is_on_gpu)
    : file_(std::move(file)), is_on_gpu_(is_on_gpu) {}

step_profile::~step_profile() {
  if (!is_running_) return;
  try {
    profiler::disableProfiler();
  } catch (...) {
    log_notice(error_of(std::current_exception(), "PyTorch's profiler").message());
  }
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
  log_notice(fmt::format("no profile is written: it begins after {} steps; train for more", first));
}

void step_profile::write() {
  is_running_ = false;
  const std::string file = std::exchange(file_, {});
  if (is_on_gpu_) torch::cuda::synchronize();
  try {
    const auto result = profiler::disableProfiler();
    write_whole_file(file, text_of(*result), "profile");
    log_notice("the profile of a few steps is in " + printable(file));
  } catch (...) {
    failed_ = error_of(std::current_exception(), "PyTorch's profiler");
    log_notice(failed_->message());
  }
}

}  // namespace millrace
