#include <millrace/tools.h>

#include <cstdio>

#include <millrace/millrace.h>

// Writes six samples into shards of its argument's pattern, and verifies and indexes them.
int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  millrace::shard_writer out({.pattern = argv[1], .most_count = 4});
  for (int i = 0; i < 6; ++i) out.write("k" + std::to_string(i), {{"txt", "text"}, {"cls", "1"}});
  std::vector<std::string> urls;
  for (const auto& s : out.close()) urls.push_back(s.path);
  millrace::engine eng({.cpu_threads = 1});
  millrace::create_index(eng, urls, argv[2], {.offsets = true});
  const auto index = millrace::read_index(eng, argv[2]);
  const auto found = millrace::verify_shards(eng, urls, {.index = &index, .required = {{"cls"}}});
  std::printf("%zu shards, %lld samples, %s\n", urls.size(),
              static_cast<long long>(index.samples()),
              found.is_well() ? "all is well" : "something is wrong");
} catch (const millrace::failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return millrace::exit_code(f.kind());
}
