#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/support/simulator.h"

namespace millrace::testing {

// A simulated job: where it reads from, what it does, how often it is interrupted.
struct course {
  enum class storage : std::uint8_t { file, http, cached, pipe };
  storage from = storage::file;
  bool decodes = false;  // images, in batches; otherwise samples of text
  int ranks = 1;         // each is a process; 1, 2 or 4
  int ranks_after = 1;   // after the job was stopped, saved and resumed
  int stop_after = -1;   // items of each rank; negative: never
  // Reads and writes in pieces, EINTR; a server that truncates, resets, stalls and returns 503.
  bool troubled = false;
  int kills = 0;       // of processes, at any time; each is resumed from its last state
  bool crash = false;  // at the stop the host loses power
  // Samples pass through stages that hold some (map on threads, batched, bucketed, prefetch), and
  // each process is saved after each item. The output stays the same.
  bool is_held = false;
  // At the stop, the states of the ranks are written as a checkpoint, from which the job is
  // resumed.
  bool is_checkpointed = false;
  // After some items each process reads all shards once more, with another loader of its engine.
  bool validates = false;
  // Ends what makes the job fail. Each process is then saved, closed and resumed: from that state
  // or, if there was no memory to save it, from its last one. Null: the job ends.
  std::function<void()> mend;
};

// The result of a job.
struct ending {
  std::optional<errc> failed;  // what left the library first; bad_alloc is no_memory
  std::string why;
  bool is_resumed = false;   // after that failure
  std::string failed_again;  // why the resumed job failed; empty: it did not
  // Each sample yielded, in the order of the job: place, key and a fingerprint of its content.
  std::vector<std::string> given;
  std::string ledger_wrong;  // empty: it adds up
  std::size_t descriptors = 0;
  int commands = 0;  // left running
  std::uint64_t trace = 0;
};

// The course drawn from a seed.
course course_of(std::uint64_t seed, bool with_cache);
std::string text_of(const course& c);

// Runs the job in `sim`. The samples are the same for every storage, trouble, number of ranks and
// order of events: expected().
ending run(simulator& sim, const course& c);
// The samples of an undisturbed job. Computed once.
const std::vector<std::string>& expected(bool decodes);

}  // namespace millrace::testing
