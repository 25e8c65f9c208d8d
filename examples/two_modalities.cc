// Images with their captions: each item has the pixels of KEY.jpg and the text of KEY.txt. Prints a
// batch of them.
//
//   example_two_modalities 'train-{000000..000099}.tar'
#include <millrace/millrace.h>

#include <cstdio>

using namespace millrace;

namespace {

struct captioned {
  std::vector<std::uint8_t> pixels;  // size x size x 3, RGB
  std::string caption;
  std::string key;
  origin where;  // a resumed run finds the sample by it
  std::shared_ptr<const std::string> url;
};

// Runs on several threads at once: each has a decoder, which keeps its memory from image to image.
result<captioned> with_caption(const sample& s, const decode_options& images) {
  thread_local sample_decoder decoder;
  const field* text = s.find("txt");
  if (text == nullptr) return of_sample(s, error(errc::missing_field, "no caption"));
  captioned out;
  out.caption = text->data.text();
  out.key = s.key;
  out.where = s.where;
  out.url = s.url;
  const auto size = static_cast<std::size_t>(size_in(images, s.where.epoch));
  out.pixels.resize(size * size * 3);
  const auto decoded = decoder.decode(s, images, out.pixels.data());
  if (!decoded) return decoded.error();
  return out;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: example_two_modalities 'train-{000000..000099}.tar'\n");
    return 2;
  }
  engine eng(engine_options::from_environment());
  const auto images = checked({.size = 64, .seed = 42, .label = "none"});
  const auto captions = [=](const sample& s) { return with_caption(s, images); };
  auto plan = shards(expand(argv[1]), {.seed = 42}) | untar() | group_by_key() |
              shuffle({.samples = 1000, .seed = 42}) | map(captions, {.threads = 2}) |
              on_error(skip_up_to(100)) | batched(8) | prefetch(2);
  std::size_t pairs = 0;
  for (auto& batch : eng.run(plan)) {
    for (const captioned& c : batch) {
      if (pairs++ < 8)
        std::printf("%s: %zu bytes of pixels, \"%s\"\n", c.key.c_str(), c.pixels.size(),
                    c.caption.c_str());
    }
  }
  std::printf("%zu pairs\n", pairs);
} catch (const failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return exit_code(f.kind());
}
