#include "train/models/compiled_program.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>
#include <torch/torch.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <unordered_map>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/files/written_file.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using torch::inductor::AOTIModelContainerRunner;

// A folder that is removed with its files.
class temporary_folder {
 public:
  temporary_folder() : path_((fs::temp_directory_path() / "millrace-model-XXXXXX").string()) {
    if (mkdtemp(path_.data()) != nullptr) return;
    const int why = errno;
    throw failure(error(kind_of(why), "a temporary folder for the model cannot be made")
                      .at(path_)
                      .cause(why)
                      .hint("set TMPDIR to another folder"));
  }
  ~temporary_folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Compiled programs are linked to libtorch.so, which is next to the library of this function's
// torch and loads nothing more.
void load_torch_by_name() {
  Dl_info about{};
  if (dladdr(reinterpret_cast<const void*>(&torch::cuda::is_available), &about) == 0) return;
  const auto folder = fs::path(about.dli_fname).parent_path();
  dlopen((folder / "libtorch.so").c_str(), RTLD_LAZY | RTLD_GLOBAL);
}

std::string text_of(const std::exception& e) {
  const auto* told = dynamic_cast<const c10::Error*>(&e);
  const std::string why = told != nullptr ? told->what_without_backtrace() : e.what();
  return printable(why.substr(0, why.find('\n')));
}

}  // namespace

struct compiled_program::impl {
  std::unique_ptr<AOTIModelContainerRunner> runner;
  std::vector<std::string> inner;  // names within the program
  std::vector<std::string> outer;  // the same tensors' names in the exported module
  // The program refers to these very objects.
  std::unordered_map<std::string, at::Tensor> used;
};

compiled_program::compiled_program(const std::map<std::string, std::string>& files,
                                   const std::string& device, const std::string& where)
    : impl_(std::make_unique<impl>()) {
  const auto& makers = torch::inductor::getAOTIModelRunnerRegistry();
  const auto maker = makers.find(device);
  if (maker == makers.end()) {
    throw failure(error(errc::unsupported, "this torch runs no compiled models on " + device));
  }
  load_torch_by_name();
  const temporary_folder folder;
  std::string library;
  for (const auto& [each, content] : files) {
    write_whole_file(folder / each, content);
    if (each.ends_with(".so")) library = folder / each;
  }
  try {
    impl_->runner = maker->second(library, 1, device, folder / "", /*run_single_threaded=*/false);
    for (auto& [inner, outer] : impl_->runner->getConstantNamesToOriginalFQNs()) {
      impl_->inner.push_back(inner);
      impl_->outer.push_back(outer);
    }
  } catch (const std::exception& e) {
    throw failure(error(errc::bad_state, "the model's programs cannot be loaded: " + text_of(e))
                      .at(where)
                      .hint("export it again; if files in the folder for temporary ones may not be "
                            "executed, set TMPDIR to another"));
  }
}

compiled_program::~compiled_program() = default;

const std::vector<std::string>& compiled_program::tensors() const {
  return impl_->outer;
}

void compiled_program::use(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == impl_->inner.size(), "as many tensors as the program has");
  std::unordered_map<std::string, at::Tensor> by_name;
  for (std::size_t i = 0; i < tensors.size(); ++i) by_name[impl_->inner[i]] = tensors[i].detach();
  impl_->runner->update_constant_buffer(by_name, /*use_inactive=*/false,
                                        /*validate_full_updates=*/true, /*user_managed=*/true);
  impl_->used.swap(by_name);  // keeps the objects where they are
}

std::vector<at::Tensor> compiled_program::run(std::vector<at::Tensor> inputs) {
  const torch::NoGradGuard no_grad;
  return impl_->runner->boxed_run(std::move(inputs));
}

}  // namespace millrace
