// One set of shards written as another one, with a field of the program's own, then verified and
// indexed.
//
//   example_write_shards 'train-{000000..000003}.tar' 'sized-%06d.tar' sized.json
#include <millrace/millrace.h>
#include <millrace/tools.h>

#include <cstdio>

using namespace millrace;

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::fprintf(stderr,
                 "usage: example_write_shards 'train-{000000..000003}.tar' 'sized-%%06d.tar' "
                 "sized.json\n");
    return 2;
  }
  engine eng(engine_options::from_environment());
  auto data =
      eng.run(shards(expand(argv[1]), {.lanes = 1, .shuffle = false}) | untar() | group_by_key());
  shard_writer out({.pattern = argv[2], .most_count = 150});
  for (const sample& s : data) {
    const field* image = s.find("jpg");
    if (image == nullptr) continue;
    const std::string size = std::to_string(image->data.size());
    out.write(s.key, {{"jpg", image->data.span()}, {"size.txt", size}});
  }
  std::vector<std::string> written;
  for (const written_shard& s : out.close()) {
    std::printf("%s: %llu samples\n", s.path.c_str(), static_cast<unsigned long long>(s.samples));
    written.push_back(s.path);
  }
  const auto tell = [](const error& why) { std::printf("%s\n", why.message().c_str()); };
  const verify_report found =
      verify_shards(eng, written, {.images = true, .required = {{"jpg"}}, .found = tell});
  create_index(eng, written, argv[3], {.name = "sized", .offsets = true});
  std::printf("%llu problems\n", static_cast<unsigned long long>(found.problems));
  return found.is_well() ? 0 : 1;
} catch (const failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return exit_code(f.kind());
}
