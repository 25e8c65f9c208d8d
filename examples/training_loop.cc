// Your own training loop, without a framework: softmax regression on small images, by SGD.
// Prints loss and accuracy of each epoch.
//
//   example_training_loop 'train-{000000..000003}.tar' 5
#include <millrace/millrace.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

using namespace millrace;

namespace {

constexpr int size = 16;
constexpr int classes = 10;
constexpr std::size_t inputs = std::size_t{size} * size * 3 + 1;  // the last one is always 1

struct model {
  std::vector<float> weights = std::vector<float>(classes * inputs);
  double loss = 0;
  std::size_t right = 0;
  std::size_t images = 0;

  // One step on one image; `pixels` are size x size x 3 bytes.
  void learn(const std::uint8_t* pixels, std::size_t label, float rate) {
    std::vector<float> x(inputs, 1);
    for (std::size_t i = 0; i + 1 < inputs; ++i) x[i] = static_cast<float>(pixels[i]) / 128 - 1;
    std::vector<float> p(classes);
    for (std::size_t c = 0; c < classes; ++c) {
      for (std::size_t i = 0; i < inputs; ++i) p[c] += weights[c * inputs + i] * x[i];
    }
    const auto best = std::ranges::max_element(p);
    right += static_cast<std::size_t>(best - p.begin()) == label ? 1 : 0;
    ++images;
    const float highest = *best;
    float sum = 0;
    for (float& v : p) sum += v = std::exp(v - highest);
    for (float& v : p) v /= sum;
    loss -= std::log(std::max(p[label], 1e-9F));
    p[label] -= 1;
    for (std::size_t c = 0; c < classes; ++c) {
      for (std::size_t i = 0; i < inputs; ++i) weights[c * inputs + i] -= rate * p[c] * x[i];
    }
  }
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: example_training_loop 'train-{000000..000003}.tar' 5\n");
    return 2;
  }
  const long epochs = std::strtol(argv[2], nullptr, 10);
  engine eng(engine_options::from_environment());
  auto data = eng.run(shards(expand(argv[1]), {.seed = 1, .epochs = epochs}) | untar() |
                      group_by_key() | shuffle({.samples = 1000, .seed = 1}) |
                      decode_jpeg({.size = size, .seed = 1, .classes = classes}) |
                      on_error(skip_up_to(10)) | batch({.size = 32}) | prefetch(2));
  model m;
  for (long epoch = 0; epoch < epochs; ++epoch) {
    m.loss = 0;
    m.right = m.images = 0;
    for (auto& b : data) {  // one epoch
      const std::size_t bytes = b.payload_bytes() / b.size();
      for (std::size_t i = 0; i < b.size(); ++i) {
        m.learn(b.data() + i * bytes, static_cast<std::size_t>(b.labels[i]), 0.002F);
      }
    }
    std::printf("epoch %ld: %zu images, loss %.3f, %.1f %% right\n", epoch, m.images,
                m.loss / static_cast<double>(m.images),
                100 * static_cast<double>(m.right) / static_cast<double>(m.images));
  }
} catch (const failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return exit_code(f.kind());
}
