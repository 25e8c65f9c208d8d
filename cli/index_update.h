#pragma once

#include <string>

#include "cli/command.h"

namespace millrace::cli {

struct index_update_arguments {
  std::string file;
  std::string name;
  std::string info;
  std::string base;
  std::string folder;
  bool no_folder = false;
  bool rebase = false;
  bool keep = false;
  bool no_keep = false;

  void add_to(CLI::App& app);
};

// `millrace index update`: changes an index, keeps the previous one as FILE.bak, and reorders its
// sidecar of offsets like its shards. Returns the exit code; throws `failure`.
int update_index(const environment& e, const index_update_arguments& a, bool json);

}  // namespace millrace::cli
