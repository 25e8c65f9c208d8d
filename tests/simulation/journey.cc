#include "tests/simulation/journey.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <new>

#include "engine/host/seams.h"
#include "io/cache/cached_source.h"
#include "io/stores/http.h"
#include "millrace/millrace.h"
#include "pipeline/state/merged.h"
#include "tests/simulation/allocations.h"
#include "tests/support/scripted_processes.h"
#include "tests/support/tar_builder.h"
#include "tests/support/unhooked.h"
#include "tools/write/fake.h"
#include "train/checkpoints/checkpoint_folder.h"

namespace millrace::testing {
namespace {

using namespace std::chrono_literals;

constexpr int shard_count = 6;
constexpr int lanes = 4;

struct data_set {
  std::vector<std::string> names;
  std::map<std::string, std::string> content;
};

data_set make_data(bool images) {
  data_set made;
  for (int i = 0; i < shard_count; ++i) made.names.push_back(fmt::format("s{}.tar", i));
  if (!images) {
    for (int i = 0; i < shard_count; ++i) {
      made.content[made.names[static_cast<std::size_t>(i)]] = text_shard(i * 1000, 8 + 3 * i, 700);
    }
    return made;
  }
  // Written by the library itself, to a disk in memory.
  memory_files disk;
  disk.put("/d/x", "");
  simulate_files(&disk);
  std::vector<std::string> paths;
  for (const auto& name : made.names) paths.push_back("/d/" + name);
  write_fake_shards(paths, {.samples = 48, .classes = 4, .size = 24});
  simulate_files(nullptr);
  for (const auto& name : made.names) made.content[name] = disk.content("/d/" + name);
  return made;
}

const data_set& data_of(bool images) {
  static const data_set text = make_data(false);
  static const data_set pictures = make_data(true);
  return images ? pictures : text;
}

// A server of the data set. `random`: null, or the source of its troubles.
std::vector<sent> answer(const data_set& data, const std::string& request, random_stream* random) {
  const std::size_t slash = request.find('/');
  const auto found =
      data.content.find(request.substr(slash + 1, request.find(' ', slash) - slash - 1));
  if (found == data.content.end()) {
    return {{.bytes = "HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n"}};
  }
  const double luck = random != nullptr ? random->uniform() : 1;
  if (luck < 0.05) return {{.bytes = "HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"}};
  if (luck < 0.08) return {{.bytes = "HTT", .ends = sent::end::fin}};
  if (luck < 0.10) return {{.bytes = {}, .ends = sent::end::reset}};
  const std::string& all = found->second;
  std::size_t begin = 0;
  std::size_t end = all.size();
  const auto range = request.find("Range: bytes=");
  if (range != std::string::npos) {
    const std::string text = request.substr(range + 13, request.find('\r', range) - range - 13);
    begin = std::stoull(text);
    const auto dash = text.find('-');
    if (dash + 1 < text.size())
      end = std::min<std::size_t>(end, std::stoull(text.substr(dash + 1)) + 1);
  }
  std::string head = range == std::string::npos
                         ? std::string("HTTP/1.1 200 x\r\n")
                         : fmt::format("HTTP/1.1 206 x\r\nContent-Range: bytes {}-{}/{}\r\n", begin,
                                       end - 1, all.size());
  head += fmt::format("ETag: \"v1\"\r\nContent-Length: {}\r\n\r\n", end - begin);
  std::vector<sent> out{{.after = 1ms, .bytes = head}};
  if (request.starts_with("HEAD")) return out;
  constexpr std::size_t piece = 3000;
  for (std::size_t at = begin; at < end; at += piece) {
    out.push_back({.after = 300us, .bytes = all.substr(at, std::min(piece, end - at))});
    const double fate = random != nullptr ? random->uniform() : 1;
    if (fate >= 0.03) continue;
    out.back().bytes.resize(out.back().bytes.size() / 2);
    if (fate < 0.01) out.back().ends = sent::end::fin;
    if (fate >= 0.01 && fate < 0.02) out.back().ends = sent::end::reset;
    break;  // otherwise it stalls
  }
  return out;
}

const char* front_of(course::storage from) {
  return from == course::storage::file   ? "/data/"
         : from == course::storage::pipe ? "pipe:fetch /"
                                         : "http://h/";
}

// A command that writes a file of the data set. `random`: null, or the source of its pieces and
// pauses.
script fetch(const data_set& data, const std::string& command, random_stream* random) {
  const std::string& all = data.content.at(command.substr(command.find('/') + 1));
  script out{.writes = {{1ms, "fetching\n", child_process::output::err}}};
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t size =
        random == nullptr ? 3000 : 1 + random->below(random->below(4) == 0 ? 9 : 9000);
    const bool pauses = random != nullptr && random->below(50) == 0;
    out.writes.push_back({pauses ? script::duration(20s) : 300us, all.substr(at, size)});
    at += size;
  }
  if (random != nullptr) out.ends_after = out.closes_after = script::duration(random->below(9000));
  return out;
}

std::string line_of(const origin& where, const std::string& key, std::uint64_t content) {
  return fmt::format("{:06} {} {:016x}", where.position, key, content);
}

void note(const sample& s, std::vector<std::string>& into) {
  const unhooked here;
  std::uint64_t content = fingerprint("");
  for (const field& f : s.fields) content = fingerprint(f.data.text(), content);
  into.push_back(line_of(s.where, s.key, content));
}

void note(const host_batch& b, std::vector<std::string>& into) {
  const unhooked here;
  const std::size_t each = b.payload_bytes() / b.size();
  for (std::size_t i = 0; i < b.size(); ++i) {
    const auto* pixels = reinterpret_cast<const char*>(b.data()) + i * each;
    into.push_back(line_of(b.origins[i], b.keys[i], fingerprint(std::string_view(pixels, each))));
  }
}

// Notes an error that left the library: of the first run, or of the resumed job.
void note_failure(const std::exception_ptr& thrown, ending& out) {
  const unhooked here;
  errc kind = errc::internal;
  std::string why;
  try {
    std::rethrow_exception(thrown);
  } catch (const failure& f) {
    kind = f.kind();
    why = f.what();
  } catch (const std::bad_alloc&) {
    kind = errc::no_memory;
    why = "std::bad_alloc";
  } catch (const std::exception& e) {
    why = e.what();
  }
  if (out.failed) {
    out.failed_again = why;
  } else {
    out.failed = kind;
    out.why = why;
  }
}

// One job with its processes.
template <class T>
class job {
 public:
  job(simulator& sim, const course& c, ending& out) : sim_(sim), course_(c), out_(out) {
    const unhooked here;
    const data_set& data = data_of(c.decodes);
    for (const auto& name : data.names) {
      urls_.push_back(front_of(c.from) + name);
      if (c.from == course::storage::file) sim.files.put(urls_.back(), data.content.at(name));
    }
    sim.files.put("/tmp/x", "");
    sim.files.moves_pieces = c.troubled;
    commands_ = std::make_unique<scripted_processes>([this, &data](const std::string& command) {
      return fetch(data, command, course_.troubled ? &luck_ : nullptr);
    });
    net_->add("h", {"10.0.0.1"});
    net_->serve("10.0.0.1", [this, &data](const std::string& request) {
      return answer(data, request, course_.troubled ? &luck_ : nullptr);
    });
  }

  void run() {
    std::string saved;
    if (course_.stop_after >= 0) saved = run_part(course_.ranks, "", course_.stop_after);
    if (course_.is_checkpointed) saved = read_again(saved);
    if (course_.stop_after >= 0 && course_.crash) {
      const unhooked here;
      sim_.files.crash();
      for (int p = 0; p < course_.ranks; ++p) sim_.files.restart(p);
    }
    run_part(course_.stop_after >= 0 ? course_.ranks_after : course_.ranks, saved, -1);
  }
  // Commands that were neither ended nor waited for.
  int left_running() const { return commands_->running; }

 private:
  struct process {
    std::unique_ptr<engine> eng;
    std::unique_ptr<loader<T>> data;
    std::string position;              // as JSON, when last saved; empty: the beginning
    std::vector<std::string> unsaved;  // yielded since then
    std::uint64_t given = 0;
    bool ended = false;
  };

  engine_options options() {
    engine_options o;
    o.cpu_threads = 2;
    o.memory_bytes = 64_MiB;
    o.io = io_backend::pread;
    o.source.chunk_bytes = 8_KiB;
    o.source.read_ahead = 3;
    o.source.direct = direct_reads::never;
    o.source.serialize = 0;
    o.source.allow_pipe = true;
    o.source.http.attempts = course_.troubled ? 60 : 6;
    o.source.http.backoff = 1ms;
    o.source.http.split = 2;
    o.source.http.part_bytes = 16_KiB;
    if (course_.from == course::storage::cached) o.source.cache.folder = "/tmp/cache";
    o.add_sources = [this, source = o.source](source_registry& sources) {
      const auto disks = std::make_shared<disk_table>(sim_.newest_io().executor(), source);
      const auto cache = std::make_shared<object_cache>(source.cache, disks);
      sources.add("http", http_source_factory(
                              std::make_shared<http_stack>(source.http, net_, real_time()), cache));
    };
    return o;
  }

  auto plan_of(int rank, int world) {
    auto samples = shards(urls_, {.seed = 5, .rank = rank, .world_size = world, .lanes = lanes}) |
                   untar() | group_by_key() | shuffle({.samples = 20, .seed = 5});
    if constexpr (std::is_same_v<T, host_batch>) {
      return samples | decode_jpeg({.size = 16}) | batch({.size = 3}) | prefetch(2);
    } else if (course_.is_held) {
      return interleaved(samples) | map([](sample s) { return s; }, {.threads = 2}) | batched(3) |
             unbatched() | prefetch(2) |
             bucketed([](const sample&) { return 1; }, {{.up_to = 1, .size = 4}}) | unbatched();
    } else {
      return interleaved(samples);
    }
  }

  void start(int rank, int world, process& p, const std::string& whole) {
    sim_.run_as(rank);
    p.eng = std::make_unique<engine>(options());
    auto data = std::make_unique<loader<T>>(p.eng->run(plan_of(rank, world)));
    const std::string& from = p.position.empty() ? whole : p.position;
    if (!from.empty()) data->restore(state::from_json(from).value());
    p.data = std::move(data);
    p.given = 0;
    p.ended = false;
  }

  // As rank 0 writes and reads a checkpoint of a training run.
  std::string read_again(const std::string& saved) {
    constexpr const char* folder = "/data/checkpoints";
    const auto write_and_read = [&]() -> std::string {
      sim_.run_as(0);
      const checkpoint_record record{.step = 1, .run = "this", .data = {}};
      write_checkpoint(folder, step_name(1), files_of(record, {}, {saved}));
      const auto chosen =
          choose_checkpoint(folder, [](const chosen_checkpoint&) {}, [](const std::string&) {});
      if (!chosen) throw failure(error(errc::bad_state, "the checkpoint is not there"));
      return record_in(chosen->files, chosen->path, 0, 1, 0, 1, 64_MiB).data.to_json();
    };
    try {
      return write_and_read();
    } catch (...) {
      if (!course_.mend || out_.is_resumed) throw;
      note_failure(std::current_exception(), out_);
    }
    course_.mend();
    out_.is_resumed = true;
    return write_and_read();
  }

  void validate(int rank, process& p) {
    auto all = p.eng->run(interleaved(shards(urls_, {.lanes = 1}) | untar() | group_by_key()));
    std::vector<std::string> seen;
    while (const auto item = all.next()) note(*item, seen);
    const unhooked here;
    if (seen.size() != expected(course_.decodes).size()) {
      out_.ledger_wrong = fmt::format("validation of rank {} saw {} samples", rank, seen.size());
    }
  }

  void check_ledger(process& p) {
    const ledger counts = p.data->counts();
    const unhooked here;
    if (counts.delivered != p.given || counts.skipped_in_all() + counts.dropped + counts.lost > 0) {
      out_.ledger_wrong = fmt::format("{}, and {} were given", counts.summary(), p.given);
    }
  }

  void end(int rank, process& p) {
    sim_.run_as(rank);
    p.data.reset();
    p.eng.reset();
  }

  void step(int rank, process& p) {
    sim_.run_as(rank);
    const auto item = p.data->next();
    if (!item) {
      p.ended = true;
      return check_ledger(p);
    }
    const std::size_t before = p.unsaved.size();
    note(*item, p.unsaved);
    p.given += p.unsaved.size() - before;
    if (course_.validates && before < 7 && p.unsaved.size() >= 7) validate(rank, p);
  }

  void save(process& p) {
    std::string position = p.data->save().to_json();
    p.position = std::move(position);
    keep(p);
  }
  // What the process has yielded counts once its state is saved, or when no run resumes it.
  void keep(process& p) {
    const unhooked here;
    std::ranges::move(p.unsaved, std::back_inserter(out_.given));
    p.unsaved.clear();
  }

  // Runs all ranks in an order given by the seed, each `items` further or to the end. Returns their
  // state.
  std::string run_part(int ranks, const std::string& from, int items) {
    std::vector<process> all(static_cast<std::size_t>(ranks));
    struct closing {  // also after a failure: each as its own process
      job& j;
      std::vector<process>& of;
      ~closing() {
        allocations::relent();
        for (std::size_t i = 0; i < of.size(); ++i) {
          j.keep(of[i]);
          j.end(static_cast<int>(i), of[i]);
        }
      }
    } close{*this, all};
    try {
      advance(all, from, items);
      return items < 0 ? std::string() : merged_state(all);
    } catch (...) {
      if (!course_.mend || out_.is_resumed) throw;
      note_failure(std::current_exception(), out_);
    }
    resume_from_last(all);
    advance(all, from, items);
    return items < 0 ? std::string() : merged_state(all);
  }

  void advance(std::vector<process>& all, const std::string& from, int items) {
    const int ranks = static_cast<int>(all.size());
    for (int r = 0; r < ranks; ++r) start(r, ranks, all[static_cast<std::size_t>(r)], from);
    std::vector<int> left(all.size(), items);
    int kills = course_.kills;
    for (;;) {
      std::vector<int> able;
      for (int r = 0; r < ranks; ++r) {
        const auto i = static_cast<std::size_t>(r);
        if (!all[i].ended && left[i] != 0) able.push_back(r);
      }
      if (able.empty()) break;
      const int rank = able[sim_.random().below(static_cast<std::uint32_t>(able.size()))];
      process& p = all[static_cast<std::size_t>(rank)];
      step(rank, p);
      if (left[static_cast<std::size_t>(rank)] > 0) --left[static_cast<std::size_t>(rank)];
      if (course_.is_held && !p.ended) save(p);
      if (kills == 0 || p.ended) continue;
      save(p);
      if (sim_.random().below(8) != 0) continue;
      --kills;
      sim_.files.kill(rank);
      end(rank, p);
      sim_.files.restart(rank);
      start(rank, ranks, p, from);
    }
  }

  std::string merged_state(std::vector<process>& all) {
    std::vector<state> of_ranks;
    for (std::size_t r = 0; r < all.size(); ++r) {
      sim_.run_as(static_cast<int>(r));
      const std::string text = all[r].data->save().to_json();
      of_ranks.push_back(state::from_json(text).value());
    }
    return merged(of_ranks).to_json();
  }

  // Each process is saved after the failure, if possible, and closed.
  void resume_from_last(std::vector<process>& all) {
    course_.mend();
    out_.is_resumed = true;
    for (std::size_t r = 0; r < all.size(); ++r) {
      process& p = all[r];
      sim_.run_as(static_cast<int>(r));
      try {
        if (p.data) save(p);
      } catch (const failure& f) {
        if (f.kind() != errc::no_memory) throw;
      }
      p.unsaved.clear();
      end(static_cast<int>(r), p);
    }
  }

  simulator& sim_;
  const course& course_;
  ending& out_;
  random_stream luck_ = random_stream(sim_.random().next_u32(), purpose::fake_data);
  std::shared_ptr<simulated_network> net_ = std::make_shared<simulated_network>(real_time());
  std::unique_ptr<scripted_processes> commands_;
  std::vector<std::string> urls_;
};

template <class T>
void run_job(simulator& sim, const course& c, ending& out) {
  std::optional<job<T>> whole;
  try {
    whole.emplace(sim, c, out);
    whole->run();
  } catch (...) {
    note_failure(std::current_exception(), out);
  }
  out.commands = whole ? whole->left_running() : 0;
}

}  // namespace

course course_of(std::uint64_t seed, bool with_cache) {
  random_stream random(seed, purpose::fake_data, 3);
  course c;
  c.from = static_cast<course::storage>(random.below(with_cache ? 4 : 2));
  c.decodes = random.below(4) == 0;
  c.ranks = 1 << random.below(3);
  c.ranks_after = 1 << random.below(3);
  c.stop_after = random.below(3) == 0 ? -1 : static_cast<int>(random.below(8));
  c.troubled = random.below(4) != 0;
  c.kills = random.below(2) == 0 ? 0 : static_cast<int>(random.below(4));
  c.crash = random.below(3) == 0;
  return c;
}

std::string text_of(const course& c) {
  constexpr const char* storages[] = {"files", "HTTP", "HTTP through the cache", "commands"};
  return fmt::format("{} from {}, {} ranks, then {}, stopped after {} items, {}, {} kills{}",
                     c.decodes ? "images" : "text", storages[static_cast<int>(c.from)], c.ranks,
                     c.ranks_after, c.stop_after, c.troubled ? "troubled" : "untroubled", c.kills,
                     c.crash ? ", a crash" : "");
}

ending run(simulator& sim, const course& c) {
  ending out;
  c.decodes ? run_job<host_batch>(sim, c, out) : run_job<sample>(sim, c, out);
  const unhooked here;
  std::ranges::sort(out.given);
  out.descriptors = sim.files.open_descriptors();
  out.trace = sim.trace();
  return out;
}

const std::vector<std::string>& expected(bool decodes) {
  static std::map<bool, std::vector<std::string>> known;
  auto& out = known[decodes];
  if (out.empty()) {
    data_of(decodes);
    simulator sim(0);
    out = run(sim, {.decodes = decodes}).given;
  }
  return out;
}

}  // namespace millrace::testing
