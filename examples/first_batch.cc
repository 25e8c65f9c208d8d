// Prints the seconds from starting an engine to the first batch of 64 images.
//
//   example_first_batch 'train-{000000..000005}.tar'
#include <millrace/millrace.h>

#include <cstdio>

using namespace millrace;

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: example_first_batch 'train-{000000..000005}.tar'\n");
    return 2;
  }
  const auto start = steady_clock::now();
  engine eng(engine_options::from_environment());
  auto data = eng.run(shards(expand(argv[1]), {.seed = 1}) | untar() | group_by_key() |
                      shuffle({.samples = 64, .seed = 1}) | decode_jpeg({.size = 224, .seed = 1}) |
                      on_error(skip_up_to(0)) | batch({.size = 64}) | prefetch(1));
  const auto first = data.next();
  const std::chrono::duration<double> taken = steady_clock::now() - start;
  std::printf("%.6f\n", taken.count());
  return first && first->size() == 64 ? 0 : 1;
} catch (const failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return exit_code(f.kind());
}
