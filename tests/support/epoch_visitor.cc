// One rank of a job that reads an epoch, logs the items it gets, saves its state now and then, and
// kills itself at a given point. tests/pipeline/killed_test.py runs many of them.
//
//   epoch_visitor JSON
//
// {"shards": [...], "rank": 0, "world": 2, "lanes": 8, "from": [state files], "out": prefix,
//  "save_every": 7, "kill_at": -1 or a number of items, "in_save": false, "decode": false,
//  "fields": false (decode all fields), "memory": bytes}
//
// PREFIX.keys has a line for every item; PREFIX.state has the newest state, and how many of the
// lines precede it.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "millrace/millrace.h"
#include "pipeline/state/merged.h"

namespace {

using namespace millrace;
using nlohmann::json;

class visit {
 public:
  explicit visit(json how)
      : how_(std::move(how)),
        out_(how_["out"].get<std::string>()),
        keys_(out_ + ".keys"),
        kill_at_(how_["kill_at"]) {}

  template <class T>
  void run(loader<T> data) {
    restore(data);
    save(data, false);
    const std::int64_t every = how_["save_every"];
    while (const auto item = data.next()) {
      keys_ << item->key << std::endl;
      ++given_;
      if (given_ == kill_at_ && !how_["in_save"]) std::raise(SIGKILL);
      if (given_ % every == 0) save(data, false);
    }
    save(data, true);
  }

 private:
  template <class T>
  void restore(loader<T>& data) {
    std::vector<state> saved;
    for (const auto& file : how_["from"]) {
      std::ifstream in(file.get<std::string>());
      saved.push_back(state::from_json(json::parse(in)["state"].get<std::string>()).value());
    }
    if (!saved.empty()) data.restore(merged(saved));
  }

  template <class T>
  void save(loader<T>& data, bool done) {
    const ledger counts = data.counts();
    {
      std::ofstream file(out_ + ".part");
      file << json{{"given", given_},
                   {"delivered", counts.delivered},
                   {"skipped", counts.skipped_in_all()},
                   {"done", done},
                   {"state", data.save().to_json()}};
    }
    if (how_["in_save"] && kill_at_ >= 0 && given_ >= kill_at_) std::raise(SIGKILL);
    std::filesystem::rename(out_ + ".part", out_ + ".state");
  }

  json how_;
  std::string out_;
  std::ofstream keys_;
  std::int64_t kill_at_;
  std::int64_t given_ = 0;
};

int run(const json& how) {
  const std::uint64_t seed = how["seed"];
  const shard_list_options list{
      .seed = seed, .rank = how["rank"], .world_size = how["world"], .lanes = how["lanes"]};
  const auto samples = shards(how["shards"].get<std::vector<std::string>>(), list) | untar() |
                       group_by_key() | shuffle({.samples = 100, .seed = seed});
  engine eng({.cpu_threads = 2, .memory_bytes = how.value("memory", std::size_t{512_MiB})});
  if (how["decode"]) {
    const decode_options options{.size = 32, .label = how.value("label", "auto")};
    visit(how).run(eng.run(samples | decode_jpeg(options) | on_error(skip_errors())));
  } else if (how.value("fields", false)) {
    const auto keys = [](const sample& s) -> result<sample> {
      const auto fields = decode_fields(s);
      if (!fields) return fields.error();
      return sample{.key = s.key, .where = s.where, .url = s.url};
    };
    visit(how).run(eng.run(samples | map(keys, {.threads = 2}) | on_error(skip_errors())));
  } else {
    const auto same = [](sample s) { return s; };
    visit(how).run(eng.run(samples | map(same, {.threads = 2}) | on_error(skip_errors())));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return argc == 2 ? run(json::parse(argv[1])) : 2;
  } catch (const std::exception& e) {
    fmt::print(stderr, "epoch_visitor: {}\n", e.what());
    return 1;
  }
}
