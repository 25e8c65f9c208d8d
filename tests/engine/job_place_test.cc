// What each launcher sets, as its documentation or a run of it shows, and the place that it means.
#include "engine/host/job_place.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/fingerprint.h"
#include "engine/base/result.h"

namespace millrace {
namespace {

using variables = job_place::variables;

// The variables of "RANK=1 WORLD_SIZE=2".
variables in(std::string_view text) {
  variables out;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    const std::size_t equals = one.find('=');
    out.emplace(one.substr(0, equals), one.substr(equals + 1));
  }
  return out;
}

// The port that is made of a job's name.
int port_of(std::string_view job) {
  return 15000 + static_cast<int>(fingerprint(job) % 10000);
}

// "3 of 8 (1 here) by Slurm, n1:15042, job 7.0".
std::string shown(const job_place& p) {
  return fmt::format("{} of {} ({} here) by {}, {}:{}, job {}", p.rank, p.world_size, p.local_rank,
                     p.launcher, p.master_address, p.master_port, p.job);
}

struct golden {
  std::string_view name;
  std::string_view environment;
  std::string place;  // as shown()
};

std::vector<golden> of_schedulers() {
  return {
      {"nothing", "PATH=/bin", "0 of 1 (0 here) by , 127.0.0.1:29500, job "},
      {"one by hand", "WORLD_SIZE=1 LOCAL_RANK=3", "0 of 1 (3 here) by , 127.0.0.1:29500, job "},
      {"an entry without a name", "=5 RANK=0 WORLD_SIZE=1",
       "0 of 1 (0 here) by RANK and WORLD_SIZE, 127.0.0.1:0, job "},
      {"torchrun in a job of Slurm",
       "TORCHELASTIC_RUN_ID=7 RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=a "
       "MASTER_PORT=1 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0",
       "3 of 4 (1 here) by torchrun, a:1, job 7"},
      {"by hand", "RANK=3 WORLD_SIZE=4 MASTER_ADDR=a",
       "3 of 4 (3 here) by RANK and WORLD_SIZE, a:0, job "},
      {"PyTorchJob",
       "RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-0 MASTER_PORT=234 PET_NNODES=2 PET_NODE_RANK=1 "
       "PET_NPROC_PER_NODE=8",
       "1 of 2 (1 here) by RANK and WORLD_SIZE, job-0:234, job "},
      {"an elastic PyTorchJob of one replica", "RANK=0 WORLD_SIZE=1 PET_NODE_RANK=0 PET_NNODES=1:4",
       "0 of 1 (0 here) by RANK and WORLD_SIZE, 127.0.0.1:0, job "},
      {"Slurm",
       "SLURM_JOB_ID=4294967290 SLURM_STEP_ID=1 SLURM_NTASKS=16 SLURM_STEP_NUM_TASKS=16 "
       "SLURM_PROCID=9 SLURM_LOCALID=1 SLURM_STEP_NUM_NODES=3 "
       "SLURM_STEP_NODELIST=gpu[003-004,07],cpu1",
       fmt::format("9 of 16 (1 here) by Slurm, gpu003:{}, job 4294967290.1",
                   port_of("4294967290.1"))},
      {"Slurm, one node",
       "SLURM_JOB_ID=12 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 "
       "SLURM_STEP_NODELIST=login1.cluster SLURM_STEP_NUM_NODES=1",
       fmt::format("0 of 2 (0 here) by Slurm, 127.0.0.1:{}, job 12.0", port_of("12.0"))},
      {"srun -m arbitrary: the list is not in the order of ranks",
       "SLURM_JOB_ID=12 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 "
       "SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=2 SLURM_DISTRIBUTION=arbitrary",
       fmt::format("0 of 2 (0 here) by Slurm, :{}, job 12.0", port_of("12.0"))},
      {"a heterogeneous step: neither is that list, and the cluster has a name",
       "SLURM_JOB_ID=12 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 "
       "SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_NUM_NODES=2 SLURM_HET_SIZE=2 SLURM_CLUSTER_NAME=c",
       fmt::format("0 of 2 (0 here) by Slurm, :{}, job 12.0.c", port_of("12.0.c"))},
      {"a batch script of Slurm, which srun has not started",
       "SLURM_JOB_ID=12 SLURM_NTASKS=4 SLURM_PROCID=0",
       "0 of 1 (0 here) by , 127.0.0.1:29500, job "},
      {"srun --mpi=pmi2 from a task of another such step, whose PMI_ variables it has kept",
       "PMI_RANK=0 PMI_SIZE=1 PMI_JOBID=6.0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=2 "
       "SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=a,b SLURM_JOB_ID=7 "
       "SLURM_STEP_ID=3",
       fmt::format("2 of 4 (0 here) by Slurm, a:{}, job 7.3", port_of("7.3"))},
      {"a step of one task within a step of two with PMI, whose variables it has kept",
       "PMI_RANK=1 PMI_SIZE=2 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 "
       "SLURM_STEP_NUM_NODES=1 SLURM_JOB_ID=7 SLURM_STEP_ID=3",
       fmt::format("0 of 1 (0 here) by Slurm, 127.0.0.1:{}, job 7.3", port_of("7.3"))},
      {"a batch script that a task of a step of two submitted, whose variables it has kept",
       "SLURM_JOB_ID=12 SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0",
       "0 of 1 (0 here) by , 127.0.0.1:29500, job "},
      {"a rank that millrace-train has started, within a step of Slurm",
       "LOCAL_STARTER=millrace-train RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 "
       "MASTER_PORT=1500 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0",
       "1 of 2 (1 here) by millrace-train, 127.0.0.1:1500, job "},
      {"an Indexed Job of Kubernetes",
       "JOB_COMPLETION_INDEX=1 WORLD_SIZE=2 MASTER_ADDR=train-0.train MASTER_PORT=2000",
       "1 of 2 (0 here) by Kubernetes, train-0.train:2000, job "},
      {"a pod of an Indexed Job that trains alone", "JOB_COMPLETION_INDEX=3 WORLD_SIZE=1",
       "0 of 1 (0 here) by Kubernetes, 127.0.0.1:29500, job "},
      {"TrainJob",
       "PET_NNODES=4 PET_NPROC_PER_NODE=1 PET_NODE_RANK=2 PET_MASTER_ADDR=job-node-0-0.job "
       "PET_MASTER_PORT=29400 JOB_COMPLETION_INDEX=2",
       "2 of 4 (0 here) by TrainJob, job-node-0-0.job:29400, job "},
      {"TrainJob, one node, as many processes as GPUs",
       "PET_NNODES=1 PET_NPROC_PER_NODE=auto PET_NODE_RANK=0 PET_MASTER_ADDR=j PET_MASTER_PORT=2",
       "0 of 1 (0 here) by TrainJob, 127.0.0.1:2, job "},
  };
}

std::vector<golden> of_others() {
  return {
      {"Open MPI, one host",
       "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
       "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=1 PMIX_NAMESPACE=77 "
       "OMPI_MCA_orte_precondition_transports=ab-cd",
       fmt::format("1 of 2 (1 here) by Open MPI, 127.0.0.1:{}, job 77.ab-cd", port_of("77.ab-cd"))},
      {"Open MPI in a job of Slurm, whose variables are of its helpers",
       "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 "
       "OMPI_COMM_WORLD_LOCAL_SIZE=4 MASTER_ADDR=node1 MASTER_PORT=3 SLURM_STEP_NUM_TASKS=2 "
       "SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_STEP_NODELIST=node[1-2] SLURM_STEP_NUM_NODES=2",
       "5 of 8 (1 here) by Open MPI, node1:3, job "},
      {"MPICH and Intel MPI, whose jobs nothing tells apart",
       "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=4",
       "2 of 4 (2 here) by MPI, 127.0.0.1:0, job "},
      {"MPICH on two hosts, from a step of Slurm on one",
       "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2 MASTER_PORT=4 "
       "SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=n1",
       "2 of 4 (0 here) by MPI, :4, job "},
      {"PMI", "PMI_RANK=2 PMI_SIZE=4 PMI_JOBID=k MASTER_ADDR=a PMI_LOCAL_RANK=1",
       fmt::format("2 of 4 (1 here) by PMI, a:{}, job k", port_of("k"))},
      {"PMIx alone", "PMIX_RANK=1 WORLD_SIZE=2 MASTER_ADDR=a PMIX_NAMESPACE=n",
       fmt::format("1 of 2 (1 here) by PMIx, a:{}, job n", port_of("n"))},
      {"Flux",
       "FLUX_TASK_RANK=3 FLUX_JOB_SIZE=4 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_NNODES=1 FLUX_JOB_ID=f2 "
       "PMI_RANK=3 PMI_SIZE=4",
       fmt::format("3 of 4 (1 here) by Flux, 127.0.0.1:{}, job f2", port_of("f2"))},
      {"Cray PALS",
       "PALS_RANKID=3 PALS_LOCAL_RANKID=1 PALS_APID=p PMI_RANK=3 PMI_SIZE=4 MASTER_ADDR=x1000",
       fmt::format("3 of 4 (1 here) by PALS, x1000:{}, job p", port_of("p"))},
      {"SkyPilot",
       "SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2 SKYPILOT_NUM_GPUS_PER_NODE=1 "
       "SKYPILOT_TASK_ID=s SKYPILOT_NODE_IPS=10.0.0.1\n10.0.0.2",
       fmt::format("1 of 2 (0 here) by SkyPilot, 10.0.0.1:{}, job s", port_of("s"))},
      {"SkyPilot without GPUs",
       "SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2 SKYPILOT_NUM_GPUS_PER_NODE=0 "
       "SKYPILOT_TASK_ID=s SKYPILOT_NODE_IPS=\n10.0.0.1\n10.0.0.2",
       fmt::format("1 of 2 (0 here) by SkyPilot, 10.0.0.1:{}, job s", port_of("s"))},
  };
}

std::string refusal(const variables& environment) {
  try {
    job_place::from(environment);
  } catch (const failure& f) {
    EXPECT_EQ(f.kind(), errc::usage);
    return f.what();
  }
  return "";
}

TEST(JobPlace, IsWhatEachLauncherSays) {
  std::vector<golden> all = of_schedulers();
  std::ranges::move(of_others(), std::back_inserter(all));
  for (const golden& g : all) {
    SCOPED_TRACE(g.name);
    const variables environment = in(g.environment);
    const job_place found = job_place::from(environment);
    EXPECT_EQ(shown(found), g.place);
    EXPECT_EQ(is_other_rank(environment), found.rank != 0);
  }
  EXPECT_FALSE(is_other_rank(in("RANK=00 WORLD_SIZE=2")));
}

TEST(JobPlace, KnowsTorchrunsStoreAndItsRestarts) {
  const job_place found = job_place::from(
      in("TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_USE_AGENT_STORE=True "
         "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=n1 MASTER_PORT=41000"));
  EXPECT_EQ(shown(found), "5 of 8 (1 here) by torchrun, n1:41000, job none");
  EXPECT_TRUE(found.agent_serves_store);
  EXPECT_EQ(found.attempt, 2);
}

// Each list as Slurm writes it.
TEST(JobPlace, FindsTheFirstHostOfAList) {
  for (const auto& [list, first] : {std::pair("node[001-004,7]", "node001"),
                                    {"a-[1-2]-b", "a-1-b"},
                                    {"n1,n[2-3]", "n1"},
                                    {"rack[1-2]n[01-04]", "rack1n01"},
                                    {"n1", "n1"},
                                    {"n[7", "n7"}}) {
    const job_place found = job_place::from({{"SLURM_STEP_NUM_TASKS", "2"},
                                             {"SLURM_PROCID", "0"},
                                             {"SLURM_JOB_ID", "1"},
                                             {"SLURM_STEP_NUM_NODES", "2"},
                                             {"SLURM_STEP_NODELIST", list}});
    EXPECT_EQ(found.master_address, first);
  }
}

// What a launcher has set is passed on to what its processes start, by another launcher too.
TEST(JobPlace, OfOneProcessWithinAStepOfSeveralIsRefused) {
  for (const char* one :
       {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1", "MPI_LOCALRANKID=0 PMI_RANK=0 PMI_SIZE=1",
        "FLUX_TASK_RANK=0 FLUX_JOB_SIZE=1", "PALS_RANKID=0 PMI_SIZE=1"}) {
    auto environment = in(one);
    EXPECT_EQ(job_place::from(environment).world_size, 1) << one;
    environment.emplace("SLURM_STEP_NUM_TASKS", "2");
    environment.emplace("SLURM_PROCID", "1");
    const std::string found = refusal(environment);
    EXPECT_NE(found.find("but SLURM_STEP_NUM_TASKS=2"), found.npos) << one << ": " << found;
  }
  // What was said by hand counts.
  const auto by_hand =
      job_place::from(in("RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2"));
  EXPECT_EQ(text_of(by_hand),
            "rank 0 of 1, by RANK and WORLD_SIZE; WORLD_SIZE=1, but OMPI_COMM_WORLD_SIZE=2, of "
            "Open MPI: it trains alone");
}

// Each variable of the rank or the world size, left out, is an error that names it: never another
// launcher's place, and never a rank 0 of 1 beside others.
TEST(JobPlace, NeedsBothHalves) {
  for (const auto& [name, set] : {std::pair("RANK", "WORLD_SIZE"),
                                  {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                  {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
                                  {"PALS_RANKID", "PMI_SIZE"},
                                  {"PMI_RANK", "PMI_SIZE"},
                                  {"PMIX_RANK", "WORLD_SIZE"},
                                  {"PET_NODE_RANK", "PET_NNODES"},
                                  {"JOB_COMPLETION_INDEX", "WORLD_SIZE"},
                                  {"SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"}}) {
    const std::string found = refusal({{name, "0"}});
    EXPECT_NE(found.find(std::string(name) + " is set, but " + set + " is not"), found.npos)
        << found;
  }
  EXPECT_NE(refusal({{"SLURM_STEP_NUM_TASKS", "2"}}).find("but SLURM_PROCID is not"),
            std::string::npos);
  EXPECT_NE(refusal({{"WORLD_SIZE", "2"}}).find("RANK is not set"), std::string::npos);
  EXPECT_NE(refusal({{"RANK", ""}, {"WORLD_SIZE", "2"}}).find("RANK is not set"),
            std::string::npos);
}

TEST(JobPlace, RefusesWhatMakesNoSense) {
  const variables two{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}};
  const auto with = [&](const char* name, const char* value) {
    variables all = two;
    all.insert_or_assign(name, value);
    return refusal(all);
  };
  EXPECT_EQ(refusal(two), "");
  EXPECT_NE(with("RANK", "2").find("RANK=2 of WORLD_SIZE=2"), std::string::npos);
  EXPECT_NE(with("RANK", "-1").find("RANK=-1 is out of range"), std::string::npos);
  EXPECT_NE(with("RANK", "1x").find("RANK='1x' is not a number"), std::string::npos);
  EXPECT_NE(with("RANK", "99999999999").find("RANK='99999999999'"), std::string::npos);
  EXPECT_NE(with("WORLD_SIZE", "0").find("WORLD_SIZE=0"), std::string::npos);
  EXPECT_NE(with("LOCAL_RANK", "all").find("LOCAL_RANK='all'"), std::string::npos);
  EXPECT_NE(with("MASTER_PORT", "65536").find("MASTER_PORT=65536"), std::string::npos);
  const std::string several = refusal({{"PET_NODE_RANK", "0"},
                                       {"PET_NNODES", "2"},
                                       {"PET_NPROC_PER_NODE", "8"},
                                       {"PET_MASTER_ADDR", "a"}});
  EXPECT_NE(several.find("PET_NPROC_PER_NODE=8"), std::string::npos) << several;
  EXPECT_NE(refusal({{"PET_NODE_RANK", "0"}, {"PET_NNODES", "2"}, {"PET_NPROC_PER_NODE", "auto"}})
                .find("PET_NPROC_PER_NODE=auto"),
            std::string::npos);
}

TEST(JobPlace, HasNoAddressWhereNothingSaysIt) {
  for (const char* environment :
       {"RANK=1 WORLD_SIZE=2", "RANK=1 WORLD_SIZE=2 MASTER_ADDR=",
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2"}) {
    EXPECT_EQ(job_place::from(in(environment)).master_address, "") << environment;
  }
}

TEST(JobPlace, SaysThatSrunIsMissing) {
  EXPECT_EQ(
      text_of(job_place::from(in("SLURM_JOB_ID=1 SLURM_NTASKS=4 SLURM_PROCID=0"))),
      "SLURM_NTASKS=4, but there are no variables of a step, which srun sets: it trains alone");
  EXPECT_EQ(text_of(job_place::from(in("SLURM_JOB_ID=1 SLURM_NTASKS=1"))), "one process");
  EXPECT_EQ(text_of(job_place::from(in("SLURM_PROCID=0 SLURM_NTASKS=1"))), "one process");
  EXPECT_EQ(text_of(job_place::from(in("SLURM_PROCID=3 WORLD_SIZE=1"))), "one process");
  const std::string half =
      ", but neither SLURM_STEP_NUM_TASKS, which srun sets, nor SLURM_NTASKS is set";
  EXPECT_EQ(text_of(job_place::from(in("SLURM_PROCID=0"))),
            "SLURM_PROCID=0" + half + ": it trains alone");
  EXPECT_NE(refusal({{"SLURM_PROCID", "3"}}).find("SLURM_PROCID=3" + half), std::string::npos);
}

TEST(JobPlace, IsNumberedOnItsHostByAVariableOfItsOwn) {
  for (const auto& [environment, is_numbered] : std::vector<std::pair<std::string_view, bool>>{
           {"RANK=1 WORLD_SIZE=2", false},
           {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1", true},
           {"PMIX_RANK=1 WORLD_SIZE=2", false},
           {"PMIX_RANK=1 WORLD_SIZE=2 LOCAL_RANK=1", true},
           {"SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=1", true},
           {"SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2", false},
           {"LOCAL_RANK=1", true},
           {"", false}}) {
    EXPECT_EQ(job_place::from(in(environment)).is_numbered_on_host, is_numbered) << environment;
  }
}

TEST(JobPlace, IsToldInWords) {
  EXPECT_EQ(text_of(job_place{}), "one process");
  EXPECT_EQ(text_of({.rank = 3, .world_size = 8, .launcher = "Slurm", .master_address = "n1"}),
            "rank 3 of 8, by Slurm; rank 0 is at n1:29500");
  EXPECT_EQ(text_of({.world_size = 2, .launcher = "MPI", .master_address = ""}),
            "rank 0 of 2, by MPI");
  EXPECT_EQ(text_of({.launcher = "Slurm"}), "rank 0 of 1, by Slurm");
}

}  // namespace
}  // namespace millrace
