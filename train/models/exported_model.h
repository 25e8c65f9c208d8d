#pragma once

#include <memory>
#include <string>

#include "train/models/exported_file.h"
#include "train/models/model.h"

namespace millrace {

// A PyTorch module that export_model.py compiled. Its parameters and buffers are ordinary tensors
// of the module's names, which the compiled programs use and change in place; they may be replaced
// (set_data) by others of the same shape and format. One thread.
class exported_model final : public model {
 public:
  // Loads the programs and the initial weights. Throws `failure`: as read_description(),
  // check_exported() for `terms`, and bad_state for programs that lack a parameter.
  exported_model(const std::string& file, const model_terms& terms);
  ~exported_model() override;

  // The scores in evaluation mode, also while is_training(); without gradients.
  torch::Tensor forward(torch::Tensor images) override;
  // Runs the training program: its gradients are kept, and backward() hands them out.
  scored_batch loss_of(torch::Tensor images, const loss_terms& terms) override;

 private:
  void register_tensors();
  void check_programs() const;

  struct impl;
  std::unique_ptr<impl> impl_;
};

// `file` as a model that --model names. Reads nothing yet.
known_model exported_in(const std::string& file);

}  // namespace millrace
