#include <millrace/millrace.h>

#include <cstdio>

// Counts the samples of the shards that it is given.
int main(int argc, char** argv) {
  if (argc != 2) return 2;
  millrace::engine eng({.cpu_threads = 1});
  auto data =
      millrace::shards(millrace::expand(argv[1])) | millrace::untar() | millrace::group_by_key();
  std::size_t samples = 0;
  for (auto& s : eng.run(data)) samples += s.fields.empty() ? 0 : 1;
  std::printf("%zu\n", samples);
}
