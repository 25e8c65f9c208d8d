// Prints the key of every sample, with the extensions and sizes of its files.
//
//   example_keys 'train-{000000..000099}.tar'
#include <millrace/engine.h>
#include <millrace/plan.h>

#include <cstdio>

using namespace millrace;

int main(int argc, char** argv) try {
  engine eng;
  for (auto& s : eng.run(shards(expand(argc > 1 ? argv[1] : "-")) | untar() | group_by_key())) {
    std::printf("%s", s.key.c_str());
    for (const field& f : s.fields) std::printf("  %s %zu", f.extension.c_str(), f.data.size());
    std::printf("\n");
  }
} catch (const failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return exit_code(f.kind());
}
