// A training loop of your own on LibTorch, on any number of ranks. Stopped by a signal, it saves,
// and the same command continues after the last batch that it trained on; SIGUSR1 saves as well.
//
//   example_own_training 'train-{000000..000003}.tar' 3 CHECKPOINTS
//
// On two ranks: torchrun --no-python --nproc-per-node 2 example_own_training ... Ranks among which
// a model is divided read the same samples: with a fourth argument, the data have as many parts,
// and neighbouring ranks share one.
#include <millrace/millrace.h>
#include <millrace/train.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

using namespace millrace;

namespace {

constexpr int size = 32;
constexpr int classes = 10;

plan<host_batch> batches_of(const char* shards_spec, std::int64_t epochs, const job_place& place) {
  return shards(expand(shards_spec),
                {.seed = 1, .rank = place.rank, .world_size = place.world_size, .epochs = epochs}) |
         untar() | group_by_key() | shuffle({.samples = 1000, .seed = 1}) |
         decode_jpeg({.size = size, .seed = 1, .classes = classes}) | on_error(skip_up_to(10)) |
         batch({.size = 32, .drop_last = true}) | prefetch(2);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4 && argc != 5) {
    std::fprintf(
        stderr, "usage: example_own_training 'train-{000000..000003}.tar' 3 CHECKPOINTS [PARTS]\n");
    return 2;
  }
  const std::int64_t epochs = std::strtol(argv[2], nullptr, 10);
  signal_watch signals;
  process_group ranks(job_place::from_environment());
  const data_ranks parts =
      argc < 5 ? data_ranks(ranks.place()) : data_ranks(ranks, -1, std::atoi(argv[4]));
  const auto device = pick_device("auto", ranks.place().local_rank);
  ranks.connect(device);

  torch::manual_seed(1);
  torch::nn::Sequential net(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3).stride(2)), torch::nn::ReLU(),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).stride(2)), torch::nn::ReLU(),
      torch::nn::AdaptiveAvgPool2d(1), torch::nn::Flatten(), torch::nn::Linear(32, classes));
  net->to(device);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(2e-3));

  engine eng(engine_options::from_environment());
  auto data = eng.run(batches_of(argv[1], epochs, parts.place()), signals.control().stop);
  run_checkpoints saved({.folder = argv[3], .resume = "auto", .parts = parts}, ranks);
  // How far the run is; the weights and the optimizer's state are filled in when it is saved.
  checkpoint at{{.batch_size = 32, .world_size = parts.place().world_size}, {}, {}};
  if (auto c = saved.load(lanes_of(data.save()), at.batch_size)) {
    load_weights(*net, c->model, saved.resumed());
    load_state(optimizer, c->optimizer, saved.resumed());
    data.restore(c->data);
    at.step = c->step;
    at.epoch = c->epoch;
    at.batch_in_epoch = c->batch_in_epoch;
  }
  const auto save = [&](const state& position) {
    at.model = weights_of(*net);
    at.optimizer = state_of(optimizer);
    at.data = position;
    saved.save(at);
  };

  data_parallel model(ranks, *net);
  to_device hand_off(device);
  lockstep batches(data, ranks, signals.control(), rest_of_epoch::dropped, parts);
  signals.control().training_begins();  // from here on, a signal is a request to save
  while (at.epoch < epochs) {
    at::Tensor loss;
    while (auto b = batches.next()) {
      const device_batch in = hand_off(std::move(*b));
      optimizer.zero_grad();
      loss = torch::nn::functional::cross_entropy(net->forward(in.images), in.labels);
      model.backward(loss);
      optimizer.step();
      ++at.step;
      ++at.batch_in_epoch;
      batches.agree();
      if (batches.take_save_request() && batches.position()) save(*batches.position());
    }
    if (batches.ending() != 0) {  // asked to end in mid-epoch
      if (batches.position()) save(*batches.position());
      return 128 + batches.ending();
    }
    ++at.epoch;
    at.batch_in_epoch = 0;
    save(data.save());
    if (!ranks.is_first()) continue;
    std::printf("epoch %lld: step %lld, loss %.3f\n", static_cast<long long>(at.epoch),
                static_cast<long long>(at.step), loss.defined() ? loss.item<double>() : 0.0);
    std::fflush(stdout);
  }
} catch (const failure& f) {
  std::fprintf(stderr, "own_training: %s\n", f.what());
  return exit_code(f.kind());
}
