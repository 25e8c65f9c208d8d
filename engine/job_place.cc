#include "engine/job_place.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

#include "engine/result.h"

namespace millrace {
namespace {

// What a launcher tells the processes that it starts, by which variables.
struct launcher_variables {
  std::string_view name;
  std::string_view sign;        // set if and only if it has started this process
  std::string_view rank;        // of the process, or of its host
  std::string_view world_size;  // the number of those
  // Number on the host: the first of them that is set. None: one process on each host.
  std::array<std::string_view, 3> local_rank = {};
  // Ranks on this host, and the number of hosts: by either, all ranks may turn out to be here.
  std::string_view local_size = {};
  std::string_view host_count = {};
  std::string_view hosts = {};    // names of all hosts, rank 0's first
  std::string_view address = {};  // rank 0's host
  std::string_view port = {};
  std::string_view job = {};       // its number, of which the port is made
  std::string_view per_host = {};  // processes that are expected on each host
};

// The first whose sign is set counts. Launchers that start processes by another one's means come
// before that one: torchrun or mpirun within a Slurm job. Flux, PALS and Slurm may set PMI_RANK
// too, and Slurm's differ from it where MPICH's mpiexec starts its own helpers by srun.
constexpr std::array launchers{
    launcher_variables{.name = "torchrun",
                       .sign = "TORCHELASTIC_RUN_ID",
                       .rank = "RANK",
                       .world_size = "WORLD_SIZE",
                       .local_rank = {"LOCAL_RANK", "RANK"}},
    launcher_variables{.name = "RANK and WORLD_SIZE",
                       .sign = "RANK",
                       .rank = "RANK",
                       .world_size = "WORLD_SIZE",
                       .local_rank = {"LOCAL_RANK", "RANK"}},
    launcher_variables{.name = "Open MPI",
                       .sign = "OMPI_COMM_WORLD_RANK",
                       .rank = "OMPI_COMM_WORLD_RANK",
                       .world_size = "OMPI_COMM_WORLD_SIZE",
                       .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"},
                       .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE"},
    launcher_variables{.name = "Flux",
                       .sign = "FLUX_TASK_RANK",
                       .rank = "FLUX_TASK_RANK",
                       .world_size = "FLUX_JOB_SIZE",
                       .local_rank = {"FLUX_TASK_LOCAL_ID"},
                       .host_count = "FLUX_JOB_NNODES"},
    launcher_variables{.name = "PALS",
                       .sign = "PALS_RANKID",
                       .rank = "PALS_RANKID",
                       .world_size = "PMI_SIZE",
                       .local_rank = {"PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"},
                       .local_size = "PALS_LOCAL_SIZE"},
    launcher_variables{.name = "MPI",
                       .sign = "PMI_RANK",
                       .rank = "PMI_RANK",
                       .world_size = "PMI_SIZE",
                       .local_rank = {"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"},
                       .local_size = "MPI_LOCALNRANKS",
                       .host_count = "SLURM_STEP_NUM_NODES",
                       .hosts = "SLURM_STEP_NODELIST",
                       .job = "SLURM_JOB_ID"},
    launcher_variables{.name = "Slurm",
                       .sign = "SLURM_STEP_NUM_TASKS",
                       .rank = "SLURM_PROCID",
                       .world_size = "SLURM_STEP_NUM_TASKS",
                       .local_rank = {"SLURM_LOCALID"},
                       .host_count = "SLURM_STEP_NUM_NODES",
                       .hosts = "SLURM_STEP_NODELIST",
                       .job = "SLURM_JOB_ID"},
    launcher_variables{.name = "PMIx",
                       .sign = "PMIX_RANK",
                       .rank = "PMIX_RANK",
                       .world_size = "WORLD_SIZE",
                       .local_rank = {"LOCAL_RANK", "PMIX_RANK"}},
    launcher_variables{.name = "TrainJob",
                       .sign = "PET_NODE_RANK",
                       .rank = "PET_NODE_RANK",
                       .world_size = "PET_NNODES",
                       .address = "PET_MASTER_ADDR",
                       .port = "PET_MASTER_PORT",
                       .per_host = "PET_NPROC_PER_NODE"},
    launcher_variables{.name = "Kubernetes",
                       .sign = "JOB_COMPLETION_INDEX",
                       .rank = "JOB_COMPLETION_INDEX",
                       .world_size = "WORLD_SIZE"},
    launcher_variables{.name = "SkyPilot",
                       .sign = "SKYPILOT_NODE_RANK",
                       .rank = "SKYPILOT_NODE_RANK",
                       .world_size = "SKYPILOT_NUM_NODES",
                       .hosts = "SKYPILOT_NODE_IPS",
                       .per_host = "SKYPILOT_NUM_GPUS_PER_NODE"}};

using variables = job_place::variables;

// Nullptr if it is not set, or empty.
const std::string* find(const variables& environment, std::string_view name) {
  const auto found = environment.find(name);
  return found == environment.end() || found->second.empty() ? nullptr : &found->second;
}

const launcher_variables* launcher_of(const variables& environment) {
  const auto* const found = std::ranges::find_if(
      launchers, [&](const launcher_variables& l) { return find(environment, l.sign) != nullptr; });
  return found == launchers.end() ? nullptr : found;
}

std::optional<int> number(const variables& environment, std::string_view name, int least = 0,
                          int most = std::numeric_limits<int>::max()) {
  const std::string* text = find(environment, name);
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const auto [end, failed] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (failed != std::errc{} || end != text->data() + text->size()) {
    throw failure(error(errc::usage, fmt::format("{}='{}' is not a number", name, *text)));
  }
  if (value < least || value > most) {
    throw failure(error(errc::usage, fmt::format("{}={} is out of range", name, value))
                      .hint(fmt::format("set it to {} to {}", least, most)));
  }
  return value;
}

// The first host of "node[001-004,7],other", of "10.0.0.1\n10.0.0.2", or of a single name.
std::string first_host(std::string_view list) {
  std::string out;
  bool is_skipped = false;  // the rest of a bracket
  bool is_within = false;
  for (const char c : list) {
    if (!is_within && (c == ',' || c == '\n' || c == ' ')) break;
    if (c == '[' || c == ']') {
      is_within = c == '[';
      is_skipped = false;
    } else {
      is_skipped |= is_within && (c == '-' || c == ',');
      if (!is_skipped) out += c;
    }
  }
  return out;
}

// Fills in rank, world size and local rank.
void number_process(const variables& environment, const launcher_variables& by, job_place& place) {
  const auto rank = number(environment, by.rank);
  const auto world_size = number(environment, by.world_size, 1);
  if (!rank || !world_size) {
    const auto [set, missing] =
        rank ? std::pair(by.rank, by.world_size) : std::pair(by.sign, by.rank);
    throw failure(error(errc::usage, fmt::format("{} is set, but {} is not", set, missing))
                      .hint(fmt::format("both are needed: set {}, or unset {} to train alone",
                                        missing, set)));
  }
  if (*rank >= *world_size) {
    throw failure(error(errc::usage,
                        fmt::format("{}={} of {}={}", by.rank, *rank, by.world_size, *world_size))
                      .hint("ranks go from 0 to the world size minus one"));
  }
  place.rank = *rank;
  place.world_size = *world_size;
  for (const std::string_view name : by.local_rank) {
    if (const auto local = number(environment, name)) {
      place.local_rank = *local;
      break;
    }
  }
  // Words such as "auto" and "gpu" mean as many as there are GPUs.
  const std::string* per_host = find(environment, by.per_host);
  if (place.world_size > 1 && per_host != nullptr && *per_host != "1") {
    throw failure(error(errc::usage, fmt::format("{}={}, but this is the only process of its host",
                                                 by.per_host, *per_host))
                      .hint(fmt::format(
                          "start the ranks of each host by torchrun, or set {} to 1 where a host "
                          "has one GPU",
                          by.per_host)));
  }
}

// Fills in where rank 0 is.
void find_master(const variables& environment, const launcher_variables& by, job_place& place) {
  const bool are_all_here = place.world_size == 1 ||
                            number(environment, by.local_size) == place.world_size ||
                            number(environment, by.host_count) == 1;
  if (const std::string* address = find(environment, "MASTER_ADDR")) {
    place.master_address = *address;
  } else if (const std::string* its = are_all_here ? nullptr : find(environment, by.address)) {
    place.master_address = *its;
  } else if (const std::string* hosts = are_all_here ? nullptr : find(environment, by.hosts)) {
    place.master_address = first_host(*hosts);
  } else if (!are_all_here) {
    place.master_address.clear();
  }
  constexpr int most_port = 65535;
  if (const auto port = number(environment, "MASTER_PORT", 1, most_port)) {
    place.master_port = *port;
  } else if (const auto its = number(environment, by.port, 1, most_port)) {
    place.master_port = *its;
  } else if (const auto job = number(environment, by.job)) {
    constexpr int first_port = 15000;  // as PyTorch Lightning chooses it
    constexpr int ports = 10000;
    place.master_port = first_port + *job % ports;
  }
}

}  // namespace

job_place job_place::from(const variables& environment) {
  job_place place;
  place.attempt = number(environment, "TORCHELASTIC_RESTART_COUNT").value_or(0);
  const std::string* agent = find(environment, "TORCHELASTIC_USE_AGENT_STORE");
  place.agent_serves_store = agent != nullptr && *agent == "True";
  const launcher_variables* by = launcher_of(environment);
  if (by == nullptr) {
    if (number(environment, "WORLD_SIZE", 1).value_or(1) == 1) return place;
    throw failure(error(errc::usage, "WORLD_SIZE is above 1, but RANK is not set")
                      .hint("give each process its RANK, from 0 on, or launch by torchrun"));
  }
  place.launcher = by->name;
  number_process(environment, *by, place);
  find_master(environment, *by, place);
  return place;
}

job_place job_place::from_environment() {
  return from(variables_of_process());
}

std::string text_of(const job_place& place) {
  if (place.launcher.empty()) return "one process";
  const std::string text =
      fmt::format("rank {} of {}, by {}", place.rank, place.world_size, place.launcher);
  if (place.world_size == 1) return text;
  if (place.master_address.empty()) return text;
  return fmt::format("{}; rank 0 is at {}:{}", text, place.master_address, place.master_port);
}

bool is_other_rank(const variables& environment) {
  const launcher_variables* by = launcher_of(environment);
  const std::string* rank = by == nullptr ? nullptr : find(environment, by->rank);
  return rank != nullptr && *rank != "0";
}

variables variables_of_process() {
  variables out;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string_view all(*at);
    const std::size_t equals = all.find('=');
    if (equals == std::string_view::npos) continue;
    out.emplace(all.substr(0, equals), all.substr(equals + 1));
  }
  return out;
}

}  // namespace millrace
