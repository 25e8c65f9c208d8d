#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "train/models/safetensors.h"

namespace millrace {

// A file that export_model.py next to this one makes of a PyTorch module: two programs that
// Inductor compiled, "training" and "evaluation", the weights, and this description of them.
struct exported_description {
  std::string name;      // such as "my_model.py:make_model"
  std::string identity;  // of what it computes: differs when the model does, not when weights do
  std::string torch;     // release that made it: "2.11.0"
  std::string device;    // that it is compiled for: "cpu" or "cuda"
  std::vector<std::string> cpu_features;  // that the compiled code may use, as Linux names them
  bool amp = false;                       // whether it computes in bf16
  int size = 0;                           // side of the images, in pixels
  int classes = 0;
  std::int64_t least_images = 0;  // of a batch that the programs take
  std::int64_t most_images = 0;   // the same
  // The outputs of "training" are loss, scores, and the gradients of these parameters; others are
  // frozen.
  std::vector<std::string> gradients;
  std::vector<std::string> parameters;      // in the order of the module's
  std::vector<std::string> buffers;         // that are saved
  std::vector<std::string> counters;        // those buffers that count the steps of training
  std::map<std::string, std::string> sums;  // SHA-256 of the other records of the file
};

// Whether the value of --model is the name of such a file: it ends in .pt2, or contains a slash.
bool names_exported_model(const std::string& model);

// Reads the description. Throws `failure`: not_found or another failure of reading, bad_state for a
// file that is damaged or none that export_model.py made.
exported_description read_description(const std::string& file);
// Reads the weights: parameters, buffers, and the constants of the programs. Throws as
// read_description() does, also if they are not those that were described.
tensor_dict read_exported_weights(const exported_description& model, const std::string& file);

// The files of the program "training" or "evaluation": a library (.so), and those that it reads
// when it is loaded, by their names. Throws as read_exported_weights() does.
std::map<std::string, std::string> read_program(const exported_description& model,
                                                const std::string& file, const std::string& name);

// Throws `failure` if a run cannot train it, naming what differs and what to do: usage for the
// device ("cpu" or "cuda"), size, classes, or fewer `images` at a time than it takes; unsupported
// for another torch, or a processor that lacks what the code was compiled for.
void check_exported(const exported_description& model, const std::string& file,
                    const std::string& device, int size, int classes, int images);

}  // namespace millrace
