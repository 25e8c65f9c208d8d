#include "tools/write/shard_rules.h"

#include "engine/files/file_system.h"

namespace millrace {

bool is_device_path(const std::string& path) {
  struct stat there{};
  return host_files().stat(path, there) == 0 && !S_ISREG(there.st_mode);
}

}  // namespace millrace
