// Images with their masks, cropped and mirrored together: KEY.jpg (or .png, .ppm, ...) and KEY.npy,
// an array of bytes, height x width, with the class of each pixel. Prints the pixels of each class.
//
//   example_masks 'train-{000000..000099}.tar'
#include <millrace/millrace.h>

#include <array>
#include <cstdio>

using namespace millrace;

namespace {

struct masked {
  std::vector<std::uint8_t> pixels;  // size x size x 3, RGB
  std::vector<std::uint8_t> mask;    // size x size
  std::string key;
  origin where;  // a resumed run finds the sample by it
  std::shared_ptr<const std::string> url;
};

// The same view of a mask: the nearest mask pixel for each output pixel. Classes are not blended.
std::vector<std::uint8_t> nearest(const view_of_image& v, const std::byte* mask,
                                  std::size_t width) {
  std::vector<std::uint8_t> out;
  const auto at = [](int i, int begin, int size, int scaled) {
    return begin + static_cast<int>((2LL * i + 1) * size / (2LL * scaled));
  };
  for (int y = 0; y < v.window.height; ++y) {
    const auto row =
        static_cast<std::size_t>(at(v.window.y + y, v.crop.y, v.crop.height, v.scaled_height));
    for (int x = 0; x < v.window.width; ++x) {
      const int from_left = v.flip ? v.window.width - 1 - x : x;
      const int column = at(v.window.x + from_left, v.crop.x, v.crop.width, v.scaled_width);
      out.push_back(
          std::to_integer<std::uint8_t>(mask[row * width + static_cast<std::size_t>(column)]));
    }
  }
  return out;
}

result<masked> with_mask(const sample& s, const decode_options& images) {
  thread_local image_decoder decoder;
  const field* image = first_field(s, images.images);
  const field* mask = s.find("npy");
  if (image == nullptr || mask == nullptr) {
    return of_sample(s, error(errc::missing_field, "an image or a mask is missing"));
  }
  const auto classes = decode_field("npy", mask->data);
  if (!classes) return of_sample(s, classes.error());
  const auto& array = std::get<tensor>(*classes);
  masked out;
  out.key = s.key;
  out.where = s.where;
  out.url = s.url;
  view_of_image view;
  bool is_of_image = false;
  const auto choose = [&](int width, int height) {  // called with the image's size, once known
    is_of_image = array.type == "u1" && array.shape == std::vector<std::int64_t>{height, width};
    return view = view_of(images, s.where, width, height);
  };
  const auto place = [&](const view_of_image& v) {
    out.pixels.resize(output_bytes(v));
    return std::span(out.pixels);
  };
  if (auto done = decoder.decode(image->data.span(), images.image, choose, place); !done) {
    return of_sample(s, done.error());
  }
  if (!is_of_image) return of_sample(s, error(errc::bad_field, "a mask of another size"));
  out.mask = nearest(view, array.data.data(), static_cast<std::size_t>(array.shape[1]));
  return out;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: example_masks 'train-{000000..000099}.tar'\n");
    return 2;
  }
  engine eng(engine_options::from_environment());
  const auto images = checked({.size = 64, .seed = 42});
  const auto masks = [=](const sample& s) { return with_mask(s, images); };
  auto data = eng.run(shards(expand(argv[1]), {.seed = 42}) | untar() | group_by_key() |
                      shuffle({.samples = 1000, .seed = 42}) | map(masks, {.threads = 2}) |
                      on_error(skip_up_to(100)) | prefetch(64));
  struct totals {
    std::size_t pixels = 0;
    std::size_t brightness = 0;
  };
  std::array<totals, 256> of_class{};
  std::size_t samples = 0;
  for (auto& m : data) {
    ++samples;
    for (std::size_t i = 0; i < m.mask.size(); ++i) {
      totals& of = of_class.at(m.mask[i]);
      ++of.pixels;
      of.brightness += m.pixels[3 * i + 1];
    }
  }
  std::printf("%zu samples\n", samples);
  for (std::size_t c = 0; c < of_class.size(); ++c) {
    const auto [pixels, brightness] = of_class.at(c);
    if (pixels > 0)
      std::printf("class %zu: %zu pixels, mean brightness %zu\n", c, pixels, brightness / pixels);
  }
} catch (const failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return exit_code(f.kind());
}
