// Reads a number of samples, then saves its position to a file. Started again, it continues with
// exactly the next sample: also within an epoch, and with the samples held by the shuffle.
//
//   example_resume 'train-{000000..000099}.tar' position.json 1000
#include <millrace/engine.h>
#include <millrace/plan.h>
#include <millrace/stages.h>
#include <millrace/state.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

using namespace millrace;

namespace {

std::string content_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The file is either the old one or the new one, whenever the program is stopped.
void write_whole(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  std::ofstream out(temporary);
  out << text;
  out.close();
  if (!out) throw failure(error(errc::io_failed, "cannot write the state").at(temporary));
  std::filesystem::rename(temporary, path);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::fprintf(stderr, "usage: example_resume 'train-{000000..000099}.tar' position.json 1000\n");
    return 2;
  }
  const std::string path = argv[2];
  const long most = std::strtol(argv[3], nullptr, 10);
  engine eng(engine_options::from_environment());
  auto data = eng.run(shards(expand(argv[1]), {.seed = 7}) | untar() | group_by_key() |
                      shuffle({.samples = 100, .seed = 7}) | prefetch(8));
  if (std::filesystem::exists(path)) data.restore(state::from_json(content_of(path)).value());
  long samples = 0;
  while (samples < most) {
    auto s = data.next();
    if (!s) {
      std::printf("end of the epoch\n");
      break;
    }
    std::printf("%s\n", s->key.c_str());
    ++samples;
  }
  write_whole(path, data.save().to_json());
} catch (const failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return exit_code(f.kind());
}
