#include "pipeline/stages/batch.h"

#include <fmt/format.h>

#include <cstring>

#include "engine/base/check_option.h"
#include "engine/base/units.h"
#include "engine/host/log.h"
#include "pipeline/state/records.h"

namespace millrace {
namespace {

class batch_stream final : public stream<host_batch> {
 public:
  batch_stream(run_context& run, std::unique_ptr<stream<image>> images,
               const batch_options& options)
      : run_(run), images_(std::move(images)), options_(options) {
    if (run.decoded.into_batches && !run.downstream.batches->ends_moved) return;
    const auto slots = static_cast<std::size_t>(options.size);
    const std::size_t bytes =
        round_up(image_block_bytes(run.decoded.image_bytes, slots), page_bytes);
    const auto held = static_cast<std::size_t>(run.downstream.batches_held);
    const auto queued = static_cast<std::size_t>(run.downstream.batches_queued);
    copies_ =
        run.memory.share("batches", (1 + held) * bytes, (2 + held + queued) * bytes, run.allocator);
    run.memory.take_rest(copies_);
  }

  awaitable<outcome> next() override {
    const auto full = static_cast<std::size_t>(options_.size);
    for (;;) {
      if (auto gathered = co_await gather(); !gathered) co_return gathered.error();
      if (batch_.size() == full || !options_.drop_last) break;
      run_.counts.dropped += batch_.size();
      batch_ = {};
      if (!arrived_) break;
      if (!std::exchange(reported_sizes_, true)) report_sizes();
    }
    if (batch_.size() > 0) {
      if (in_place_) spent_ = batch_.pixels;
      co_return std::optional(std::exchange(batch_, {}));
    }
    epoch_ended_ = false;
    co_return std::optional<host_batch>();
  }

  void leave_failed() override { images_->leave_failed(); }
  void save(state& to) const override {
    images_->save(to);
    to.hold(pending_record, batch_.origins);
    if (arrived_) to.hold(pending_record, {&arrived_->where, 1});
    if (epoch_ended_) to.append(end_owed_record, state::record{1});
  }
  void restore(const state& from) override { images_->restore(from); }

 private:
  // Fills the batch until it is full, the epoch ends, or an image of another size arrives.
  awaitable<result<void>> gather() {
    const auto full = static_cast<std::size_t>(options_.size);
    while (batch_.size() < full && !epoch_ended_) {
      if (!arrived_) {
        auto next = co_await images_->next();
        if (!next) co_return next.error();
        epoch_ended_ = !*next;
        if (epoch_ended_) break;
        arrived_ = std::move(**next);
      }
      const bool fits = batch_.size() == 0 ||
                        (arrived_->height == batch_.height && arrived_->width == batch_.width);
      if (!fits) break;
      if (auto moved = co_await move_in(); !moved) co_return moved.error();
    }
    co_return result<void>();
  }

  void report_sizes() const {
    log_notice(fmt::format(
        "drop_last leaves out batches that images of other sizes cut short: image {} is "
        "{} x {}. Give images one size, batch like with like (bucketed), or keep short "
        "batches (batch_options.drop_last = false)",
        arrived_->key, arrived_->width, arrived_->height));
  }

  // The memory of a batch. With images in the order of their slots: the block of the first image,
  // unless an earlier batch took that block. Otherwise a new block.
  awaitable<result<std::shared_ptr<block>>> make_block(std::size_t image_bytes) {
    in_place_ = run_.decoded.into_batches && spent_.lock() != arrived_->pixels;
    if (in_place_) co_return arrived_->pixels;
    auto fresh = co_await copies_->acquire(
        image_block_bytes(image_bytes, static_cast<std::size_t>(options_.size)));
    if (!fresh) co_return fresh.error().skippable(false);
    co_return fresh->owner();
  }

  // Moves the arrived image to the batch's end and releases the block it was in, so that a batch
  // that waits for images holds only one block, however many of them fail.
  awaitable<result<void>> move_in() {
    const std::size_t bytes = arrived_->bytes_per_image();
    if (batch_.size() == 0) {
      auto made = co_await make_block(bytes);
      if (!made) co_return made.error();
      batch_ = {.pixels = std::move(*made), .height = arrived_->height, .width = arrived_->width};
      batch_.epoch = arrived_->where.epoch;
    }
    const std::size_t at = batch_.size();
    const image& from = *arrived_;
    // With slots in order, the slots from `at` up to this image's belong to images that failed or
    // were moved, so nothing else reads or writes them.
    if (from.pixels != batch_.pixels || from.slot != at) {
      std::memmove(batch_.pixels->data + at * bytes, from.pixels->data + from.slot * bytes, bytes);
    }
    if (from.encoded) batch_.encoded.emplace_back(at, *from.encoded);
    batch_.labels.push_back(from.label);
    batch_.origins.push_back(from.where);
    batch_.keys.push_back(std::move(arrived_->key));
    arrived_.reset();
    co_return result<void>();
  }

  run_context& run_;
  std::unique_ptr<stream<image>> images_;
  batch_options options_;
  std::shared_ptr<memory_share> copies_;  // null: images are always decoded into the batches
  bool in_place_ = false;                 // the images of `batch_` were decoded into its block
  std::weak_ptr<block> spent_;            // the block of the last batch made in place
  host_batch batch_;                      // images gathered so far, of one size
  std::optional<image> arrived_;          // the next one to move in, or the first of another size
  bool epoch_ended_ = false;
  bool reported_sizes_ = false;
};

}  // namespace

stage<image, host_batch> batch(const batch_options& options) {
  constexpr int most = 1 << 20;
  check_option("batch_options.size", options.size, 1, most);
  check_option("batch_options.held", options.held, 1, most);
  return {"batch",
          [options](run_context& run,
                    std::unique_ptr<stream<image>> images) -> std::unique_ptr<stream<host_batch>> {
            return std::make_unique<batch_stream>(run, std::move(images), options);
          },
          [options](downstream_needs& needs) {
            needs.batches = {.size = options.size, .drops_last = options.drop_last};
            needs.batches_held += options.held;
          }};
}

}  // namespace millrace
