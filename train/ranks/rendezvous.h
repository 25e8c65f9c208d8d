#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <string>

#include "engine/base/error.h"
#include "engine/host/job_place.h"

namespace c10d {
class Store;
}

namespace millrace {

// A rank's place, and what it waits for: notices and errors name it.
struct rendezvous_terms {
  job_place place;
  std::chrono::milliseconds timeout{300'000};  // for all ranks to come
  // When a notice says what is waited for.
  std::chrono::milliseconds patience{10'000};
  std::function<void(const std::string&)> note = {};  // of that notice; null: none
};

// Called by all processes of a job with the job's store: returns when each rank has come, so that
// all may connect to one another. A process that is started again while others still wait takes the
// place of the one before it, and of two with one rank the later one is taken. What an earlier
// attempt has left in the store is not used. Returns a name for this meeting, the same on all
// ranks, for keys that no other one uses. Throws `failure`: usage if this process is not one of the
// job's ranks, peer_lost, naming those that are missing, after `timeout`. Other exceptions are the
// store's.
std::string meet(c10d::Store& store, const rendezvous_terms& terms);

// The job's store, once meet() is over there: each key of it is of this meeting alone. Rank 0
// serves it at the address and port of its place, unless an agent does; others wait until somebody
// does, and begin again if that is a rank 0 of an earlier attempt, which ends. `is_reached` is
// called when the store is. Throws as meet() does.
c10::intrusive_ptr<c10d::Store> join_store(const rendezvous_terms& terms,
                                           const std::function<void()>& is_reached);

// The error of a rank that has not joined its job, and what to do. `why`: the first line counts.
error not_joined(const job_place& place, const std::string& why);

}  // namespace millrace
