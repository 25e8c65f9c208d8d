#include "pipeline/formats/tar_samples.h"

#include "pipeline/formats/group.h"
#include "pipeline/formats/tar_reader.h"

namespace millrace {
namespace {

class tar_source final : public sample_source {
 public:
  explicit tar_source(const untar_options& options)
      : options_(std::make_shared<const untar_options>(options)) {}

  std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                      const lane_cursor& at) const override {
    return std::make_unique<tar_reader>(lane, options_, which, at);
  }
  // The reader requests no bytes after the end, and skips files without copying them.
  bool keeps_bounds() const override { return true; }

 private:
  std::shared_ptr<const untar_options> options_;
};

}  // namespace

std::shared_ptr<const sample_source> tar_samples(const untar_options& options) {
  return std::make_shared<tar_source>(options);
}

lane_plan<sample> operator|(untarred_shards front, group_stage /*back*/) {
  return std::move(front.shards) | read_samples(tar_samples(front.options));
}

}  // namespace millrace
