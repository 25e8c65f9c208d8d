// Single samples by number from an index, and the order in which a rank draws such numbers.
//
//   millrace index 'train-{000000..000003}.tar' -o train.json --offsets
//   example_random_access train.json 123
#include <millrace/random_access.h>

#include <cstdio>
#include <cstdlib>

using namespace millrace;

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: example_random_access train.json 123\n");
    return 2;
  }
  engine eng(engine_options::from_environment());
  indexed_dataset data(eng, read_index(eng, argv[1]));
  const sample s = data.get(std::strtol(argv[2], nullptr, 10));  // one ranged read
  std::printf("%lld samples; number %s is %s:", static_cast<long long>(data.size()), argv[2],
              s.key.c_str());
  for (const field& f : s.fields) std::printf(" %s %zu", f.extension.c_str(), f.data.size());
  std::printf("\n");
  for (int rank = 0; rank < 2; ++rank) {
    even_sampler numbers({.samples = data.size(), .world_size = 2, .rank = rank, .seed = 1}, 0);
    std::printf("rank %d of 2 draws %lld samples in epoch 0:", rank,
                static_cast<long long>(numbers.length()));
    for (int i = 0; i < 5; ++i) std::printf(" %lld", static_cast<long long>(*numbers.next()));
    std::printf(" ...\n");
  }
} catch (const failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return exit_code(f.kind());
}
