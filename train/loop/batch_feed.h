#pragma once

#include <optional>
#include <stop_token>

#include "engine/base/error.h"
#include "pipeline/pixels/image.h"
#include "pipeline/run/engine.h"

namespace millrace {

// The batches of one rank. Errors of the data are kept in failed() instead of thrown, so that the
// rank can tell the others before it ends. One thread; refers to the loader.
class batch_feed {
 public:
  // Refers to `from`, whose waits a stop request ends.
  batch_feed(loader<host_batch>& from, std::stop_token stop);

  // nullopt at the end of an epoch, after a stop request, or if the data failed.
  std::optional<host_batch> next();
  // The error that ended the data; nullopt: none.
  const std::optional<error>& failed() const { return failed_; }
  // Seconds spent in next() since the last call of this function.
  double take_waited();

 private:
  loader<host_batch>& from_;
  std::stop_token stop_;
  std::optional<error> failed_;
  double waited_ = 0;
};

}  // namespace millrace
