#pragma once

#include <functional>
#include <map>
#include <string>

namespace millrace {

// This process's place in the job, as its launcher says it.
struct job_place {
  int rank = 0;        // in [0, world_size)
  int world_size = 1;  // processes of the job
  // Number on this host, which chooses the GPU. If the environment does not set it: the rank, or 0
  // for launchers of one process on each host.
  int local_rank = 0;
  std::string launcher = {};                 // "torchrun", "Slurm", ...; empty: none, one process
  std::string master_address = "127.0.0.1";  // host of rank 0; empty: not set
  int master_port = 29500;                   // of rank 0; 0: not set
  // The launcher's identifier of the job ("1234.0"), which distinguishes jobs on the same hosts.
  // Empty: the launcher gives none.
  std::string job = {};
  bool agent_serves_store = false;  // torchrun's agent serves the store
  std::string remark = {};          // on variables that do not count, for the log; empty: none
  int attempt = 0;                  // restarts of the job's ranks so far, as their launcher counts
  // Whether a variable gives the number on this host, rather than the rank in its place.
  bool is_numbered_on_host = false;
  // How the launcher starts ranks, for errors about missing ones: "by srun; ...". Empty: nothing to
  // add.
  std::string how_to_start = {};

  // The variables of an environment, by their names.
  using variables = std::map<std::string, std::string, std::less<>>;

  // The place that an environment names: by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
  // MASTER_PORT, which torchrun and others set, or by the variables of the first launcher of
  // docs/scale.md that are set; without any, rank 0 of 1. MASTER_ADDR and MASTER_PORT win over
  // what a launcher says of them. A variable that is empty counts as not set. Throws `failure`
  // (usage) for values that make no sense, and if only one of rank and world size is said. Any
  // thread.
  // `per_host`: the processes that this one stands for, where a launcher starts one on each host;
  // it then gives that process's place among the hosts.
  static job_place from(const variables& environment, int per_host = 1);
  // The same for the environment of this process.
  static job_place from_environment();
};

// "rank 3 of 8, by Slurm; rank 0 is at node1:15042"; "one process" without a launcher.
std::string text_of(const job_place& place);

// Whether the environment gives a rank other than 0, even if the rest of it is invalid: for errors
// that are reported before the place is known. Never throws.
bool is_other_rank(const job_place::variables& environment);

// The variables of this process.
job_place::variables variables_of_process();

}  // namespace millrace
