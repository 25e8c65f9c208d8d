#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace millrace {

struct fake_options {
  int samples = 2000;  // over all shards
  int classes = 10;    // at most 100
  int size = 64;       // pixels, width and height
  std::uint64_t seed = 0;
  // Replaces shards that are there at the start; else, and for others that have appeared since,
  // that is an error (usage), and they stay.
  bool overwrite = true;
};

// One RGB image, size x size x 3 bytes, of class `label`: stripes whose hue and direction (upright
// or lying) tell the class; width, ground, noise and a gray disc in the way are random. A network
// learns it in a minute, and neither crops nor mirroring change the class. A function of its
// arguments.
std::vector<std::uint8_t> fake_image(const fake_options& options, int label, std::uint64_t sample);

// Writes the dataset to `paths` (evenly, classes in random order): KEY.jpg and KEY.cls. The same
// options give the same bytes. `goes_on`, where it is given, is asked before each sample, with the
// number of shards that are complete; where it says no, the shard begun is removed and the answer
// is false. Throws `failure` when a shard cannot be written, and (usage) where another living run
// is writing one of them.
bool write_fake_shards(const std::vector<std::string>& paths, const fake_options& options,
                       const std::function<bool(std::size_t shards)>& goes_on = nullptr);

}  // namespace millrace
