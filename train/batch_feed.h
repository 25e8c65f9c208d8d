#pragma once

#include <optional>
#include <stop_token>

#include "engine/error.h"
#include "pipeline/engine.h"
#include "pipeline/images/image.h"

namespace millrace {

// The batches of one rank, which tell the others before it ends by an error. One thread; refers to
// the loader.
class batch_feed {
 public:
  batch_feed(loader<host_batch>& from, std::stop_token stop);

  // nullopt at the end of an epoch, where a stop request ended the wait, and where the data failed.
  std::optional<host_batch> next();
  // Why there are no more; none: they did not fail.
  const std::optional<error>& failed() const { return failed_; }
  // Seconds that the calls of next() took since this was last asked.
  double take_waited();

 private:
  loader<host_batch>& from_;
  std::stop_token stop_;
  std::optional<error> failed_;
  double waited_ = 0;
};

}  // namespace millrace
