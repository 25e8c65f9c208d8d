#include "tests/support/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "engine/coroutines/async.h"
#include "engine/host/log.h"
#include "engine/host/seams.h"
#include "pipeline/state/state.h"
#include "tests/support/unhooked.h"

namespace millrace::testing {
namespace {

// Makes asio fire its timers, at once and before all others.
using waker = asio::basic_waitable_timer<steady_clock>;

// Code that runs here allocates for the program, not for the simulator. An exception ends the
// program, as on a thread of the runtime.
template <class F>
bool as_the_program(F f) noexcept {
  const int before = std::exchange(unhooked::depth, 0);
  const bool out = f();
  unhooked::depth = before;
  return out;
}

}  // namespace

simulator::simulator(std::uint64_t seed)
    : files(seed),
      replay("seed " + std::to_string(seed)),
      random_(seed, purpose::fake_data, 1),
      lengths_(seed, purpose::fake_data, 2),
      trace_(fingerprint("")) {
  simulate_clock(this);
  simulate_threads(this);
  simulate_files(&files);
}

// The kernel answers stat_known() from memory, and the files of the gate, which are on this host,
// have no blocks to wait for.
static bool may_block(std::string_view call) {
  const auto path = call.substr(call.find(' ') + 1);
  const bool is_of_gate = path.find("/millrace-gate-") != path.npos || path == "/gate" ||
                          path == "/run/lock" || path == "/dev/shm" || path == "/tmp";
  return !call.starts_with("close ") && !call.starts_with("stat_known ") && !is_of_gate;
}

simulator::~simulator() {
  simulate_files(nullptr);
  simulate_threads(nullptr);
  simulate_clock(nullptr);
  for (const std::string& call : files.calls_on_io_threads) {
    if (may_block(call)) ADD_FAILURE() << "on an I/O thread: " << call;
  }
}

void simulator::run_as(int process) {
  current_ = process;
  files.run_as(process);
}

void simulator::began(io_thread& io) {
  const unhooked here;
  ios_.push_back({&io, current_});
}
void simulator::ended(io_thread& io) {
  std::erase_if(ios_, [&](const loop& l) { return l.io == &io; });
}
void simulator::began(worker_pool& pool) {
  const unhooked here;
  pools_.push_back({&pool, current_});
}
void simulator::ended(worker_pool& pool) {
  std::erase_if(pools_, [&](const auto& p) { return p.of == &pool; });
}

void simulator::queued(worker_pool& to) {
  const unhooked here;
  const auto p = std::ranges::find_if(pools_, [&](const pool& one) { return one.of == &to; });
  steady_clock::duration takes = std::chrono::microseconds(lengths_.below(3000));
  if (stall.count() > 0 && lengths_.below(200) == 0) takes = stall;
  p->due.push_back(now_ + takes);
}

void simulator::took(std::uint64_t what) {
  ++steps_;
  for (const std::uint64_t word :
       {what, static_cast<std::uint64_t>(now_.time_since_epoch().count())}) {
    trace_ = (trace_ ^ word) * 0x100000001b3U;
  }
}

bool simulator::step() {
  choices_.clear();
  for (loop& l : ios_) {
    if (!l.idle) choices_.push_back({&l, nullptr, 0});
  }
  for (pool& p : pools_) {
    const auto at_once = std::min(p.due.size(), static_cast<std::size_t>(p.of->threads()));
    for (std::size_t i = 0; i < at_once; ++i) {
      if (p.due[i] <= now_) choices_.push_back({nullptr, &p, i});
    }
  }
  if (choices_.empty()) return false;
  const auto which = random_.below(static_cast<std::uint32_t>(choices_.size()));
  const choice next = choices_[which];
  if (next.io != nullptr) {
    files.run_as(next.io->process);
    files.is_on_io_thread = true;
    next.io->idle = as_the_program([&] { return next.io->io->context().poll_one() == 0; });
    files.is_on_io_thread = false;
    if (!next.io->idle) took(which);
  } else {
    files.run_as(next.from->process);
    next.from->due.erase(next.from->due.begin() + static_cast<std::ptrdiff_t>(next.task));
    worker_pool& of = *next.from->of;
    took(1000 + which);
    for (loop& l : ios_) l.idle = false;
    as_the_program([&] {
      of.run_one(next.task);
      return true;
    });
  }
  files.run_as(current_);
  return true;
}

// Moves to the next moment at which something can run; false if there is none.
bool simulator::advance() {
  time_point next = timers_.empty() ? time_point::max() : *timers_.begin();
  for (const pool& p : pools_) {
    const auto at_once = std::min(p.due.size(), static_cast<std::size_t>(p.of->threads()));
    for (std::size_t i = 0; i < at_once; ++i) next = std::min(next, p.due[i]);
  }
  if (next == time_point::max()) return false;
  now_ = std::max(now_, next);
  if (jump) now_ += jump();
  if (!timers_.empty() && *timers_.begin() <= now_) {
    timers_.erase(timers_.begin(), timers_.upper_bound(now_));
    fire_timers();
  }
  return true;
}

void simulator::fire_timers() {
  for (loop& l : ios_) {
    files.run_as(l.process);
    asio::io_context& context = l.io->context();
    bool fired = false;
    waker now(context, time_point::min());
    now.async_wait([&fired](const auto&) { fired = true; });
    while (!fired) context.poll_one();
    l.idle = false;
  }
  files.run_as(current_);
}

void simulator::run_until(const std::function<bool()>& over) {
  const unhooked here;
  const time_point end = now_ + longest;
  for (loop& l : ios_) l.idle = false;
  while (!over()) {
    if (step()) continue;
    if (!advance()) hang("everything waits, and nobody wakes");
    if (now_ > end) hang("it takes too long");
  }
}

void simulator::hang(const char* why) const {
  std::fprintf(stderr, "simulation: %s, after %llu steps; %s\n", why,
               static_cast<unsigned long long>(steps_), replay.c_str());
  std::_Exit(3);
}

}  // namespace millrace::testing
