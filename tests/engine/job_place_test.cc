// What each launcher sets, as its documentation or a run of it shows, and the place that it means.
#include "engine/job_place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "engine/result.h"

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

struct golden {
  std::string_view name;
  std::string_view environment;
  job_place place;
};

std::vector<golden> of_mpi_and_slurm() {
  return {{"nothing", "PATH=/bin", {}},
          {"one by hand", "WORLD_SIZE=1", {}},
          {"torchrun",
           "TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=2 "
           "TORCHELASTIC_USE_AGENT_STORE=True RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 "
           "LOCAL_WORLD_SIZE=4 MASTER_ADDR=node1 MASTER_PORT=41000",
           {5, 8, 1, "torchrun", "node1", 41000, true, 2}},
          {"torchrun in a job of Slurm",
           "TORCHELASTIC_RUN_ID=7 RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=1 "
           "SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_LOCALID=0",
           {3, 4, 1, "torchrun", "a", 1}},
          {"by hand", "RANK=3 WORLD_SIZE=4 MASTER_ADDR=a", {3, 4, 3, "RANK and WORLD_SIZE", "a"}},
          {"PyTorchJob",
           "RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456 PET_NNODES=2 "
           "PET_NODE_RANK=1 PET_NPROC_PER_NODE=8",
           {1, 2, 1, "RANK and WORLD_SIZE", "job-master-0", 23456}},
          {"Slurm",
           "SLURM_JOB_ID=1234567 SLURM_NTASKS=16 SLURM_STEP_NUM_TASKS=16 SLURM_PROCID=9 "
           "SLURM_LOCALID=1 SLURM_STEP_NODELIST=gpu[003-004,07],cpu1",
           {9, 16, 1, "Slurm", "gpu003", 19567}},
          {"Slurm, one node",
           "SLURM_JOB_ID=12 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0 SLURM_LOCALID=0 "
           "SLURM_STEP_NODELIST=login1.cluster SLURM_STEP_NUM_NODES=1",
           {0, 2, 0, "Slurm", "127.0.0.1", 15012}},
          {"a batch script of Slurm, which srun has not started",
           "SLURM_JOB_ID=12 SLURM_NTASKS=4 SLURM_PROCID=0",
           {}},
          {"Open MPI, one host",
           "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
           "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=1",
           {1, 2, 1, "Open MPI"}},
          {"Open MPI in a job of Slurm, whose variables are of its helpers",
           "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 "
           "OMPI_COMM_WORLD_LOCAL_SIZE=4 MASTER_ADDR=node1 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 "
           "SLURM_LOCALID=0 SLURM_STEP_NODELIST=node[1-2]",
           {5, 8, 1, "Open MPI", "node1"}},
          {"MPICH and Intel MPI",
           "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=2 MPI_LOCALNRANKS=4",
           {2, 4, 2, "MPI"}},
          {"srun --mpi=pmi2",
           "PMI_RANK=2 PMI_SIZE=4 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=2 SLURM_LOCALID=0 "
           "SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=a,b SLURM_JOB_ID=7",
           {2, 4, 0, "MPI", "a", 15007}}};
}

std::vector<golden> of_others() {
  return {{"PMIx alone", "PMIX_RANK=1 WORLD_SIZE=2 MASTER_ADDR=a", {1, 2, 1, "PMIx", "a"}},
          {"Flux",
           "FLUX_TASK_RANK=3 FLUX_JOB_SIZE=4 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_NNODES=1 "
           "PMI_RANK=3 PMI_SIZE=4",
           {3, 4, 1, "Flux"}},
          {"Cray PALS",
           "PALS_RANKID=3 PALS_LOCAL_RANKID=1 PMI_RANK=3 PMI_SIZE=4 MASTER_ADDR=x1000",
           {3, 4, 1, "PALS", "x1000"}},
          {"an Indexed Job of Kubernetes",
           "JOB_COMPLETION_INDEX=1 WORLD_SIZE=2 MASTER_ADDR=train-0.train MASTER_PORT=2000",
           {1, 2, 0, "Kubernetes", "train-0.train", 2000}},
          {"TrainJob",
           "PET_NNODES=4 PET_NPROC_PER_NODE=1 PET_NODE_RANK=2 PET_MASTER_ADDR=job-node-0-0.job "
           "PET_MASTER_PORT=29400 JOB_COMPLETION_INDEX=2",
           {2, 4, 0, "TrainJob", "job-node-0-0.job", 29400}},
          {"TrainJob, one node, as many processes as GPUs",
           "PET_NNODES=1 PET_NPROC_PER_NODE=auto PET_NODE_RANK=0 PET_MASTER_ADDR=job-node-0-0.job "
           "PET_MASTER_PORT=29400",
           {0, 1, 0, "TrainJob", "127.0.0.1", 29400}},
          {"SkyPilot",
           "SKYPILOT_NODE_RANK=1 SKYPILOT_NUM_NODES=2 SKYPILOT_NUM_GPUS_PER_NODE=1 "
           "SKYPILOT_NODE_IPS=10.0.0.1\n10.0.0.2",
           {1, 2, 0, "SkyPilot", "10.0.0.1"}},
          {"SkyPilot, one node with eight GPUs",
           "SKYPILOT_NODE_RANK=0 SKYPILOT_NUM_NODES=1 SKYPILOT_NUM_GPUS_PER_NODE=8 "
           "SKYPILOT_NODE_IPS=10.0.0.1",
           {0, 1, 0, "SkyPilot"}}};
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
  std::vector<golden> all = of_mpi_and_slurm();
  std::ranges::move(of_others(), std::back_inserter(all));
  for (const golden& g : all) {
    SCOPED_TRACE(g.name);
    const variables environment = in(g.environment);
    const job_place found = job_place::from(environment);
    EXPECT_EQ(found.rank, g.place.rank);
    EXPECT_EQ(found.world_size, g.place.world_size);
    EXPECT_EQ(found.local_rank, g.place.local_rank);
    EXPECT_EQ(found.launcher, g.place.launcher);
    EXPECT_EQ(found.master_address, g.place.master_address);
    EXPECT_EQ(found.master_port, g.place.master_port);
    EXPECT_EQ(found.agent_serves_store, g.place.agent_serves_store);
    EXPECT_EQ(found.attempt, g.place.attempt);
    EXPECT_EQ(is_other_rank(environment), found.rank != 0);
  }
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
