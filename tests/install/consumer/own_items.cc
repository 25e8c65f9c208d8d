// Items, a stage and a source of the program's own: what the interface's templates and coroutines
// become in its compiler. Prints what it counted, twice: in one run, and in two with a state
// between them.
#include <millrace/millrace.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>

using namespace millrace;

namespace {

// A member that is a string, so that one destroyed twice is noticed.
struct word {
  std::string text;
  origin where;
};

struct pair_of_words {
  std::vector<word> items;
};

class pairs final : public stream<pair_of_words> {
 public:
  explicit pairs(std::unique_ptr<stream<word>> words) : words_(std::move(words)) {}

  awaitable<outcome> next() override {
    while (held_.size() < 2) {
      auto one = co_await words_->next();
      if (!one) co_return one.error();
      if (!*one) {
        if (held_.empty()) co_return std::optional<pair_of_words>();
        break;
      }
      held_.push_back(std::move(**one));
    }
    co_return pair_of_words{std::exchange(held_, {})};
  }
  void save(state& to) const override {
    words_->save(to);
    for (const word& w : held_) to.hold(pending_record, {&w.where, 1});
  }
  void restore(const state& from) override { words_->restore(from); }

 private:
  std::unique_ptr<stream<word>> words_;
  std::vector<word> held_;
};

stage<word, pair_of_words> paired() {
  return {"pairs", [](run_context&, std::unique_ptr<stream<word>> words) {
            return std::make_unique<pairs>(std::move(words));
          }};
}

// A file, read whole.
class whole_file final : public byte_source {
 public:
  explicit whole_file(std::string content) : content_(owned_bytes(std::move(content))) {}
  awaitable<result<bytes>> read() override { co_return std::exchange(content_, {}); }

 private:
  bytes content_;
};

awaitable<result<std::unique_ptr<byte_source>>> open_whole(source_context, std::string, url where,
                                                           byte_range range) {
  std::ifstream in(where.path, std::ios::binary);
  if (!in) co_return error(errc::not_found, "no such file").at(where.path);
  std::string content{std::istreambuf_iterator<char>(in), {}};
  co_return std::make_unique<whole_file>(content.substr(range.begin));
}

result<std::optional<word>> as_word(sample s) {
  if (s.key.ends_with("3")) return std::optional<word>();
  if (s.key.ends_with("4")) return error(errc::bad_field, "a four").skippable();
  if (s.key.ends_with("5")) throw failure(error(errc::bad_field, "a five").skippable());
  return word{s.key + ", so long that no string has it in itself", s.where};
}

// Each word once, and how many groups they came in.
struct counted {
  std::map<std::string, int> words;
  std::size_t groups = 0;

  template <class Group>
  void add(const Group& of) {
    ++groups;
    for (const auto& item : of.items) {
      if constexpr (requires { item.items; }) {
        for (const word& w : item.items) ++words[w.text];
      } else {
        ++words[item.text];
      }
    }
  }
  void check() const {
    for (const auto& [text, times] : words) {
      if (times != 1) throw std::runtime_error(text + " came " + std::to_string(times) + " times");
    }
  }
};

template <class Group>
std::size_t words_of(engine& eng, const plan<Group>& what) {
  counted whole;
  for (auto& group : eng.run(what)) whole.add(group);
  whole.check();
  for (std::size_t stop = 0; stop < whole.groups; stop += 3) {
    counted parts;
    auto first = eng.run(what);
    for (std::size_t i = 0; i < stop; ++i) parts.add(*first.next());
    auto second = eng.run(what);
    second.restore(state::from_json(first.save().to_json()).value());
    while (auto group = second.next()) parts.add(*group);
    parts.check();
    if (parts.words != whole.words) throw std::runtime_error("a resumed run gave other words");
  }
  return whole.words.size();
}

// The error that next() throws, of a plan that fails.
template <class T>
errc kind_of_failure(engine& eng, const plan<T>& what) {
  auto data = eng.run(what);
  try {
    while (data.next()) {
    }
  } catch (const failure& f) {
    return f.kind();
  }
  throw std::runtime_error("a plan that is to fail did not");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  std::vector<std::string> urls;
  for (const std::string& path : expand(argv[1])) urls.push_back("whole:" + path);
  engine eng({.cpu_threads = 2,
              .add_sources = [](source_registry& to) { to.add("whole", open_whole); },
              .tell_skipped = false});
  const auto samples = interleaved(shards(urls, {.seed = 1, .lanes = 2}) | untar() |
                                   group_by_key() | shuffle({.samples = 10, .seed = 1}));
  const auto size = [](const word& w) { return w.text.size(); };
  for (const int threads : {0, 2}) {
    const auto words = samples | map(as_word, {.threads = threads}) | on_error(skip_errors());
    std::printf("%zu", words_of(eng, words | batched(3)));
    std::printf(" %zu", words_of(eng, words | paired() | batched(2) | prefetch(2)));
    std::printf(" %zu", words_of(eng, words | bucketed(size, {{30, 2}, {1000, 3}}) | prefetch(3)));
    std::printf(" %zu",
                words_of(eng, words | batched(4) | unbatched() | slice(0, 1000) | paired()));
    std::printf(" %zu\n", words_of(eng, words | epochs_of(10) | paired()));
    if (kind_of_failure(eng, samples | map(as_word, {.threads = threads})) != errc::bad_field)
      return 3;
    const auto thrown = [](sample) -> word { throw std::runtime_error("its own"); };
    if (kind_of_failure(eng, samples | map(thrown, {.threads = threads})) != errc::uncaught)
      return 4;
  }
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
