// What finding and hearing each other costs the ranks of a job, as threads of one process on this
// host. Beyond some hundred of them the host's cores are what is measured: how the figures grow
// counts, and what a rank needs of each.
//
//   ranks_bench meet N      N ranks meet by a store that rank 0 serves
//   ranks_bench lifeline N  N - 1 connections to rank 0; then a hundredth of them is lost
//   ranks_bench group N     N whole process groups (Gloo), and what one agreement takes
#include <fmt/format.h>
#include <sys/resource.h>

#include <c10/util/Logging.h>
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <filesystem>
#include <latch>
#include <memory>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "engine/host/standard_error.h"
#include "engine/host/start_thread.h"
#include "tools/bench/measure.h"
#include "train/ranks/distributed.h"
#include "train/ranks/lifeline.h"
#include "train/ranks/rendezvous.h"

namespace {

using namespace millrace;
using namespace std::chrono_literals;

job_place place_of(int rank, int ranks, int port) {
  return {.rank = rank,
          .world_size = ranks,
          .launcher = "ranks_bench",
          .master_address = "127.0.0.1",
          .master_port = port,
          .job = "ranks_bench"};
}

std::ptrdiff_t descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

double resident_mb() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_maxrss) * 1024 / 1e6;
}

// Calls `f` of each rank on a thread of its own; how long all of them took, in seconds.
double each_rank(int ranks, const auto& f) {
  const stopwatch_pair watch;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    threads.push_back(start_thread("rank", [rank, &f] { f(rank); }));
  }
  for (std::thread& one : threads) one.join();
  return watch.seconds();
}

void meeting(int ranks, int port) {
  std::latch have_met(ranks);
  const double before = resident_mb();
  const double seconds = each_rank(ranks, [&](int rank) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(port);
    options.isServer = rank == 0;
    options.waitWorkers = false;
    if (rank > 0) wait_while_refused("127.0.0.1", port, steady_clock::now() + 300s);
    c10d::TCPStore store("127.0.0.1", options);
    meet(store, {.place = place_of(rank, ranks, port)});
    // Rank 0 serves until all have met.
    have_met.count_down();
    if (rank == 0) have_met.wait();
  });
  fmt::print("{} ranks met in {:.2f} s, {:.1f} ms a rank; {:.0f} MB\n", ranks, seconds,
             1e3 * seconds / ranks, resident_mb() - before);
}

void lifelines(int ranks, int port) {
  const stopwatch_pair watch;
  lifeline first(ranks - 1, [](int) {});
  std::vector<std::unique_ptr<lifeline>> others;
  for (int rank = 1; rank < ranks; ++rank) {
    others.push_back(
        std::make_unique<lifeline>(place_of(rank, ranks, port), first.at(), [](int) {}));
  }
  first.address(60s);
  const double connected = watch.seconds();
  const auto open = descriptors();
  const stopwatch_pair losing;
  const int lost = std::max(1, ranks / 100);
  for (int i = 0; i < lost; ++i) others.pop_back();
  first.lost_within(60s);
  others.front()->lost_within(60s);
  fmt::print(
      "{} lifelines connected in {:.2f} s; {} lost, which rank 1 knows after {:.0f} ms; {} "
      "descriptors in this process, of which {} are rank 0's connections\n",
      ranks, connected, lost, 1e3 * losing.seconds(), open, ranks - 1);
  for (auto& one : others) one->end();
  first.end();
}

void groups(int ranks, int port) {
  constexpr int agreements = 200;
  std::barrier all(ranks);
  std::atomic<double> joined = 0;
  std::atomic<double> agreed = 0;
  std::atomic<std::ptrdiff_t> open = 0;
  const stopwatch_pair watch;
  each_rank(ranks, [&](int rank) {
    process_group group(place_of(rank, ranks, port), 300s);
    group.connect(c10::kCPU);
    all.arrive_and_wait();
    if (rank == 0) {
      joined = watch.seconds();
      open = descriptors();
    }
    const stopwatch_pair agreeing;
    for (int i = 0; i < agreements; ++i) group.smallest({1, 2, 3, 4, 5, 6}).wait();
    if (rank == 0) agreed = agreeing.seconds();
    all.arrive_and_wait();
  });
  fmt::print("{} process groups in {:.2f} s, {:.0f} descriptors a rank; an agreement {:.2f} ms\n",
             ranks, joined.load(), static_cast<double>(open) / ranks, 1e3 * agreed / agreements);
}

}  // namespace

int main(int argc, char** argv) {
  FLAGS_caffe2_log_level = c10::GLOG_FATAL;
  const std::string_view what = argc > 1 ? argv[1] : "";
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 0;
  constexpr int port = 23457;
  if (ranks > 1 && what == "meet") {
    meeting(ranks, port);
  } else if (ranks > 1 && what == "lifeline") {
    lifelines(ranks, port);
  } else if (ranks > 1 && what == "group") {
    groups(ranks, port);
  } else {
    to_stderr("usage: ranks_bench meet|lifeline|group N\n");
    return 2;
  }
}
