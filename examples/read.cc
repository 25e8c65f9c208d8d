// Reads shards through eight lanes and a shuffle, within a budget, and prints the rate.
//
//   example_read 'shards-{000000..000007}.tar' 256M
#include <millrace/engine.h>
#include <millrace/plan.h>
#include <millrace/stages.h>

#include <cstdio>

using namespace millrace;

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: example_read 'shards-{000000..000007}.tar' 256M\n");
    return 2;
  }
  auto options = engine_options::from_environment();
  options.memory_bytes = parse_bytes(argv[2]).value();
  engine eng(options);
  auto data = eng.run(shards(expand(argv[1]), {.seed = 1}) | untar() | group_by_key() |
                      shuffle({.samples = 2000}));
  std::size_t bytes = 0;
  for (auto& s : data) bytes += s.payload_bytes();
  const run_stats stats = data.stats();
  std::printf("%.0f MB, %.0f MB/s\n", static_cast<double>(bytes) / 1e6,
              static_cast<double>(bytes) / 1e6 / stats.seconds);
} catch (const failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return exit_code(f.kind());
}
