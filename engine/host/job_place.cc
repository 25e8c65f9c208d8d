#include "engine/host/job_place.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <optional>
#include <string_view>

#include "engine/base/fingerprint.h"
#include "engine/base/parsed_number.h"
#include "engine/base/result.h"

namespace millrace {
namespace {

// The variables by which a launcher numbers the processes that it starts.
struct launcher_variables {
  std::string_view name;
  std::string_view sign;         // set by it, and passed on to whatever its processes start
  std::string_view of_job = {};  // where this is 1, and the sign is not, the sign is another job's
  std::string_view rank;         // of the process, or of its host
  std::string_view world_size;   // the number of those
  // Number on the host: the first of them that is set. None: one process on each host.
  std::array<std::string_view, 2> local_rank = {};
  // Ranks on this host or, without it, the number of hosts: all ranks may turn out to be here.
  std::string_view local_size = {};
  std::string_view host_count = {};
  std::string_view hosts = {};  // names of all hosts, rank 0's first unless it is sorted
  // The list is sorted, and not in the ranks' order, where the first begins with "arbitrary" or the
  // second is set.
  std::string_view distribution = {};
  std::string_view het_size = {};
  std::string_view address = {};  // rank 0's host
  std::string_view port = {};
  std::array<std::string_view, 3> job = {};  // what distinguishes its jobs, on one host too
  bool has_hosts_of_its_own = false;         // no two jobs share one: any port will do
  std::string_view per_host = {};            // processes that are expected on each host
  // A launcher whose variables may be of a step around this one's, which are always its own.
  std::string_view wins_over = {};
  // How it starts ranks: job_place::how_to_start.
  std::string_view how_to_start = {};
};

// The first whose sign is set counts. Launchers that start processes by another one's means come
// before that one: torchrun or mpirun within a Slurm job. MPI is mpiexec of MPICH and Intel: where
// it starts its helpers by srun, their variables of Slurm are passed on to its ranks. Others may
// set PMI_RANK too.
constexpr std::array launchers{
    launcher_variables{.name = "torchrun",
                       .sign = "TORCHELASTIC_RUN_ID",
                       .rank = "RANK",
                       .world_size = "WORLD_SIZE",
                       .local_rank = {"LOCAL_RANK", "RANK"},
                       .job = {"TORCHELASTIC_RUN_ID"},
                       .has_hosts_of_its_own = true},
    launcher_variables{.name = "millrace-train",
                       .sign = "LOCAL_STARTER",  // of one that starts ranks itself
                       .rank = "RANK",
                       .world_size = "WORLD_SIZE",
                       .local_rank = {"LOCAL_RANK", "RANK"},
                       .job = {"LOCAL_STARTER_JOB"}},
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
                       .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
                       .job = {"PMIX_NAMESPACE", "OMPI_MCA_orte_precondition_transports"}},
    launcher_variables{.name = "Flux",
                       .sign = "FLUX_TASK_RANK",
                       .rank = "FLUX_TASK_RANK",
                       .world_size = "FLUX_JOB_SIZE",
                       .local_rank = {"FLUX_TASK_LOCAL_ID"},
                       .host_count = "FLUX_JOB_NNODES",
                       .job = {"FLUX_JOB_ID"}},
    launcher_variables{.name = "PALS",
                       .sign = "PALS_RANKID",
                       .rank = "PALS_RANKID",
                       .world_size = "PMI_SIZE",
                       .local_rank = {"PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"},
                       .local_size = "PALS_LOCAL_SIZE",
                       .job = {"PALS_APID"}},
    launcher_variables{.name = "MPI",
                       .sign = "MPI_LOCALRANKID",
                       .rank = "PMI_RANK",
                       .world_size = "PMI_SIZE",
                       .local_rank = {"MPI_LOCALRANKID"},
                       .local_size = "MPI_LOCALNRANKS"},
    launcher_variables{.name = "Slurm",
                       .sign = "SLURM_STEP_NUM_TASKS",
                       .of_job = "SLURM_NTASKS",  // of a job that was submitted by a task
                       .rank = "SLURM_PROCID",
                       .world_size = "SLURM_STEP_NUM_TASKS",
                       .local_rank = {"SLURM_LOCALID"},
                       .host_count = "SLURM_STEP_NUM_NODES",
                       .hosts = "SLURM_STEP_NODELIST",
                       .distribution = "SLURM_DISTRIBUTION",
                       .het_size = "SLURM_HET_SIZE",
                       .job = {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_CLUSTER_NAME"},
                       .wins_over = "PMI",
                       .how_to_start = "by srun; a process that srun has not started must unset "
                                       "SLURM_STEP_NUM_TASKS, which is passed on to it"},
    launcher_variables{.name = "PMI",
                       .sign = "PMI_RANK",
                       .rank = "PMI_RANK",
                       .world_size = "PMI_SIZE",
                       .local_rank = {"PMI_LOCAL_RANK"},
                       .local_size = "PMI_LOCAL_SIZE",
                       .job = {"PMI_JOBID"}},
    launcher_variables{.name = "PMIx",
                       .sign = "PMIX_RANK",
                       .rank = "PMIX_RANK",
                       .world_size = "WORLD_SIZE",
                       .local_rank = {"LOCAL_RANK", "PMIX_RANK"},
                       .job = {"PMIX_NAMESPACE"}},
    launcher_variables{.name = "TrainJob",
                       .sign = "PET_NODE_RANK",
                       .rank = "PET_NODE_RANK",
                       .world_size = "PET_NNODES",
                       .address = "PET_MASTER_ADDR",
                       .port = "PET_MASTER_PORT",
                       .has_hosts_of_its_own = true,
                       .per_host = "PET_NPROC_PER_NODE"},
    launcher_variables{.name = "Kubernetes",
                       .sign = "JOB_COMPLETION_INDEX",
                       .rank = "JOB_COMPLETION_INDEX",
                       .world_size = "WORLD_SIZE",
                       .has_hosts_of_its_own = true},
    launcher_variables{.name = "SkyPilot",
                       .sign = "SKYPILOT_NODE_RANK",
                       .rank = "SKYPILOT_NODE_RANK",
                       .world_size = "SKYPILOT_NUM_NODES",
                       .hosts = "SKYPILOT_NODE_IPS",
                       .job = {"SKYPILOT_TASK_ID"},
                       .per_host = "SKYPILOT_NUM_GPUS_PER_NODE"}};

using variables = job_place::variables;

// Nullptr if it is not set, or empty.
const std::string* find(const variables& environment, std::string_view name) {
  const auto found = name.empty() ? environment.end() : environment.find(name);
  return found == environment.end() || found->second.empty() ? nullptr : &found->second;
}

bool is_sign_set(const variables& environment, const launcher_variables& l) {
  const std::string* sign = find(environment, l.sign);
  const std::string* of_job = find(environment, l.of_job);
  const bool is_another_jobs =
      of_job != nullptr && *of_job == "1" && sign != nullptr && *sign != "1";
  return sign != nullptr && !is_another_jobs;
}

const launcher_variables* launcher_of(const variables& environment) {
  const auto* const found = std::ranges::find_if(
      launchers, [&](const launcher_variables& l) { return is_sign_set(environment, l); });
  return found == launchers.end() ? nullptr : found;
}

std::optional<int> number(const variables& environment, std::string_view name, int least = 0,
                          int most = std::numeric_limits<int>::max()) {
  const std::string* text = find(environment, name);
  if (text == nullptr) return std::nullopt;
  const auto value = parsed_number<int>(*text);
  if (!value) {
    throw failure(error(errc::usage, fmt::format("{}='{}' is not a number", name, *text)));
  }
  if (*value < least || *value > most) {
    throw failure(error(errc::usage, fmt::format("{}={} is out of range", name, *value))
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
    if (!is_within && (c == ',' || std::isspace(static_cast<unsigned char>(c)) != 0)) {
      if (out.empty()) continue;
      break;
    }
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

// False for a malformed value, which another launcher than the one that counts may have: torchrun
// takes "1:4" for PET_NNODES.
bool is_above_1(std::string_view text) {
  const bool is_number =
      std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
  return is_number && text.find_first_not_of('0') != text.npos &&
         text.substr(text.find_first_not_of('0')) != "1";
}

// Variables of a launcher are passed on: a process that srun has started from an mpiexec of one
// process would be alone, as all others of its step. Throws `failure` (usage) if another launcher
// says that there are several. Values set by hand win, with a remark; so do those of a Slurm step,
// which are always its own, over PMI's, which may be of the step around it.
void check_started_by(const variables& environment, const launcher_variables& by,
                      job_place& place) {
  if (place.world_size > 1) return;
  for (const launcher_variables& other : launchers) {
    if (other.sign == by.sign || other.world_size == by.world_size) continue;
    if (!is_sign_set(environment, other) || find(environment, other.rank) == nullptr) continue;
    const std::string* several = find(environment, other.world_size);
    if (several == nullptr || !is_above_1(*several)) continue;
    const std::string what = fmt::format("{}={}, but {}={}, of {}", by.world_size, place.world_size,
                                         other.world_size, *several, other.name);
    if (by.rank == "RANK" || by.wins_over == other.name) {
      place.remark = what + ": it trains alone";
      return;
    }
    throw failure(error(errc::usage, what)
                      .hint("set RANK=0 and WORLD_SIZE=1 to train alone, or RANK, WORLD_SIZE, "
                            "MASTER_ADDR and MASTER_PORT for one of several"));
  }
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
  // A world size of 1 that the user has set by hand, beside numbers that others set: alone.
  const bool is_alone = *world_size == 1 && by.world_size == "WORLD_SIZE" && by.rank != "RANK";
  if (*rank >= *world_size && !is_alone) {
    throw failure(error(errc::usage,
                        fmt::format("{}={} of {}={}", by.rank, *rank, by.world_size, *world_size))
                      .hint("ranks go from 0 to the world size minus one"));
  }
  place.rank = is_alone ? 0 : *rank;
  place.world_size = *world_size;
  for (const std::string_view name : by.local_rank) {
    if (const auto local = number(environment, name)) {
      place.local_rank = *local;
      place.is_numbered_on_host = name != by.rank;
      break;
    }
  }
  check_started_by(environment, by, place);
}

// Throws `failure` (usage) if the launcher expects another number of processes of a host.
void check_per_host(const variables& environment, const launcher_variables& by, int per_host,
                    const job_place& place) {
  const std::string* expected = find(environment, by.per_host);
  if (place.world_size == 1 || expected == nullptr || *expected == "0") return;
  // Words such as "auto" and "gpu" mean as many as there are GPUs; 0 is said of hosts without any.
  const bool is_word = expected->find_first_not_of("0123456789") != expected->npos;
  if (is_word ? per_host > 1 : *expected == std::to_string(per_host)) return;
  const std::string what = per_host == 1
                               ? "this is the only process of its host"
                               : fmt::format("{} ranks are to be started on this host", per_host);
  throw failure(error(errc::usage, fmt::format("{}={}, but {}", by.per_host, *expected, what))
                    .hint(fmt::format(
                        "start as many ranks on each host, or set {} to {}", by.per_host,
                        per_host == 1 ? "1 where a host has one GPU" : std::to_string(per_host))));
}

// The launcher's identifier of the job: "1234.0"; empty: it gives none.
std::string job_of(const variables& environment, const launcher_variables& by) {
  std::string out;
  for (const std::string_view name : by.job) {
    const std::string* value = find(environment, name);
    if (value != nullptr) out += (out.empty() ? "" : ".") + *value;
  }
  return out;
}

// The host of rank 0; empty: nothing says it.
std::string master_address_of(const variables& environment, const launcher_variables& by,
                              int world_size) {
  if (const std::string* address = find(environment, "MASTER_ADDR")) return *address;
  const auto local_size = number(environment, by.local_size);
  const bool are_all_here =
      world_size == 1 ||
      (local_size ? *local_size == world_size : number(environment, by.host_count) == 1);
  if (are_all_here) return job_place().master_address;
  if (const std::string* address = find(environment, by.address)) return *address;
  const std::string* distribution = find(environment, by.distribution);
  const std::string* hosts = find(environment, by.hosts);
  const bool is_ordered = (distribution == nullptr || !distribution->starts_with("arbitrary")) &&
                          find(environment, by.het_size) == nullptr;
  return hosts != nullptr && is_ordered ? first_host(*hosts) : "";
}

// The port of rank 0; 0: nothing says it, and another job's may be the default one.
int master_port_of(const variables& environment, const launcher_variables& by,
                   const std::string& job) {
  constexpr int most_port = 65535;
  if (const auto port = number(environment, "MASTER_PORT", 1, most_port)) return *port;
  if (const auto port = number(environment, by.port, 1, most_port)) return *port;
  if (by.has_hosts_of_its_own) return job_place().master_port;
  if (job.empty()) return 0;
  constexpr int first_port = 15000;  // below those that the kernel gives to clients
  constexpr int ports = 10000;
  return first_port + static_cast<int>(fingerprint(job) % ports);
}

// Fills in the place of the only process of its job. Throws `failure` (usage) if the variables of a
// launcher are set in part.
void without_launcher(const variables& environment, job_place& place) {
  const auto local = number(environment, "LOCAL_RANK");
  place.local_rank = local.value_or(0);
  place.is_numbered_on_host = local.has_value();
  const std::string* tasks = find(environment, "SLURM_NTASKS");
  if (tasks != nullptr && *tasks != "1") {
    place.remark = fmt::format(
        "SLURM_NTASKS={}, but there are no variables of a step, which srun sets: it trains "
        "alone",
        *tasks);
  }
  const auto alone = number(environment, "SLURM_PROCID");
  const bool is_half =
      std::ranges::all_of(std::array{"SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"},
                          [&](const char* name) { return find(environment, name) == nullptr; });
  if (alone && is_half) {
    const std::string what = fmt::format(
        "SLURM_PROCID={}, but neither SLURM_STEP_NUM_TASKS, which srun sets, nor SLURM_NTASKS is "
        "set",
        *alone);
    if (*alone > 0) {
      throw failure(error(errc::usage, what)
                        .hint("start it by srun, which sets all of them, or set RANK, WORLD_SIZE, "
                              "MASTER_ADDR and MASTER_PORT; to train alone, unset SLURM_PROCID"));
    }
    place.remark = what + ": it trains alone";
  }
  if (number(environment, "WORLD_SIZE", 1).value_or(1) == 1) return;
  throw failure(error(errc::usage, "WORLD_SIZE is above 1, but RANK is not set")
                    .hint("give each process its RANK, from 0 on, or launch by torchrun"));
}

}  // namespace

job_place job_place::from(const variables& environment, int per_host) {
  job_place place;
  place.attempt = number(environment, "TORCHELASTIC_RESTART_COUNT").value_or(0);
  const std::string* agent = find(environment, "TORCHELASTIC_USE_AGENT_STORE");
  place.agent_serves_store = agent != nullptr && *agent == "True";
  const launcher_variables* by = launcher_of(environment);
  if (by == nullptr) {
    without_launcher(environment, place);
    return place;
  }
  place.launcher = by->name;
  place.how_to_start = by->how_to_start;
  number_process(environment, *by, place);
  check_per_host(environment, *by, per_host, place);
  place.job = job_of(environment, *by);
  place.master_address = master_address_of(environment, *by, place.world_size);
  place.master_port = master_port_of(environment, *by, place.job);
  return place;
}

job_place job_place::from_environment() {
  return from(variables_of_process());
}

std::string text_of(const job_place& place) {
  if (place.launcher.empty()) return place.remark.empty() ? "one process" : place.remark;
  std::string text =
      fmt::format("rank {} of {}, by {}", place.rank, place.world_size, place.launcher);
  if (!place.remark.empty()) text += "; " + place.remark;
  if (place.world_size == 1) return text;
  if (place.master_address.empty() || place.master_port == 0) return text;
  return fmt::format("{}; rank 0 is at {}:{}", text, place.master_address, place.master_port);
}

bool is_other_rank(const variables& environment) {
  const launcher_variables* by = launcher_of(environment);
  const std::string* rank = by == nullptr ? nullptr : find(environment, by->rank);
  if (rank == nullptr || rank->find_first_not_of("+-0") == rank->npos) return false;
  const std::string* world_size = find(environment, by->world_size);
  return world_size == nullptr || *world_size != "1";
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
