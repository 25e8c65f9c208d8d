// The one translation unit that includes torch's distributed headers.
#include "train/distributed.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#ifdef MILLRACE_CUDA
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif
#include <torch/torch.h>

#include <charconv>
#include <cstdlib>

#include "engine/error.h"

namespace millrace {
namespace {

using c10d::ProcessGroup;

constexpr std::size_t bucket_bytes = 25 << 20;       // as torch's DistributedDataParallel
constexpr std::size_t first_bucket_bytes = 1 << 20;  // small, so that reducing begins early

int integer_from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  const std::string_view all(text);
  int value = 0;
  const auto [end, failed] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (failed != std::errc{} || end != all.data() + all.size()) {
    throw failure(error(errc::usage, fmt::format("{}='{}' is no number", name, text)));
  }
  return value;
}

error lost(const std::string& doing, std::string_view what) {
  return error(errc::peer_lost,
               fmt::format("{} failed ({})", doing, what.substr(0, what.find('\n'))))
      .hint("see the other ranks' messages; resume with --resume auto");
}

// A backend throws one of these when a peer goes away: NCCL's is a c10::DistError, Gloo's a plain
// exception. Torch's other errors are faults of the program.
template <class F>
auto or_peer_lost(const std::string& doing, F&& f) {
  try {
    return f();
  } catch (const failure&) {
    throw;
  } catch (const c10::DistError& e) {
    throw failure(lost(doing, e.what_without_backtrace()));
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& e) {
    throw failure(lost(doing, e.what()));
  }
}

std::string named(const job_place& place, const char* doing) {
  return fmt::format("rank {} of {}: {}", place.rank, place.world_size, doing);
}

}  // namespace

job_place job_place::from_environment() {
  job_place p;
  p.rank = integer_from_environment("RANK", 0);
  p.world_size = integer_from_environment("WORLD_SIZE", 1);
  p.local_rank = integer_from_environment("LOCAL_RANK", p.rank);
  p.master_port = integer_from_environment("MASTER_PORT", p.master_port);
  if (const char* address = std::getenv("MASTER_ADDR")) p.master_address = address;
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  p.agent_serves_store = agent != nullptr && std::string_view(agent) == "True";
  if (p.world_size < 1 || p.rank < 0 || p.rank >= p.world_size) {
    throw failure(error(errc::usage, fmt::format("RANK={} of WORLD_SIZE={}", p.rank, p.world_size))
                      .hint("ranks count from 0 to the world size less one"));
  }
  if (p.world_size > 1 && std::getenv("MASTER_ADDR") == nullptr) {
    throw failure(error(errc::usage, "WORLD_SIZE is above 1 and MASTER_ADDR is not set")
                      .hint("set MASTER_ADDR and MASTER_PORT, or launch by torchrun --no-python"));
  }
  return p;
}

struct process_group::impl {
  c10::intrusive_ptr<ProcessGroup> data;     // for tensors of the training's device
  c10::intrusive_ptr<ProcessGroup> control;  // for tensors in memory
};

struct process_group::agreement::impl {
  job_place place;
  std::vector<at::Tensor> values;
  c10::intrusive_ptr<c10d::Work> work;  // null: alone
};

namespace {

c10::intrusive_ptr<ProcessGroup> make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                           const std::string& name, const job_place& p,
                                           std::chrono::milliseconds timeout) {
  auto named = c10::make_intrusive<c10d::PrefixStore>(name, store);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(named, p.rank, p.world_size, options);
  auto group = c10::make_intrusive<ProcessGroup>(named, p.rank, p.world_size);
  group->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  return group;
}

c10::intrusive_ptr<ProcessGroup> make_nccl(
    [[maybe_unused]] const c10::intrusive_ptr<c10d::Store>& store,
    [[maybe_unused]] const job_place& p, [[maybe_unused]] std::chrono::milliseconds timeout) {
#ifdef MILLRACE_CUDA
  auto named = c10::make_intrusive<c10d::PrefixStore>("nccl", store);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto nccl = c10::make_intrusive<c10d::ProcessGroupNCCL>(named, p.rank, p.world_size, options);
  auto group = c10::make_intrusive<ProcessGroup>(named, p.rank, p.world_size);
  group->setBackend(c10::DeviceType::CUDA, ProcessGroup::BackendType::NCCL, nccl);
  group->setDefaultBackend(ProcessGroup::BackendType::NCCL);
  return group;
#else
  throw failure(error(errc::unsupported, "this build has no NCCL").hint("train with --device cpu"));
#endif
}

}  // namespace

process_group::process_group(const job_place& place, c10::Device device,
                             std::chrono::seconds timeout)
    : place_(place), impl_(std::make_unique<impl>()) {
  if (alone()) return;
  or_peer_lost(named(place_, "joining the job"), [&] {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(place.master_port);
    options.isServer = place.rank == 0 && !place.agent_serves_store;
    options.numWorkers = static_cast<std::size_t>(place.world_size);
    options.waitWorkers = !place.agent_serves_store;
    options.timeout = timeout;
    auto store = c10::make_intrusive<c10d::TCPStore>(place.master_address, options);
    impl_->control = make_gloo(store, "control", place, timeout);
    impl_->data = device.is_cuda() ? make_nccl(store, place, timeout)
                                   : make_gloo(store, "gloo", place, timeout);
  });
}

process_group::~process_group() = default;

void process_group::broadcast(at::Tensor& t) {
  if (alone()) return;
  or_peer_lost(named(place_, "a broadcast"), [&] {
    std::vector<at::Tensor> all{t};
    (t.is_cuda() ? impl_->data : impl_->control)->broadcast(all)->wait();
  });
}

void process_group::sum(at::Tensor& t) {
  if (alone()) return;
  or_peer_lost(named(place_, "a sum"), [&] {
    std::vector<at::Tensor> all{t};
    (t.is_cuda() ? impl_->data : impl_->control)->allreduce(all)->wait();
  });
}

void process_group::barrier() {
  smallest({0}).wait();
}

process_group::agreement process_group::smallest(std::vector<std::int64_t> values) {
  agreement begun;
  begun.impl_ = std::make_shared<agreement::impl>();
  begun.impl_->place = place_;
  begun.impl_->values.push_back(torch::tensor(values));
  if (alone()) return begun;
  or_peer_lost(named(place_, "an agreement"), [&] {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MIN;
    begun.impl_->work = impl_->control->allreduce(begun.impl_->values, options);
  });
  return begun;
}

std::vector<std::int64_t> process_group::agreement::wait() {
  if (impl_->work) {
    or_peer_lost(named(impl_->place, "an agreement"), [&] { impl_->work->wait(); });
  }
  const at::Tensor& t = impl_->values.front();
  const auto* begin = t.data_ptr<std::int64_t>();
  return {begin, begin + t.numel()};
}

std::shared_ptr<c10d::Reducer> process_group::make_reducer(
    const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  if (alone()) return nullptr;
  std::vector<at::Tensor> tensors;
  std::unordered_map<std::size_t, std::string> names;
  for (const auto& [name, tensor] : parameters) {
    names[tensors.size()] = name;
    tensors.push_back(tensor);
  }
  auto [buckets, sizes] =
      c10d::compute_bucket_assignment_by_size(tensors, {first_bucket_bytes, bucket_bytes});
  // The last layers' gradients are ready first.
  std::reverse(buckets.begin(), buckets.end());
  const std::vector<bool> sparse(tensors.size(), false);
  return std::make_shared<c10d::Reducer>(
      tensors, buckets, impl_->data, sparse, static_cast<std::int64_t>(bucket_bytes),
      /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/false, names,
      static_cast<std::int64_t>(first_bucket_bytes), /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, std::vector<std::int64_t>());
}

void prepare_forward(c10d::Reducer* reducer) {
  if (reducer != nullptr) reducer->prepare_for_forward();
}

void backward(c10d::Reducer* reducer, const at::Tensor& loss) {
  if (reducer == nullptr) return loss.backward();
  or_peer_lost("averaging the gradients", [&] {
    reducer->prepare_for_backward(std::vector<at::Tensor>{loss});
    loss.backward();
  });
}

}  // namespace millrace
