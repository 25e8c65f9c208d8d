#include "train/models/exported_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/torch.h>

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "train/models/compiled_program.h"

namespace millrace {
namespace {

using torch::autograd::variable_list;

// The module is the part of this name of the exported one.
constexpr std::string_view module_prefix = "model.";
constexpr const char* how_to_repair = "make it again with export_model.py";

[[noreturn]] void refuse_lack(const std::string& file, const std::string& name) {
  throw failure(error(errc::bad_state, fmt::format("the model lacks '{}'", printable(name)))
                    .at(file)
                    .hint(how_to_repair));
}

bool is_parameter(const exported_description& d, const std::string& name) {
  return std::ranges::find(d.parameters, name) != d.parameters.end();
}

// The module that has the tensor `name`, such as "layers.0.weight", made if need be, and the
// tensor's name in it.
std::pair<torch::nn::Module*, std::string> place_of(torch::nn::Module& root,
                                                    const std::string& name) {
  torch::nn::Module* parent = &root;
  std::size_t begin = 0;
  for (std::size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', begin)) {
    const std::string child = name.substr(begin, dot - begin);
    const auto children = parent->named_children();
    const auto* known = children.find(child);
    parent = known != nullptr
                 ? known->get()
                 : parent->register_module(child, std::make_shared<torch::nn::Module>()).get();
    begin = dot + 1;
  }
  return {parent, name.substr(begin)};
}

// The format in memory of a parameter, which export_model.py sets as well.
at::MemoryFormat format_of(const at::Tensor& parameter) {
  return parameter.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

// The format of the example that the programs were compiled for: they take it for granted.
at::Tensor in_input_format(const at::Tensor& images) {
  const auto n = images.size(0);
  const auto c = images.size(1);
  const auto h = images.size(2);
  const auto w = images.size(3);
  const std::vector<std::int64_t> strides{h * w * c, 1, w * c, c};
  if (images.strides() == strides && images.scalar_type() == at::kFloat) return images;
  return at::empty_strided({n, c, h, w}, strides, images.options().dtype(at::kFloat)).copy_(images);
}

// The origin of a loss whose gradients were computed together with it: backward() hands them out.
struct computed_before final : torch::autograd::Node {
  variable_list apply(variable_list&& of_loss) override {
    TORCH_CHECK(!gradients.empty(), "a loss of an exported model has one backward()");
    const at::Tensor factor = std::move(of_loss.front());
    // The host does not wait for a GPU to learn it.
    if (factor.is_cuda() || factor.item<double>() != 1) at::_foreach_mul_(gradients, factor);
    return std::exchange(gradients, {});  // each becomes a parameter's without a copy
  }

  std::vector<at::Tensor> gradients;
};

}  // namespace

struct exported_model::impl {
  // A compiled program, and what it works on.
  struct part {
    // `own`: the tensors of the model by name, with the program's constants as PROGRAM:NAME.
    part(const exported_description& model, const std::string& file, const std::string& name,
         const tensor_dict& own)
        : program(read_program(model, file, name), model.device, file) {
      for (const std::string& each : program.tensors()) {
        const bool is_of_module = each.starts_with(module_prefix);
        const std::string short_name = is_of_module ? each.substr(module_prefix.size()) : each;
        names.push_back(own.contains(short_name) ? short_name : name + ":" + short_name);
        if (!own.contains(names.back())) refuse_lack(file, short_name);
      }
    }

    compiled_program program;
    std::vector<std::string> names;    // of its tensors, in the model
    std::vector<const void*> bound{};  // where their data were at last
  };

  impl(const std::string& from, exported_description about, const tensor_dict& own)
      : file(from),
        description(std::move(about)),
        training(description, file, "training", own),
        evaluation(description, file, "evaluation", own) {}

  // Gives a program the tensors as they are now: they may have been moved since.
  void bind(part& to) {
    std::vector<const void*> now;
    for (const std::string& name : to.names) {
      at::Tensor& own = tensors.at(name);
      // Constants are not the module's, which moves its own.
      if (own.device() != trained.front().device()) own = own.to(trained.front().device());
      now.push_back(own.const_data_ptr());
    }
    if (now == to.bound) return;
    std::vector<at::Tensor> all;
    for (const std::string& name : to.names) {
      const at::Tensor& own = tensors.at(name);
      TORCH_CHECK(own.is_contiguous(is_parameter(description, name) ? format_of(own)
                                                                    : at::MemoryFormat::Contiguous),
                  name, " is not in the format of the exported model");
      all.push_back(own);
    }
    to.program.use(all);
    to.bound = std::move(now);
  }

  void check_images(const at::Tensor& images, std::int64_t least) const {
    const auto side = description.size;
    const bool fits = images.dim() == 4 && images.size(1) == 3 && images.size(2) == side &&
                      images.size(3) == side && images.size(0) >= least &&
                      images.size(0) <= description.most_images;
    if (fits) return;
    throw failure(
        error(errc::usage, fmt::format("the model takes {} to {} images of 3 x {} x {} at a time, "
                                       "not {}",
                                       least, description.most_images, side, side,
                                       fmt::join(images.sizes(), " x ")))
            .at(file));
  }

  std::string file;
  exported_description description;
  part training;
  part evaluation;
  std::unordered_map<std::string, at::Tensor> tensors;  // all that the programs use, by name
  std::vector<at::Tensor> trained;                      // parameters, as `gradients` has them
  std::vector<at::Tensor> counters;
};

exported_model::exported_model(const std::string& file, const model_terms& terms) {
  exported_description about = read_description(file);
  check_exported(about, file, about.device, terms.image_size, terms.classes,
                 static_cast<int>(about.least_images));
  tensor_dict weights = read_exported_weights(about, file);
  impl_ = std::make_unique<impl>(file, std::move(about), weights);
  for (auto& [name, tensor] : weights) {
    impl_->tensors[name] =
        is_parameter(impl_->description, name) ? tensor.contiguous(format_of(tensor)) : tensor;
  }
  register_tensors();
  check_programs();
}

exported_model::~exported_model() = default;

// The tensors by the names of the module, in its order.
void exported_model::register_tensors() {
  const exported_description& d = impl_->description;
  const auto own = [&](const std::string& name) -> at::Tensor& {
    const auto found = impl_->tensors.find(name);
    if (found == impl_->tensors.end()) refuse_lack(impl_->file, name);
    return found->second;
  };
  for (const std::string& name : d.parameters) {
    const auto [parent, last] = place_of(*this, name);
    const bool is_trained = std::ranges::find(d.gradients, name) != d.gradients.end();
    own(name) = parent->register_parameter(last, own(name), is_trained);
  }
  for (const std::string& name : d.buffers) {
    const auto [parent, last] = place_of(*this, name);
    own(name) = parent->register_buffer(last, own(name));
  }
  for (const std::string& name : d.gradients) impl_->trained.push_back(own(name));
  for (const std::string& name : d.counters) {
    impl_->counters.push_back(own(name));
    // Compiled, a scalar is a constant: the program would set it to 1 in each step.
    own(name) = own(name).clone();
  }
}

// A parameter that the compiler made a constant would never be trained.
void exported_model::check_programs() const {
  const auto& used = impl_->training.names;
  for (const std::string& name : impl_->description.gradients) {
    if (std::ranges::find(used, name) == used.end()) refuse_lack(impl_->file, name);
  }
}

torch::Tensor exported_model::forward(torch::Tensor images) {
  const torch::NoGradGuard no_grad;
  impl_->check_images(images, 1);
  const std::int64_t count = images.size(0);
  const std::int64_t least = impl_->description.least_images;
  // In evaluation an image's scores are those of the image alone.
  if (count < least) images = images.repeat({(least + count - 1) / count, 1, 1, 1});
  impl_->bind(impl_->evaluation);
  return impl_->evaluation.program.run({in_input_format(images)}).at(0).narrow(0, 0, count);
}

scored_batch exported_model::loss_of(torch::Tensor images, const loss_terms& terms) {
  impl_->check_images(images, impl_->description.least_images);
  scored_batch out;
  const std::shared_ptr<computed_before> from(new computed_before, torch::autograd::deleteNode);
  {
    const torch::NoGradGuard no_grad;
    impl_->bind(impl_->training);
    const bool is_mixed = terms.other_labels.defined();
    const auto scalar = [&](double value) {
      return at::full({}, value, images.options().dtype(at::kFloat));
    };
    auto outputs = impl_->training.program.run(
        {in_input_format(images), terms.labels, is_mixed ? terms.other_labels : terms.labels,
         scalar(is_mixed ? terms.share : 1), scalar(terms.smoothing)});
    TORCH_CHECK(outputs.size() == impl_->trained.size() + 2, "other outputs than were exported");
    out.loss = std::move(outputs[0]);
    out.scores = std::move(outputs[1]);
    from->gradients.assign(std::make_move_iterator(outputs.begin() + 2),
                           std::make_move_iterator(outputs.end()));
    for (at::Tensor& counter : impl_->counters) counter.add_(1);
  }
  from->set_next_edges(torch::autograd::collect_next_edges(impl_->trained));
  torch::autograd::set_history(out.loss, from);
  return out;
}

known_model exported_in(const std::string& file) {
  return {.name = file,
          .make =
              [file](const model_terms& terms) {
                return std::make_shared<exported_model>(file, terms);
              },
          .takes_any_size = false};
}

}  // namespace millrace
