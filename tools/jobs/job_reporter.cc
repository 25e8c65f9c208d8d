#include "tools/jobs/job_reporter.h"

#include <mutex>
#include <utility>

#include "tools/jobs/job_progress.h"

namespace millrace {

job_reporter::job_reporter(job_progress* to, std::function<std::uint64_t()> bytes) : to_(to) {
  if (to_ == nullptr) return;
  const std::scoped_lock lock(to_->mutex_);
  to_->bytes_ = 0;
  to_->shards_ = 0;
  to_->look_ = std::move(bytes);
}

job_reporter::~job_reporter() {
  if (to_ == nullptr) return;
  const std::scoped_lock lock(to_->mutex_);
  const auto look = std::exchange(to_->look_, nullptr);
  if (!look) return;
  try {
    to_->bytes_ = look();
  } catch (const std::exception&) {
    return;  // the run has failed, and its error is on the way
  }
}

void job_reporter::add_bytes(std::uint64_t count) {
  if (to_ != nullptr) to_->bytes_ += count;
}

void job_reporter::add_shard() {
  if (to_ != nullptr) ++to_->shards_;
}

}  // namespace millrace
