#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Reducer;
}

namespace millrace {

// Who we are in the job: from RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as
// torchrun and others set them; without them, rank 0 of 1.
struct job_place {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  std::string master_address = "127.0.0.1";
  int master_port = 29500;
  bool agent_serves_store = false;  // torchrun's agent does

  // Throws `failure` (usage) for values that make no sense.
  static job_place from_environment();
};

// The process group of a job: NCCL for tensors on GPUs, Gloo for those in memory and for what the
// ranks have to agree on. With one rank everything is a no-op. One thread. A rank that is gone, or
// silent for `timeout`, is a `failure` (peer_lost).
class process_group {
 public:
  process_group(const job_place& place, c10::Device device, std::chrono::seconds timeout);
  ~process_group();
  process_group(const process_group&) = delete;
  process_group& operator=(const process_group&) = delete;

  const job_place& place() const { return place_; }
  bool alone() const { return place_.world_size == 1; }

  void broadcast(at::Tensor& t);  // from rank 0
  void sum(at::Tensor& t);        // in place, over all ranks
  void barrier();

  // The smallest of each value over all ranks, begun now and asked for later, so that it costs
  // nothing while other work goes on.
  class agreement {
   public:
    std::vector<std::int64_t> wait();

   private:
    friend class process_group;
    struct impl;
    std::shared_ptr<impl> impl_;
  };
  agreement smallest(std::vector<std::int64_t> values);

  // Gradients of `parameters` averaged over the ranks while backward() runs (DDP's reducer). Null
  // when alone.
  std::shared_ptr<c10d::Reducer> make_reducer(
      const std::vector<std::pair<std::string, at::Tensor>>& parameters);

 private:
  struct impl;
  job_place place_;
  std::unique_ptr<impl> impl_;
};

// One backward pass through `reducer` (which may be null): gradients come out averaged.
void prepare_forward(c10d::Reducer* reducer);
void backward(c10d::Reducer* reducer, const at::Tensor& loss);

}  // namespace millrace
