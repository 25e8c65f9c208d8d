#include "train/ranks/distributed.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#ifdef MILLRACE_CUDA
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif
#include <torch/torch.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <thread>

#include "engine/host/clock.h"
#include "engine/host/log.h"
#include "engine/host/standard_error.h"
#include "engine/host/start_thread.h"
#include "train/ranks/lifeline.h"
#include "train/ranks/rendezvous.h"
#include "train/ranks/torch_error.h"

namespace millrace {
namespace {

using c10d::ProcessGroup;

constexpr std::size_t bucket_bytes = 25 << 20;       // as torch's DistributedDataParallel
constexpr std::size_t first_bucket_bytes = 1 << 20;  // small, so that reducing begins early

}  // namespace

struct process_group::impl {
  explicit impl(const job_place& p) : place(p) {}

  // Runs `f`, and turns the exception by which a backend reports a lost peer (NCCL's a
  // c10::DistError, Gloo's a plain one) into a failure. Torch's other errors are bugs.
  template <class F>
  auto watched(const char* doing, F&& f) {
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
  error lost(const char* doing, std::string_view what) const;
  error lost(int rank) const;

  job_place place;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<ProcessGroup> data;     // for tensors of the training's device
  c10::intrusive_ptr<ProcessGroup> control;  // for tensors in memory
  std::unique_ptr<lifeline> life;
  std::string address;  // of this host, for the other ranks
};

// By the lifeline's word, which may come after the failure of what was done.
error process_group::impl::lost(const char* doing, std::string_view what) const {
  constexpr std::chrono::milliseconds time{500};
  const auto gone = life ? life->lost_within(time) : std::nullopt;
  return error(errc::peer_lost,
               fmt::format("rank {} of {}: {} failed ({})", place.rank, place.world_size, doing,
                           gone ? fmt::format("rank {} is gone", *gone)
                                : std::string(what.substr(0, what.find('\n')))))
      .hint(gone ? fmt::format("see rank {}'s messages", *gone) : "see the other ranks' messages");
}

error process_group::impl::lost(int rank) const {
  return error(errc::peer_lost,
               fmt::format("rank {} of {}: rank {} is gone", place.rank, place.world_size, rank))
      .hint(fmt::format("see rank {}'s messages; resume from the newest checkpoint", rank));
}

struct process_group::agreement::impl {
  struct part {
    std::vector<at::Tensor> values;
    c10::intrusive_ptr<c10d::Work> work;  // null: alone
  };
  process_group::impl* group = nullptr;
  std::vector<part> parts;
};

namespace {

constexpr std::size_t length_digits = 20;

// Ends the process in place of a thread that cannot end.
[[noreturn]] void end_process(const error& why, const std::function<void(const error&)>& before) {
  to_stderr("millrace: {}\n", why.message());
  if (before) before(why);
  std::_Exit(exit_code(why.kind()));
}

std::unique_ptr<lifeline> connect_lifeline(c10d::Store& store, const job_place& p,
                                           lifeline::end_process lost) {
  constexpr const char* key = "lifeline";
  if (p.rank == 0) {
    auto made = std::make_unique<lifeline>(p.world_size - 1, std::move(lost));
    store.set(key, fmt::format("{} {}", made->at().port, made->at().key));
    return made;
  }
  const std::string said = store.get_to_str(key);
  const std::size_t space = std::min(said.find(' '), said.size());
  return std::make_unique<lifeline>(
      p, lifeline::place{std::atoi(said.c_str()), said.substr(std::min(space + 1, said.size()))},
      std::move(lost));
}

// Ends the process if it outlives `timeout`: torch cannot cancel its connecting.
class joining_deadline {
 public:
  joining_deadline(const job_place& place, std::chrono::seconds timeout,
                   const std::function<void(const error&)>& before_end)
      : watch_(start_joined_thread("mr-deadline", [this, place, timeout,
                                                   before_end](std::stop_token stop) {
          // The rendezvous, which ends in time by itself, says more.
          constexpr std::chrono::seconds grace{5};
          const auto begun = steady_clock::now();
          const auto is_over_at = [&](steady_clock::time_point at) {
            std::unique_lock lock(mutex_);
            over_.wait_until(lock, stop, at, [&] { return stop.stop_requested(); });
            return stop.stop_requested();
          };
          if (timeout > patience && is_over_at(begun + patience)) return;
          if (timeout > patience && !has_store_) {
            log_notice(fmt::format("rank {} of {} waits for rank 0, at {}:{}, for up to {} s more",
                                   place.rank, place.world_size, place.master_address,
                                   place.master_port, (timeout - patience).count()));
          }
          if (is_over_at(begun + timeout + grace)) return;
          end_process(not_joined(place, fmt::format("not within {} s", timeout.count())),
                      before_end);
        })) {}

  void store_is_reached() { has_store_ = true; }

 private:
  static constexpr std::chrono::seconds patience{10};

  std::mutex mutex_;
  std::condition_variable_any over_;
  std::atomic<bool> has_store_ = false;
  std::jthread watch_;  // last: it uses the others
};

// A view of the text's own bytes.
at::Tensor bytes_of(std::string& text) {
  return torch::from_blob(text.data(), {std::ssize(text)}, torch::kUInt8);
}

// An error on its way to another rank.
std::string text_of(const error& e) {
  std::string what = e.message().substr(kind_name(e.kind()).size() + std::strlen(": "));
  const std::string& hint = e.what_to_do();
  if (!hint.empty()) what.resize(what.size() - hint.size() - std::strlen("; "));
  return nlohmann::json{{"kind", static_cast<int>(e.kind())}, {"what", what}, {"hint", hint}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

error error_from(const std::string& text, int rank) {
  const auto said = nlohmann::json::parse(text);
  error e(static_cast<errc>(said.at("kind").get<int>()),
          fmt::format("rank {}: {}", rank, said.at("what").get<std::string>()));
  return e.hint(said.at("hint").get<std::string>());
}

c10::intrusive_ptr<ProcessGroup> make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                           const std::string& name, const job_place& p,
                                           const std::string& address,
                                           std::chrono::milliseconds timeout) {
  auto named = c10::make_intrusive<c10d::PrefixStore>(name, store);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
  options->devices.push_back(interface != nullptr && *interface != '\0'
                                 ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                 : c10d::ProcessGroupGloo::createDeviceForHostname(address));
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
  // As torchrun sets it, 1, NCCL's watchdog aborts the process that lost a peer, without its reason
  // and exit code. 2: it ends the communication, and what waits for that fails here.
  constexpr const char* handling = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
  const char* const given = std::getenv(handling);
  if (given == nullptr || std::string_view(given) == "1") setenv(handling, "2", 1);
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

process_group::process_group(const job_place& place, std::chrono::seconds timeout,
                             const std::function<void(const error&)>& before_end)
    : place_(place), timeout_(timeout), impl_(std::make_unique<impl>(place)) {
  if (alone()) return;
  if (place.master_address.empty()) {
    throw failure(error(errc::usage, fmt::format("rank {} of {}: nothing says where rank 0 is",
                                                 place.rank, place.world_size))
                      .hint("set MASTER_ADDR and MASTER_PORT, or launch by torchrun --no-python"));
  }
  if (place.master_port == 0) {
    throw failure(
        error(errc::usage, fmt::format("rank {} of {}: nothing says at which port rank 0 is",
                                       place.rank, place.world_size))
            .hint("set MASTER_PORT to a free port, a different one for each job on a host"));
  }
  // Its warnings include stack traces; errors that follow are reported in one line.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  joining_deadline deadline(place_, timeout, before_end);
  try {
    impl_->store = join_store({.place = place,
                               .timeout = timeout,
                               .note = [](const std::string& what) { log_notice(what); }},
                              [&] { deadline.store_is_reached(); });
    impl_->life = connect_lifeline(*impl_->store, place, [this, before_end](int gone) {
      end_process(impl_->lost(gone), before_end);
    });
    impl_->address = impl_->life->address(timeout);
    // A rank that reaches rank 0 by its host's own address is on that host.
    constexpr const char* of_first = "address";
    if (place.rank == 0) impl_->store->set(of_first, impl_->address);
    if (is_of_itself(impl_->address)) impl_->address = impl_->store->get_to_str(of_first);
    if (impl_->address.empty()) {
      throw failure(not_joined(place, "not all ranks could connect to rank 0"));
    }
    impl_->control = make_gloo(impl_->store, "control", place, impl_->address, timeout);
  } catch (const failure&) {
    throw;
  } catch (const c10::Error& e) {
    throw failure(not_joined(place_, e.what_without_backtrace()));
  } catch (const std::exception& e) {
    throw failure(not_joined(place_, e.what()));
  }
}

process_group::~process_group() {
  // Without end() it counts as failed.
  if (impl_->life && std::uncaught_exceptions() == 0) impl_->life->end();
}

void process_group::hold(bool is_held) {
  if (impl_->life) impl_->life->hold(is_held);
}

void process_group::connect(c10::Device device) {
  if (alone()) return;
  impl_->watched("connecting the devices", [&] {
    impl_->data = device.is_cuda()
                      ? make_nccl(impl_->store, place_, timeout_)
                      : make_gloo(impl_->store, "gloo", place_, impl_->address, timeout_);
  });
}

std::string process_group::shared(std::string text, int root) {
  if (alone()) return text;
  impl_->watched("a broadcast", [&] {
    c10d::BroadcastOptions from;
    from.rootRank = root;
    std::vector<at::Tensor> size{torch::tensor(std::ssize(text), torch::kInt64)};
    impl_->control->broadcast(size, from)->wait();
    text.resize(static_cast<std::size_t>(size.front().item<std::int64_t>()));
    if (text.empty()) return;
    std::vector<at::Tensor> bytes{bytes_of(text)};
    impl_->control->broadcast(bytes, from)->wait();
  });
  return text;
}

std::vector<std::string> process_group::gathered(const std::string& text) {
  if (alone()) return {text};
  const std::int64_t longest = -smallest({-std::ssize(text)}).wait().front();
  // All of one length: the text's length, the text, and padding.
  std::string padded = fmt::format("{:020}", text.size()) + text;
  padded.resize(static_cast<std::size_t>(longest) + length_digits, ' ');
  std::vector<std::string> all;
  if (is_first()) all.assign(static_cast<std::size_t>(place_.world_size), padded);
  impl_->watched("a gathering", [&] {
    std::vector<at::Tensor> mine{bytes_of(padded)};
    std::vector<std::vector<at::Tensor>> into;
    if (is_first()) {
      auto& each = into.emplace_back();
      for (std::string& one : all) each.push_back(bytes_of(one));
    }
    impl_->control->gather(into, mine)->wait();
  });
  for (std::string& one : all) {
    one = one.substr(length_digits, std::stoull(one.substr(0, length_digits)));
  }
  return all;
}

void process_group::together(const std::function<void()>& f) {
  std::optional<error> wrong;
  try {
    f();
  } catch (const failure& e) {
    wrong = e.why();
  } catch (const c10::Error& e) {
    wrong = error_of_torch(e);
  } catch (const std::bad_alloc&) {
    wrong = out_of_memory();
  } catch (const std::exception& e) {
    wrong = error(errc::internal, e.what());
  }
  if (alone()) {
    if (wrong) throw failure(*wrong);
    return;
  }
  agree_on(wrong);
}

void process_group::agree_on(const std::optional<error>& mine) {
  const std::int64_t none = place_.world_size;
  const std::int64_t first = smallest({mine ? place_.rank : none}).wait().front();
  if (first == none) return;
  const std::string said = shared(mine ? text_of(*mine) : "", static_cast<int>(first));
  if (first == place_.rank) throw failure(*mine);
  throw failure(error_from(said, static_cast<int>(first)));
}

void process_group::broadcast(at::Tensor& t) {
  if (alone()) return;
  impl_->watched("a broadcast", [&] {
    std::vector<at::Tensor> all{t};
    (t.is_cuda() ? impl_->data : impl_->control)->broadcast(all)->wait();
  });
}

void process_group::sum(at::Tensor& t) {
  if (alone()) return;
  impl_->watched("a sum", [&] {
    std::vector<at::Tensor> all{t};
    (t.is_cuda() ? impl_->data : impl_->control)->allreduce(all)->wait();
  });
}

void process_group::barrier() {
  smallest({0}).wait();
}

process_group::agreement process_group::smallest(std::vector<std::int64_t> values,
                                                 std::vector<std::int64_t> addends) {
  agreement begun;
  begun.impl_ = std::make_shared<agreement::impl>();
  begun.impl_->group = impl_.get();
  const auto begin = [&](const std::vector<std::int64_t>& of, c10d::ReduceOp::RedOpType by) {
    if (of.empty()) return;
    auto& part = begun.impl_->parts.emplace_back();
    part.values.push_back(torch::tensor(of));
    if (alone()) return;
    impl_->watched("an agreement", [&] {
      c10d::AllreduceOptions options;
      options.reduceOp = by;
      part.work = impl_->control->allreduce(part.values, options);
    });
  };
  begin(values, c10d::ReduceOp::MIN);
  begin(addends, c10d::ReduceOp::SUM);
  return begun;
}

std::vector<std::int64_t> process_group::agreement::wait() {
  std::vector<std::int64_t> all;
  for (auto& part : impl_->parts) {
    if (part.work) impl_->group->watched("an agreement", [&] { part.work->wait(); });
    const at::Tensor& t = part.values.front();
    const auto* begin = t.data_ptr<std::int64_t>();
    all.insert(all.end(), begin, begin + t.numel());
  }
  return all;
}

struct data_parallel::impl {
  process_group& group;
  std::vector<std::pair<std::string, at::Tensor>> parameters;  // those that are trained
  std::vector<at::Tensor> buffers;
  std::shared_ptr<c10d::Reducer> reducer;  // null: alone
};

namespace {

std::shared_ptr<c10d::Reducer> make_reducer(const torch::nn::Module& model,
                                            const c10::intrusive_ptr<ProcessGroup>& group,
                                            gradients_in where) {
  std::vector<at::Tensor> tensors;
  std::unordered_map<std::size_t, std::string> names;
  for (const auto& p : model.named_parameters()) {
    if (!p.value().requires_grad()) continue;
    names[tensors.size()] = p.key();
    tensors.push_back(p.value());
  }
  auto [buckets, sizes] =
      c10d::compute_bucket_assignment_by_size(tensors, {first_bucket_bytes, bucket_bytes});
  // The last layers' gradients are ready first.
  std::reverse(buckets.begin(), buckets.end());
  const std::vector<bool> sparse(tensors.size(), false);
  return std::make_shared<c10d::Reducer>(
      tensors, buckets, group, sparse, static_cast<std::int64_t>(bucket_bytes),
      /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/where == gradients_in::buckets,
      names, static_cast<std::int64_t>(first_bucket_bytes), /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, std::vector<std::int64_t>());
}

}  // namespace

data_parallel::data_parallel(process_group& group, const torch::nn::Module& model,
                             gradients_in where)
    : impl_(new impl{group, {}, model.buffers(), nullptr}) {
  for (const auto& p : model.named_parameters()) {
    if (p.value().requires_grad()) impl_->parameters.emplace_back(p.key(), p.value());
  }
  if (group.alone()) return;
  const torch::NoGradGuard no_grad;
  for (auto& p : model.parameters()) group.broadcast(p);
  share_buffers();
  impl_->reducer = make_reducer(model, group.impl_->data, where);
}

data_parallel::~data_parallel() = default;

void data_parallel::backward(const at::Tensor& loss, bool is_last) {
  // The reducer ignores other losses' gradients; the hooks of the last one's find their sum.
  if (!impl_->reducer || !is_last) return loss.backward();
  impl_->group.impl_->watched("averaging the gradients", [&] {
    impl_->reducer->prepare_for_forward();  // counts the step
    impl_->reducer->prepare_for_backward(std::vector<at::Tensor>{loss});
    loss.backward();
  });
  for (const auto& [name, p] : impl_->parameters) {
    if (p.grad().defined()) continue;  // else the reducer waits for it, with those that follow
    throw failure(
        error(errc::usage, fmt::format("the parameter '{}' took no part in the loss", name))
            .hint("leave it out, set its requires_grad to false, or train with one rank"));
  }
}

double data_parallel::weight(std::int64_t samples, std::int64_t all_samples) const {
  const std::int64_t of_ranks = samples * impl_->group.place().world_size;
  return static_cast<double>(of_ranks) / static_cast<double>(all_samples);
}

void data_parallel::backward_without_samples() {
  at::Tensor none;  // zeros, by way of all parameters: the reducer waits for the gradient of each
  for (const auto& [name, p] : impl_->parameters) {
    const at::Tensor of_one = p.flatten().slice(0, 0, 1).sum() * 0;
    none = none.defined() ? none + of_one : of_one;
  }
  backward(none);
}

void data_parallel::share_buffers() {
  const torch::NoGradGuard no_grad;
  for (auto& b : impl_->buffers) impl_->group.broadcast(b);
}

}  // namespace millrace
