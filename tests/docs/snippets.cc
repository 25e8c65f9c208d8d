// The lines of C++ in docs/embedding.md, docs/from-webdataset.md and docs/scale.md that are in no
// example. Run in a folder with the shards train-{000000..000003}.tar, the index train.json of them
// with offsets, text-{0..3}.tar and broken.tar. Prints what each gives.
#include <millrace/millrace.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <thread>

using namespace millrace;

namespace {

void print(const char* name, std::size_t count) {
  std::printf("%s: %zu\n", name, count);
}

template <class Loader>
std::size_t items_of(Loader&& data) {
  std::size_t items = 0;
  for ([[maybe_unused]] auto& item : data) ++items;
  return items;
}

const std::vector<std::string> urls = expand("train-{000000..000003}.tar");

// docs/embedding.md

void engine_with_options() {
  engine eng({.cpu_threads = 2, .memory_bytes = 512_MiB});
  print("engine with options", items_of(eng.run(shards(urls) | untar() | group_by_key())));
}

void environment_and_options() {
  engine_options options = engine_options::from_environment();
  options.cpu_threads = 2;
  options.source.cache.folder = "cache";
  engine eng(options);
  print("environment and options", items_of(eng.run(shards(urls) | untar() | group_by_key())));
}

plan<host_batch> training_plan(const std::vector<std::string>& of, std::int64_t epochs) {
  return shards(of, {.seed = 42, .epochs = epochs}) | untar() | group_by_key() |
         shuffle({.samples = 1000, .seed = 42}) | decode_jpeg({.size = 32, .seed = 42}) |
         on_error(skip_up_to(100)) | batch({.size = 64}) | prefetch(2);
}

void epochs_of_a_loader(engine& eng) {
  std::size_t images = 0;
  loader<host_batch> data = eng.run(training_plan(urls, 3));
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& b : data) images += b.size();  // the rest of this epoch
  }
  print("epochs of a loader", images);
}

void items_one_by_one(engine& eng) {
  std::size_t images = 0;
  auto data = eng.run(training_plan(urls, 1));
  while (auto b = data.next()) images += b->size();
  print("items one by one", images);
}

void look_at_the_screen() {}

void items_in_slices(engine& eng) {
  std::size_t images = 0;
  auto data = eng.run(training_plan(urls, 1));
  while (!data.wait_for(std::chrono::milliseconds(50), 8)) look_at_the_screen();
  for (auto some = data.next_ready(8); !some.empty(); some = data.next_ready(8)) {
    for (auto& b : some) images += b.size();
  }
  print("items in slices", images);
}

std::size_t errors_of_a_run(engine& eng, const std::string& spec) {
  try {
    auto data = eng.run(training_plan(expand(spec), 1));
    for (auto& b : data) print("images of a batch", b.size());
    const ledger counts = data.counts();
    for (const std::string& message : counts.first_skipped) std::printf("%s\n", message.c_str());
    return counts.skipped_in_all();
  } catch (const failure& f) {
    const error& why = f.why();
    if (why.kind() == errc::not_found) std::printf("check the path: %s\n", why.message().c_str());
    return 0;
  }
}

void errors_of_functions(engine& eng) {
  const auto caption = [](const sample& s) -> result<std::optional<sample>> {
    const field* text = s.find("txt");
    if (text == nullptr) return of_sample(s, error(errc::missing_field, "no caption"));
    if (text->data.empty()) return std::nullopt;  // left out, and no error
    return s;
  };
  auto data = eng.run(shards(expand("text-{0..3}.tar")) | untar() | group_by_key() | map(caption) |
                      on_error(skip_rate(0.5)));
  print("errors of functions", items_of(data));
  print("skipped", data.counts().skipped_in_all());
}

void notices() {
  static std::vector<std::string> lines;
  set_log_sink([](std::string_view line) { lines.emplace_back(line); });
  set_log_level(log_level::notice);
  engine eng({.cpu_threads = 1});
  errors_of_functions(eng);
  print("notices", static_cast<std::size_t>(std::ranges::count_if(
                       lines, [](std::string_view l) { return l.starts_with("skipped: "); })));
  set_log_level(log_level::quiet);
}

void stopped_by_a_token(engine& eng) {
  std::optional<errc> ended;
  {
    std::jthread reader([&](const std::stop_token& stop) {
      auto data = eng.run(training_plan(urls, 1'000'000), stop);
      try {
        while (data.next()) {
        }
      } catch (const failure& f) {
        ended = f.kind();  // errc::stopped
      }
    });
  }  // the jthread asks for a stop, and waits
  print("stopped by a token", ended == errc::stopped ? 1 : 0);
}

void states_of_ranks(engine& eng) {
  const auto part = [&](int rank, int world_size) {
    return shards(urls, {.seed = 42, .rank = rank, .world_size = world_size, .lanes = 4}) |
           untar() | group_by_key() | shuffle({.samples = 100, .seed = 42});
  };
  std::multiset<std::string> keys;
  std::vector<state> states;
  for (int rank = 0; rank < 2; ++rank) {
    auto data = eng.run(part(rank, 2));
    for (int i = 0; i < 50; ++i) keys.insert(data.next()->key);
    states.push_back(data.save());
  }
  // Of all ranks, saved at the same step; each rank of the next job restores it.
  const state whole = merged(states);
  for (int rank = 0; rank < 4; ++rank) {
    auto data = eng.run(part(rank, 4));
    data.restore(whole);
    for (auto& s : data) keys.insert(s.key);
  }
  print("states of ranks", keys.size());
  print("different keys", std::set<std::string>(keys.begin(), keys.end()).size());
}

void fingerprints(engine& eng) {
  std::set<std::uint64_t> different;
  for (int rank = 0; rank < 2; ++rank) {
    auto data = eng.run(shards(urls, {.seed = 42, .rank = rank, .world_size = 2}) | untar() |
                        group_by_key());
    const std::uint64_t mine = plan_fingerprint(data.save());  // before the first next()
    different.insert(mine);
  }
  print("fingerprints", different.size());
}

// docs/scale.md

void equal_epochs(engine& eng) {
  for (int rank = 0; rank < 3; ++rank) {
    shard_list_options options{.seed = 42, .rank = rank, .world_size = 3};
    options.mode = epoch_mode::equal;
    auto data = eng.run(indexed_shards(read_index(eng, "train.json"), options) | untar() |
                        group_by_key() | shuffle({.samples = 1000, .seed = 42}));
    print("equal epoch", items_of(data));
  }
}

void where_time_goes(engine& eng) {
  auto data = eng.run(training_plan(urls, 1));
  items_of(data);
  const run_stats stats = data.stats();
  for (const stage_stats& s : stats.stages) {
    std::printf("%s: %.3f s of work, %.3f s waiting for the stage before it\n", s.name.c_str(),
                s.busy, s.waiting_input);
  }
  print("stages", stats.stages.size());
}

// docs/from-webdataset.md

void a_pipeline(engine& eng) {
  auto plan = shards(urls, {.seed = 42}) | untar() | group_by_key() |
              shuffle({.samples = 1000, .seed = 42}) | decode_jpeg({.size = 32, .seed = 42}) |
              batch({.size = 64});
  auto data = eng.run(plan | prefetch(2));
  print("a pipeline", items_of(data));
}

void two_ranks(engine& eng) {
  std::size_t samples = 0;
  for (int rank = 0; rank < 2; ++rank) {
    auto data = eng.run(shards(urls, {.seed = 42, .rank = rank, .world_size = 2}) | untar() |
                        group_by_key() | shuffle({.samples = 1000, .seed = 42}));
    samples += items_of(data);
  }
  print("two ranks", samples);
}

void resampled(engine& eng) {
  auto data = eng.run(shards(urls, {.seed = 42, .mode = epoch_mode::resample}) | untar() |
                      group_by_key() | shuffle({.samples = 100, .seed = 42}) | epochs_of(250));
  print("resampled", items_of(data));
  print("resampled", items_of(data));
}

void functions_of_samples(engine& eng) {
  auto data = eng.run(shards(urls, {.shuffle = false}) | untar() | group_by_key() |
                      rename_fields({{"jpg;jpeg", "image"}, {"cls", "label"}}) |
                      keep_fields("image;label") |
                      select([](const sample& s) { return s.key.ends_with('0'); }) |
                      map([](sample s) { return s; }, {.threads = 2}));
  print("functions of samples", items_of(data));
}

void columns(engine& eng) {
  auto tuples = shards(expand("text-{0..3}.tar")) | untar() | group_by_key() | map(decode_fields) |
                map(to_tuple({"npy", "cls", "json"}));
  auto data = eng.run(tuples | batched(16) | map(collated));
  for (auto& b : data) {
    const tensor& vectors = std::get<tensor>(b.columns[0]);  // f4, of shape [16, 3]
    print("columns", static_cast<std::size_t>(vectors.count()));
  }
}

void errors(engine& eng) {
  auto data = eng.run(shards(urls, {.seed = 42}) | untar() | group_by_key() |
                      decode_jpeg({.size = 32}) | on_error(skip_up_to(100)) | batch({.size = 64}));
  print("errors", items_of(data));
}

void joined_shards(engine& eng) {
  auto captioned = eng.run(shards(urls, {.seed = 42}) | untar() | group_by_key() |
                           join("captions-{}.tar", {.missing = missing_companion::none}) |
                           shuffle({.samples = 1000, .seed = 42}));
  print("joined", items_of(captioned));
  // docs/stages.md
  auto table = std::make_shared<field_table>();
  (*table)["photos/1"] = {{"id", owned_bytes(std::string("17"))}};
  auto data = eng.run(shards(urls, {.seed = 42}) | untar() | group_by_key() |
                      join("captions/{}.tar", {.missing = missing_companion::none}) |
                      join_table(table, missing_companion::none) | shuffle({.samples = 1000}));
  print("joined with a table", items_of(data));
}

void mixed(engine& eng) {
  auto images = shards(urls, {.seed = 42}) | untar() | group_by_key();
  auto texts = shards(expand("text-{0..3}.tar"), {.seed = 42}) | untar() | group_by_key();
  auto data = eng.run(mix({{images, 0.7}, {texts, 0.3}}, {.seed = 42}) |
                      shuffle({.samples = 1000, .seed = 42}));
  print("mixed", items_of(data));
}

void random_access(engine& eng) {
  indexed_dataset dataset(eng, read_index(eng, "train.json"));
  even_sampler numbers({.samples = dataset.size(), .world_size = 2, .rank = 0, .seed = 42}, 0);
  std::size_t samples = 0;
  while (auto i = numbers.next()) samples += dataset.get(*i).fields.size() / 2;
  print("random access", samples);
}

}  // namespace

int main() try {
  set_log_level(log_level::quiet);
  engine_with_options();
  environment_and_options();
  engine eng(engine_options::from_environment());
  epochs_of_a_loader(eng);
  items_one_by_one(eng);
  items_in_slices(eng);
  print("missing", errors_of_a_run(eng, "none.tar"));
  print("broken", errors_of_a_run(eng, "broken.tar"));
  notices();
  stopped_by_a_token(eng);
  states_of_ranks(eng);
  fingerprints(eng);
  equal_epochs(eng);
  where_time_goes(eng);
  a_pipeline(eng);
  two_ranks(eng);
  resampled(eng);
  functions_of_samples(eng);
  columns(eng);
  errors(eng);
  joined_shards(eng);
  mixed(eng);
  random_access(eng);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
