#pragma once

#include <cstdint>
#include <string>

#include "cli/command.h"

namespace millrace::cli {

struct index_sample_arguments {
  std::string file;
  std::int64_t index = 0;
  std::string field;
  bool raw = false;
  std::size_t width = 250;
  bool json = false;
};

// `millrace index sample`: prints one sample of an index, by its number. Returns the exit code;
// throws `failure`.
int show_index_sample(const environment& e, const index_sample_arguments& a);

}  // namespace millrace::cli
