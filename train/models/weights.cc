#include "train/models/weights.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cstring>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace millrace {
namespace {

// The name of the tensor that holds the text of an optimizer's state.
constexpr const char* torch_archive = "torch::optim::Optimizer";

std::string shape_of(const at::Tensor& t) {
  std::string out;
  for (const std::int64_t side : t.sizes()) {
    out += out.empty() ? std::to_string(side) : fmt::format(" x {}", side);
  }
  return out.empty() ? "a scalar" : out;
}

// Numbers of another precision are converted; whole numbers are not weights.
void check_kind(const std::string& name, const at::Tensor& in_file, const at::Tensor& in_model,
                const std::string& where) {
  if (in_file.is_floating_point() == in_model.is_floating_point()) return;
  throw failure(
      error(errc::bad_state,
            fmt::format("'{}' is of type {} in the file, and {} in the model", name,
                        toString(in_file.scalar_type()), toString(in_model.scalar_type())))
          .at(where)
          .hint("convert it, or check --model"));
}

}  // namespace

tensor_dict weights_of(const torch::nn::Module& m) {
  tensor_dict out;
  for (const auto& p : m.named_parameters()) out[p.key()] = p.value().detach();
  for (const auto& b : m.named_buffers()) out[b.key()] = b.value();
  return out;
}

bool is_finite(const at::Tensor& t) {
  return !t.is_floating_point() || torch::isfinite(t).all().item<bool>();
}

void check_tensor(const std::string& name, const at::Tensor& in_file, const at::Tensor& in_model,
                  const std::string& where) {
  if (in_file.sizes() != in_model.sizes()) {
    throw failure(error(errc::bad_state, fmt::format("'{}' is {} in the file, and {} in the model",
                                                     name, shape_of(in_file), shape_of(in_model)))
                      .at(where)
                      .hint("check --model, --classes and --size"));
  }
  check_finite(name, in_file, where);
}

void check_finite(const std::string& name, const at::Tensor& in_file, const std::string& where) {
  if (is_finite(in_file)) return;
  throw failure(
      error(errc::bad_state,
            fmt::format("'{}' is not finite: the training that saved it had diverged", name))
          .at(where)
          .hint("give an older checkpoint (--resume PATH --overwrite), or start again with a lower "
                "--lr"));
}

void load_weights(torch::nn::Module& m, const tensor_dict& weights, const std::string& where) {
  const torch::NoGradGuard no_grad;
  // All are checked before the first is copied.
  std::vector<std::pair<at::Tensor, const at::Tensor*>> fitting;
  std::set<std::string> known;
  const auto check = [&](const auto& named) {
    for (const auto& entry : named) {
      known.insert(entry.key());
      const auto found = weights.find(entry.key());
      if (found == weights.end()) {
        throw failure(
            error(errc::bad_state, fmt::format("the file lacks '{}', which is {} in the model",
                                               entry.key(), shape_of(entry.value())))
                .at(where)
                .hint("check --model"));
      }
      check_tensor(entry.key(), found->second, entry.value(), where);
      check_kind(entry.key(), found->second, entry.value(), where);
      fitting.emplace_back(entry.value(), &found->second);
    }
  };
  check(m.named_parameters());
  check(m.named_buffers());
  for (const auto& [name, tensor] : weights) {
    if (known.contains(name)) continue;
    throw failure(
        error(errc::bad_state,
              fmt::format("the model lacks '{}', which is {} in the file", name, shape_of(tensor)))
            .at(where)
            .hint("check --model, or leave it out of the file"));
  }
  for (auto& [in_model, in_file] : fitting) in_model.copy_(*in_file);
}

tensor_dict state_of(const torch::optim::Optimizer& optimizer) {
  std::ostringstream out;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(out);
  const std::string text = std::move(out).str();
  auto bytes = torch::empty({std::ssize(text)}, torch::kUInt8);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return {{torch_archive, bytes}};
}

void load_state(torch::optim::Optimizer& optimizer, const tensor_dict& state,
                const std::string& where) {
  const auto refuse = [&](const std::string& what) {
    throw failure(error(errc::bad_state, what)
                      .at(where)
                      .hint("resume with the optimizer and the model of the run that saved it"));
  };
  const auto found = state.find(torch_archive);
  if (found == state.end()) return refuse("the file has no state of such an optimizer");
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(static_cast<const char*>(found->second.data_ptr()),
                      static_cast<std::size_t>(found->second.numel()));
    optimizer.load(archive);
  } catch (const c10::Error& e) {
    refuse(e.what_without_backtrace());
  }
}

}  // namespace millrace
