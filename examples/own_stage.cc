// Your own stage: packs consecutive texts into sequences of at most so many bytes. A longer text is
// a sequence of its own. Prints how full the sequences are.
//
//   example_own_stage 'text-{000000..000009}.tar' 2048
#include <millrace/engine.h>
#include <millrace/plan.h>
#include <millrace/stages.h>
#include <millrace/stream.h>

#include <cstdio>
#include <cstdlib>

using namespace millrace;

namespace {

struct sequence {
  std::vector<sample> items;  // must be named `items`: later stages find the samples in it
  std::size_t bytes = 0;
};

class packed final : public stream<sequence> {
 public:
  packed(std::unique_ptr<stream<sample>> samples, std::size_t most_bytes)
      : samples_(std::move(samples)), most_bytes_(most_bytes) {}

  awaitable<outcome> next() override {
    while (!ended_) {
      auto one = co_await samples_->next();
      if (!one) co_return one.error();  // the next call continues after that sample
      if (!*one) {
        ended_ = true;
        break;
      }
      const std::size_t bytes = (*one)->payload_bytes();
      const bool fits = held_.bytes + bytes <= most_bytes_;
      sequence full;
      if (!fits) full = std::exchange(held_, {});
      held_.items.push_back(std::move(**one));
      held_.bytes += bytes;
      if (!full.items.empty()) co_return full;
    }
    if (held_.items.empty()) {  // held items were yielded: now the end of the epoch
      ended_ = false;
      co_return std::optional<sequence>();
    }
    co_return std::exchange(held_, {});
  }

  // A resumed run reads the samples held here again and passes them to this stage.
  void save(state& to) const override {
    samples_->save(to);
    for (const sample& s : held_.items) to.hold(pending_record, {&s.where, 1});
    if (ended_) to.append(end_owed_record, state::record{1});
  }
  void restore(const state& from) override { samples_->restore(from); }

 private:
  std::unique_ptr<stream<sample>> samples_;
  std::size_t most_bytes_;
  sequence held_;
  bool ended_ = false;  // the end of the epoch was taken; it is yielded after the held items
};

stage<sample, sequence> packed_into(std::size_t most_bytes) {
  return {"packed", [=](run_context&, std::unique_ptr<stream<sample>> samples) {
            return std::make_unique<packed>(std::move(samples), most_bytes);
          }};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: example_own_stage 'text-{000000..000009}.tar' 2048\n");
    return 2;
  }
  const std::size_t most_bytes = parse_bytes(argv[2]).value();
  engine eng(engine_options::from_environment());
  auto plan = shards(expand(argv[1]), {.seed = 1}) | untar() | group_by_key() | keep_fields("txt") |
              shuffle({.samples = 1000, .seed = 1}) | packed_into(most_bytes);
  std::size_t sequences = 0;
  std::size_t texts = 0;
  std::size_t bytes = 0;
  for (auto& s : eng.run(plan)) {
    ++sequences;
    texts += s.items.size();
    bytes += s.bytes;
  }
  const auto room = static_cast<double>(sequences * most_bytes);
  std::printf("%zu texts in %zu sequences, %.1f %% full\n", texts, sequences,
              sequences == 0 ? 0 : 100 * static_cast<double>(bytes) / room);
} catch (const failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return exit_code(f.kind());
}
