#include "train/ranks/rendezvous.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <poll.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "engine/host/clock.h"
#include "train/files.h"
#include "train/ranks/lifeline.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

// The time that one request waits for a key before the ranks look at what else has happened.
constexpr milliseconds slice{1000};

constexpr const char* generation_key = "generation";  // and world size, by rank 0
constexpr const char* refused_key = "refused";        // what the last refused process was told

std::string key_of(const std::string& generation, const char* what, int rank) {
  return fmt::format("{}/{} {}", generation, what, rank);
}

// Set when all ranks of a generation have come.
std::string all_key(const std::string& generation) {
  return generation + "/all";
}

// Set when a generation was followed by another one.
std::string over_key(const std::string& generation) {
  return generation + "/over";
}

// Why the address of a host is not known; empty: it is, or the resolver does not answer in time.
std::string why_unknown(const std::string& host) {
  struct look_up {
    std::string name;
    gaicb query{};
  };
  auto asked = std::make_unique<look_up>(look_up{host});
  asked->query.ar_name = asked->name.c_str();
  gaicb* query = &asked->query;
  if (getaddrinfo_a(GAI_NOWAIT, &query, 1, nullptr) != 0) return "";
  constexpr timespec patience{.tv_sec = 2, .tv_nsec = 0};
  gai_suspend(&query, 1, &patience);
  const int code = gai_error(query);
  if (code == EAI_INPROGRESS) {
    [[maybe_unused]] const auto* const resolvers = asked.release();  // it will still write there
    return "";
  }
  if (code == 0) freeaddrinfo(query->ar_result);
  return code == 0 ? "" : gai_strerror(code);
}

// "rank 2", "ranks 2, 3 and 5", "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 40 more".
std::string names_of(const std::vector<int>& ranks) {
  constexpr std::size_t most = 8;
  if (ranks.empty()) return "no rank";
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  const std::size_t listed = std::min(ranks.size() - 1, most);
  const std::string rest = ranks.size() - listed == 1
                               ? std::to_string(ranks.back())
                               : fmt::format("{} more", ranks.size() - listed);
  return fmt::format("ranks {} and {}", fmt::join(std::span(ranks).first(listed), ", "), rest);
}

// One process's part in a rendezvous.
class meeting {
 public:
  meeting(c10d::Store& store, const rendezvous_terms& terms)
      : store_(store), terms_(terms), place_(terms.place), begun_(steady_clock::now()) {}

  std::string as_first();
  std::string as_other();

 private:
  struct announcement {
    std::string generation;
    std::string world_size;
  };

  bool comes(const std::string& key);
  announcement announced();
  bool is_taken(const announcement& now);
  [[noreturn]] void refuse(const std::string& what, const std::string& hint);
  [[noreturn]] void refuse_second();
  std::vector<int> missing(const std::string& generation);
  std::string refused();
  void look_around(const std::function<std::string()>& waits_for);

  c10d::Store& store_;
  const rendezvous_terms& terms_;
  const job_place& place_;
  steady_clock::time_point begun_;
  const std::string id_ = unique_name();
  std::string joined_;         // the generation
  bool has_answered_ = false;  // in it, once all had come
  bool has_noted_ = false;
};

// Waits for a key for a while. False if it has not come.
bool meeting::comes(const std::string& key) {
  try {
    store_.wait({key}, std::min(slice, terms_.patience));
    return true;
  } catch (const c10::DistStoreError&) {
    return false;
  }
}

// The others keep waiting; their timeout error quotes this refusal.
void meeting::refuse(const std::string& what, const std::string& hint) {
  store_.set(refused_key, what);
  throw failure(error(errc::usage, what).hint(hint));
}

void meeting::refuse_second() {
  refuse(fmt::format("another process is rank {} of this job too", place_.rank),
         "give each process its own RANK; if this one has been restarted, restart all");
}

std::vector<int> meeting::missing(const std::string& generation) {
  std::vector<int> out;
  for (int rank = 0; rank < place_.world_size; ++rank) {
    if (!store_.check({key_of(generation, "rank", rank)})) out.push_back(rank);
  }
  return out;
}

std::string meeting::refused() {
  return store_.check({refused_key}) ? "; refused: " + store_.get_to_str(refused_key) : "";
}

// After each wait that brought nothing: says what is waited for, once, and ends the waiting in
// time.
void meeting::look_around(const std::function<std::string()>& waits_for) {
  const auto waited = steady_clock::now() - begun_;
  if (waited >= terms_.timeout) {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(terms_.timeout);
    throw failure(not_joined(place_, fmt::format("{} did not come within {} s{}", waits_for(),
                                                 seconds.count(), refused())));
  }
  if (has_noted_ || waited < terms_.patience) return;
  has_noted_ = true;
  const auto left = std::chrono::ceil<std::chrono::seconds>(terms_.timeout - waited);
  if (terms_.note) {
    terms_.note(fmt::format("rank {} of {} waits for {}, for up to {} s more{}", place_.rank,
                            place_.world_size, waits_for(), left.count(), refused()));
  }
}

std::string meeting::as_first() {
  // Torchrun's store outlives its processes; another one ends with its rank 0.
  if (!place_.agent_serves_store && store_.add("rank 0", 1) != 1) refuse_second();
  const std::string before =
      store_.check({generation_key}) ? announced().generation : std::string();
  const std::string generation = unique_name();
  store_.set(generation_key, fmt::format("{} {}", generation, place_.world_size));
  if (!before.empty()) store_.set(over_key(before), "");
  store_.set(key_of(generation, "rank", 0), id_);
  for (int rank = 0; rank < place_.world_size; ++rank) {
    while (!comes(key_of(generation, "rank", rank))) {
      look_around([&] { return names_of(missing(generation)); });
    }
  }
  // One that has come may be dead by now, and another one in its place: those that live answer.
  store_.set(all_key(generation), "");
  for (int rank = 1; rank < place_.world_size; ++rank) {
    while (!comes(key_of(generation, "answer", rank))) {
      look_around([&] { return fmt::format("rank {}", rank); });
    }
  }
  for (int rank = 1; rank < place_.world_size; ++rank) {
    store_.set(key_of(generation, "taken", rank),
               store_.get_to_str(key_of(generation, "answer", rank)));
  }
  return generation;
}

// The announcement of rank 0.
meeting::announcement meeting::announced() {
  const std::string said = store_.get_to_str(generation_key);
  const std::size_t space = std::min(said.find(' '), said.size() - 1);
  return {said.substr(0, space), said.substr(space + 1)};
}

// Whether this process is its rank in what rank 0 has announced. False if that is still open, or
// of an earlier attempt.
bool meeting::is_taken(const announcement& now) {
  if (now.world_size != std::to_string(place_.world_size)) {
    if (place_.agent_serves_store) {
      comes(over_key(now.generation));
      return false;
    }
    refuse(fmt::format("rank {}: the world size is {} here, and {} on rank 0", place_.rank,
                       place_.world_size, now.world_size),
           "start all ranks with the same WORLD_SIZE");
  }
  const std::string own = key_of(now.generation, "rank", place_.rank);
  if (now.generation != joined_) {
    store_.set(own, id_);
    joined_ = now.generation;
    has_answered_ = false;
  }
  if (!has_answered_) {
    if (!comes(all_key(now.generation))) {
      if (store_.get_to_str(own) != id_) refuse_second();
      return false;
    }
    store_.set(key_of(now.generation, "answer", place_.rank), id_);
    has_answered_ = true;
  }
  const std::string taken = key_of(now.generation, "taken", place_.rank);
  if (!comes(taken)) return false;
  if (store_.get_to_str(taken) == id_) return true;
  // One that is started again may come while what it belonged to still ends.
  if (!place_.agent_serves_store && place_.attempt == 0) refuse_second();
  comes(over_key(now.generation));
  return false;
}

std::string meeting::as_other() {
  while (!comes(generation_key) || !is_taken(announced())) {
    look_around([&] { return joined_.empty() ? std::string("rank 0") : "the other ranks"; });
  }
  return joined_;
}

}  // namespace

error not_joined(const job_place& p, const std::string& why) {
  const std::string unknown = why_unknown(p.master_address);
  error e(errc::peer_lost, fmt::format("rank {} of {}: joining the job at {}:{} failed ({})",
                                       p.rank, p.world_size, p.master_address, p.master_port,
                                       unknown.empty() ? why.substr(0, why.find('\n'))
                                                       : "no such host: " + unknown));
  if (!unknown.empty()) return e.hint("set MASTER_ADDR to the host of rank 0");
  if (why.find("EADDRINUSE") != why.npos) {
    return e.hint(
        "another program uses this port, or another process has rank 0 too: set "
        "MASTER_PORT to a free one, for all ranks, and give each its own rank");
  }
  if (!p.how_to_start.empty() && p.rank == 0) {
    return e.hint(fmt::format("start all {} ranks {}", p.world_size, p.how_to_start));
  }
  return e.hint(p.rank == 0 ? fmt::format("start all {} ranks, with this MASTER_ADDR and "
                                          "MASTER_PORT; --timeout is how long they are waited for",
                                          p.world_size)
                            : "start rank 0 too, on the host that MASTER_ADDR names, and see that "
                              "its port can be reached from here");
}

std::string meet(c10d::Store& store, const rendezvous_terms& terms) {
  meeting own(store, terms);
  return terms.place.rank == 0 ? own.as_first() : own.as_other();
}

c10::intrusive_ptr<c10d::Store> join_store(const rendezvous_terms& terms,
                                           const std::function<void()>& is_reached) {
  const job_place& place = terms.place;
  const auto until = steady_clock::now() + terms.timeout;
  const bool serves = place.rank == 0 && !place.agent_serves_store;
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(place.master_port);
  options.isServer = serves;
  options.numWorkers = static_cast<std::size_t>(place.world_size);
  options.waitWorkers = false;
  options.timeout = terms.timeout;
  for (;;) {
    // Torch looks up the names of addresses that refuse it, by name servers that may not answer.
    if (!serves) wait_while_refused(place.master_address, place.master_port, until);
    try {
      // Ranks of another job that has come to the same port are none of this one's.
      const auto store = c10::make_intrusive<c10d::PrefixStore>(
          "job " + place.job, c10::make_intrusive<c10d::TCPStore>(place.master_address, options));
      is_reached();
      rendezvous_terms rest = terms;
      rest.timeout = std::chrono::floor<milliseconds>(until - steady_clock::now());
      return c10::make_intrusive<c10d::PrefixStore>(meet(*store, rest), store);
    } catch (const c10::DistNetworkError&) {
      if (serves || place.agent_serves_store || steady_clock::now() >= until) throw;
    }
    poll(nullptr, 0, 100);  // it may not have closed its port
  }
}

}  // namespace millrace
