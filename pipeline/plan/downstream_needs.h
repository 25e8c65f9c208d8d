#pragma once

#include <cstddef>
#include <optional>

namespace millrace {

// Needs of the later stages of a run, for the earlier ones. Each stage adds its own before the
// stages upstream of it are made, the last stage first (stage::announce). Earlier stages read it
// when they are made, and afterwards. Spine only.
struct downstream_needs {
  // The batch stage: the first one, if there are several.
  struct batch_stage {
    int size = 1;             // images of a batch
    bool drops_last = false;  // leaves out batches that are not full
    bool in_order = true;     // gets images in the order in which decode_jpeg() gives them
    bool ends_moved = false;  // its epochs end elsewhere than those of decode_jpeg()
  };
  std::optional<batch_stage> batches = {};  // nullopt: none

  int batches_held = 0;         // at once, by the program and the stages after the batch stage
  int batches_queued = 0;       // by prefetch stages
  std::size_t images_held = 0;  // by stages that hold them while they wait for more
  std::size_t stages = 0;       // after the lanes; each holds at most one end of epoch

  // Whether images may be decoded where the batch stage wants them.
  bool takes_images_in_order() const { return batches && batches->in_order; }
};

}  // namespace millrace
