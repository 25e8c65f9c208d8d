// One epoch over image shards, as in README.md. Prints how much was read.
//
//   example_epoch 'http://host/train-{000000..000099}.tar'
#include <millrace/millrace.h>

#include <cstdio>

using namespace millrace;

int main(int argc, char** argv) try {
  engine eng(engine_options::from_environment());
  auto data = shards(expand(argc > 1 ? argv[1] : "-"), {.seed = 42}) | untar() | group_by_key() |
              shuffle({.samples = 10'000, .seed = 42}) | decode_jpeg({.size = 224, .seed = 42}) |
              on_error(skip_up_to(100)) | batch({.size = 64}) | prefetch(2);
  std::size_t images = 0;
  for (auto& b : eng.run(data)) images += b.size();  // b.data(), b.labels, b.keys
  std::printf("%zu images\n", images);
} catch (const failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return exit_code(f.kind());
}
