#include "io/http/opened_again.h"

#include "engine/base/hints.h"

namespace millrace {

void note(opened_version& in, const object_version& seen) {
  if (in.is_of_server) return;
  in.is_of_server = true;
  in.total = seen.total;
  in.etag = seen.etag;
  in.last_modified = seen.last_modified;
}

object_version noted(const opened_version& in) {
  return {.total = in.total, .etag = in.etag, .last_modified = in.last_modified};
}

result<void> compared(opened_version& with, const object_version& now) {
  note(with, now);
  const bool by_tag = with.etag && now.etag;
  const bool same_length = !with.total || !now.total || *with.total == *now.total;
  const bool same_name = by_tag ? with.etag == now.etag : with.last_modified == now.last_modified;
  if (same_length && same_name) return {};
  return error(errc::changed, "the object changed while it was read")
      .skippable()
      .hint(new_names_hint);
}

}  // namespace millrace
