#pragma once

#include <optional>

#include "engine/async.h"
#include "engine/result.h"
#include "pipeline/state.h"

namespace millrace {

// A running stage. Lives on one I/O thread (the spine): no locks, one next() at a time.
template <class T>
class stream {
 public:
  using value_type = T;
  using outcome = result<std::optional<T>>;

  virtual ~stream() = default;

  // The next item. nullopt ends an epoch; asked again, the next epoch begins, or nullopt comes
  // again when there is none. After a skippable error the stream goes on behind what failed; after
  // any other it is of no more use.
  virtual awaitable<outcome> next() = 0;

  // Adds what this stage and those before it need to go on with exactly the next item. Called
  // between two calls of next(), or during one that is suspended in a later stage.
  virtual void save(state& to) const = 0;
  // Before the first next(). Throws `failure` (bad_state) when `from` does not fit.
  virtual void restore(const state& from) = 0;
};

}  // namespace millrace
