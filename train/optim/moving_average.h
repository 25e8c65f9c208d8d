#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "train/models/safetensors.h"

namespace millrace {

// An exponential moving average of a model's parameters and running statistics, which begins as
// they are. Counters among the buffers are the model's own. One thread; shares the model's tensors.
class moving_average {
 public:
  // `decay`: the part of the average that each step keeps, 0 to 1. `net` is on its device.
  moving_average(const torch::nn::Module& net, double decay);
  ~moving_average();
  moving_average(const moving_average&) = delete;
  moving_average& operator=(const moving_average&) = delete;

  // Takes in the model's values after a step. The host does not wait for the device.
  void update();

  // Puts the average into the model, whose own values are kept until give_back().
  void lend();
  void give_back();

  // By name, as weights_of() the model. Not while it is lent.
  tensor_dict state() const;
  // The reverse; throws `failure` as load_weights() does.
  void load(const tensor_dict& state, const std::string& where);
  // Begins again from the model's values.
  void begin();

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace millrace
