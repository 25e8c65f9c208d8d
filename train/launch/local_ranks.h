#pragma once

#include <string>
#include <vector>

#include "engine/host/job_place.h"

namespace millrace {

// Ranks of this host that a process starts and watches.
struct launch_options {
  int ranks = 1;     // on this host
  int restarts = 0;  // of all its ranks, after one has failed
  // Words that are added to the command line of restarted ranks, once an attempt has written files
  // but saved nothing: so that they replace those.
  std::vector<std::string> to_begin_again = {};
  // The same once an attempt has saved: so that they continue from the newest checkpoint.
  std::vector<std::string> to_resume = {};
};

// Starts this program as `ranks` ranks, and waits for them. `words`: their command line, with the
// program's name. The job has as many such processes as `host` has ranks, one on each host. Signals
// of this process go to its ranks: it ends when they have, and starts none again. If a rank fails,
// the others are given time to notice it, and are then ended; all are started again if another
// attempt may succeed: after a rank that was killed, lost a peer, or could not read once its
// training had begun. Returns the exit code: 0, or that of the rank that failed first, 128 + N if
// signal N killed it or asked for the end. Throws `failure` if a rank cannot be started. Call it
// before any other thread exists.
int run_local_ranks(const launch_options& options, const std::vector<std::string>& words,
                    const job_place& host);

}  // namespace millrace
