#include "tools/jobs/job_progress.h"

namespace millrace {

std::uint64_t job_progress::bytes() const {
  const std::scoped_lock lock(mutex_);
  return look_ ? look_() : bytes_.load();
}

}  // namespace millrace
