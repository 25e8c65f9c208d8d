#include "pipeline/batch.h"

#include <fmt/format.h>

#include <cstring>

#include "pipeline/lanes.h"

namespace millrace {
namespace {

constexpr const char* record_name = "batch";

class batch_stream final : public stream<host_batch> {
 public:
  batch_stream(run_context& run, std::unique_ptr<stream<image>> images,
               const batch_options& options)
      : run_(run), images_(std::move(images)), options_(options) {}

  awaitable<outcome> next() override {
    const auto full = static_cast<std::size_t>(options_.size);
    while (gathered_.size() < full && !epoch_ended_) {
      if (other_size_) gathered_.push_back(*std::exchange(other_size_, std::nullopt));
      auto next = co_await images_->next();
      if (!next) co_return next.error();
      if (!*next) {
        epoch_ended_ = true;
      } else if (!gathered_.empty() && (*next)->height != gathered_.front().height) {
        other_size_ = std::move(**next);
        break;
      } else {
        gathered_.push_back(std::move(**next));
      }
    }
    if (gathered_.size() < full && options_.drop_last) {
      run_.counts.dropped += gathered_.size();
      gathered_.clear();
      if (other_size_) co_return co_await next();
    }
    if (!gathered_.empty()) co_return std::optional<host_batch>(put_together());
    epoch_ended_ = false;
    co_return std::optional<host_batch>();
  }

  void save(state& to) const override {
    images_->save(to);
    for (const image& i : gathered_) to.hold(pending_record, {&i.where, 1});
    if (other_size_) to.hold(pending_record, {&other_size_->where, 1});
    to.put(record_name, {epoch_ended_ ? 1 : 0});
  }
  void restore(const state& from) override {
    images_->restore(from);
    const auto* r = from.find(record_name);
    // With nothing gathered, the end of the epoch has been taken from the stage in front, and is
    // still owed to the one behind.
    epoch_ended_ = r != nullptr && r->size() == 1 && (*r)[0] != 0;
  }

 private:
  host_batch put_together() {
    const image& first = gathered_.front();
    const std::size_t bytes = first.bytes_per_image();
    host_batch out{.pixels = first.pixels, .height = first.height, .width = first.width};
    out.epoch = first.where.epoch;
    for (std::size_t i = 0; i < gathered_.size(); ++i) {
      image& from = gathered_[i];
      // Slots are given out in order, so `i` is never behind the image's own slot in this block.
      if (from.pixels != out.pixels || from.slot != i) {
        std::memmove(out.pixels->data + i * bytes, from.pixels->data + from.slot * bytes, bytes);
      }
      out.labels.push_back(from.label);
      if (from.encoded) out.encoded.emplace_back(i, *from.encoded);
      out.keys.push_back(std::move(from.key));
      out.origins.push_back(from.where);
    }
    gathered_.clear();
    return out;
  }

  run_context& run_;
  std::unique_ptr<stream<image>> images_;
  batch_options options_;
  std::vector<image> gathered_;      // of one size
  std::optional<image> other_size_;  // the next one, where images grow between two epochs
  bool epoch_ended_ = false;
};

}  // namespace

stage<image, host_batch> batch(const batch_options& options) {
  if (options.size < 1) {
    throw failure(error(errc::usage, fmt::format("a batch of {} images", options.size)));
  }
  return {"batch",
          [options](run_context& run,
                    std::unique_ptr<stream<image>> images) -> std::unique_ptr<stream<host_batch>> {
            return std::make_unique<batch_stream>(run, std::move(images), options);
          },
          [options](run_context& run) {
            run.batch_size = options.size;
            run.drops_last = options.drop_last;
          }};
}

}  // namespace millrace
