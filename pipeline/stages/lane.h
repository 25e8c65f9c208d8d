#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "pipeline/formats/fetch.h"
#include "pipeline/plan/plan.h"

namespace millrace {

// A lane of this rank, and its progress. interleaved() takes samples from several in turn.
struct lane {
  std::unique_ptr<lane_context> context;
  std::unique_ptr<stream<sample>> samples;
  std::int64_t epoch = 0;
  std::int64_t base = 0;                 // positions before it were given by other lanes
  std::int64_t given = 0;                // samples of this epoch; pending ones count once
  std::int64_t failed = 0;               // errors of this epoch
  bool ended = false;                    // has no more samples in this epoch
  std::optional<std::int64_t> consumer;  // in a merged state: the latest epoch of one
  // Samples given before the state was saved, but not delivered: read again, one by one.
  std::vector<origin> pending;
  // Number of these, at the end, on which the lane's stages failed. They are not among `given`.
  std::size_t failed_pending = 0;
  std::unique_ptr<again_reader> again;

  std::int64_t next_position() const {
    return base + given * static_cast<std::int64_t>(context->lanes) + context->lane;
  }
  bool is_given_next() const { return pending.size() > failed_pending; }  // one of `given`
  std::pair<std::int64_t, std::int64_t> next_place() const {
    if (is_given_next()) return pending.front().place();
    return {epoch, next_position()};
  }
  bool done() const { return ended && pending.empty(); }

  // Assigns the next positions to samples that the lane's own stages failed on, in case they do not
  // fail again.
  void place(std::span<origin> failed) const {
    std::int64_t position = next_position();
    for (origin& o : failed) {
      o.position = position;
      o.epoch = epoch;
      position += static_cast<std::int64_t>(context->lanes);
    }
  }
};

}  // namespace millrace
