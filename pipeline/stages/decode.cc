#include "pipeline/stages/decode.h"

#include <fmt/format.h>

#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/host/log.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/offload.h"
#include "engine/threads/worker_pool.h"
#include "pipeline/images/decoded_cache.h"
#include "pipeline/images/sample_decoder.h"
#include "pipeline/plan/ordered_window.h"

namespace millrace {
namespace {

struct job : detail::window_job<sample> {
  image out;
  int warnings = 0;  // of the decoder, about this image
};

// Decodes the samples of its window in groups, into slots of blocks.
class decode_window final : public detail::ordered_window<sample, job> {
 public:
  decode_window(run_context& r, std::unique_ptr<stream<sample>> samples, const decode_options& o,
                std::size_t size)
      : ordered_window(r, "decode_jpeg", std::move(samples), size),
        options(o),
        slots_(r.downstream.takes_images_in_order()
                   ? static_cast<std::size_t>(r.downstream.batches->size)
                   : 1),
        decoding_(r.memory_for_decoding()) {
    claim_memory(size);
  }

  const decode_options options;

 private:
  static std::size_t bytes_of(int size) {
    const auto side = static_cast<std::size_t>(size);
    return side * side * 3;
  }

  void claim_memory(std::size_t window);
  awaitable<result<void>> start(std::shared_ptr<job> j) override;
  // A block holds one epoch's images: the next epoch starts only after this one's end was taken.
  void end_epoch() override { filling_.reset(); }
  awaitable<result<void>> give_slot(job& j);
  void submit();
  static awaitable<void> run_group(std::shared_ptr<decode_window> w);

  std::size_t slots_;  // images in a block: a batch's, or one
  std::shared_ptr<memory_share> blocks_;
  std::shared_ptr<work_memory> decoding_;
  std::shared_ptr<block> filling_;
  int filling_size_ = 0;  // the side of its images, in pixels
  std::size_t next_slot_ = 0;
  std::vector<std::shared_ptr<job>> gathered_;  // to cross to the pool next
  std::size_t groups_away_ = 0;
};

// Runs on a pool thread.
void decode_into_slot(job& j, const decode_options& options) {
  // Keeps its tables and row buffers from image to image.
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wexit-time-destructors"  // it ends with its thread
  thread_local sample_decoder decoder;
#pragma clang diagnostic pop
  std::byte* out = j.out.pixels->data + j.out.slot * j.out.bytes_per_image();
  try {
    const auto decoded = decoder.decode(*j.item, options, reinterpret_cast<std::uint8_t*>(out));
    if (!decoded) {
      j.failed = decoded.error();
      return;
    }
    j.out.label = decoded->label;
    j.out.encoded = decoded->encoded;
    j.warnings = decoded->warnings;
  } catch (const std::bad_alloc&) {
    throw;  // not the image's fault
  } catch (...) {
    // Not the image's fault: the host is out of memory, or the decoder has a bug.
    j.failed = error_of(std::current_exception(), "decoding")
                   .at(j.out.url ? *j.out.url : "")
                   .key(j.out.key);
  }
}

// Decodes all gathered samples in one crossing to the pool.
awaitable<void> decode_window::run_group(std::shared_ptr<decode_window> w) {
  const auto group = std::exchange(w->gathered_, {});
  for (const auto& j : group) j->under_way = true;
  ++w->groups_away_;
  const auto work = [w, &group] {
    const work_memory_scope in(*w->decoding_);
    for (const auto& j : group) decode_into_slot(*j, w->options);
  };
  co_await offload(w->run.io, w->run.threads.cpu(), work);
  for (const auto& j : group) {
    // Return the compressed bytes to the budget at once.
    for (field& f : j->item->fields) f.data = bytes();
    j->finished = true;
  }
  --w->groups_away_;
  w->submit();
  w->notify_finished();
}

// Samples cross one at a time while threads may be idle, otherwise in groups: for a small image,
// waking the spine costs more than the rest of its work there. Each thread has one group in hand
// and one waiting; each group that returns sends what was gathered meanwhile.
void decode_window::submit() {
  constexpr std::size_t most_of_a_group = 4;
  const std::size_t enough = 2 * static_cast<std::size_t>(run.threads.cpu().used());
  const bool may_wait = groups_away_ >= enough && gathered_.size() < most_of_a_group;
  if (gathered_.empty() || may_wait) return;
  // run_group() takes the gathered samples before spawn() returns.
  run.tasks.spawn(run_group(std::static_pointer_cast<decode_window>(shared_from_this())));
}

awaitable<result<void>> decode_window::give_slot(job& j) {
  const int size = size_in(options, j.item->where.epoch);
  // Image size depends on the epoch of the data; upstream stages may move or drop the epoch's end.
  if (next_slot_ == slots_ || size != filling_size_) filling_.reset();
  if (!filling_) {
    auto fresh = co_await blocks_->acquire(image_block_bytes(bytes_of(size), slots_));
    if (!fresh) co_return fresh.error();
    filling_ = fresh->owner();
    filling_size_ = size;
    next_slot_ = 0;
  }
  j.out.pixels = filling_;
  j.out.slot = next_slot_++;
  j.out.height = size;
  j.out.width = size;
  j.out.key = j.item->key;
  j.out.where = j.item->where;
  j.out.url = j.item->url;
  co_return result<void>();
}

awaitable<result<void>> decode_window::start(std::shared_ptr<job> j) {
  auto given = co_await give_slot(*j);
  if (!given) co_return given;
  gathered_.push_back(std::move(j));
  submit();
  co_return given;
}

// Reserves memory for images. If they reach the batch stage in order, they are decoded into batch
// blocks: those the program holds, one waiting for its last images, one being filled, one spare,
// and those queued. Otherwise each image has its own block: those in the window, and those that
// downstream stages hold while they wait for more.
void decode_window::claim_memory(std::size_t window) {
  const downstream_needs& needs = run.downstream;
  const bool in_order = needs.takes_images_in_order();
  const std::size_t image_bytes = bytes_of(options.size);
  run.decoded = {.into_batches = in_order, .image_bytes = image_bytes};
  const std::size_t block = round_up(image_block_bytes(image_bytes, slots_), page_bytes);
  const auto held = static_cast<std::size_t>(needs.batches_held);
  const auto queued = static_cast<std::size_t>(needs.batches_queued);
  const std::size_t least = in_order ? 2 + held : 4 + needs.images_held;
  const std::size_t more = in_order ? 1 + queued : window + queued;
  // Images that are copied into batches need no device-readable memory.
  const bool passes_through = needs.batches && !in_order;
  blocks_ = run.memory.share(in_order ? "batches" : "images", least * block, (least + more) * block,
                             passes_through ? default_host_allocator() : run.allocator);
  run.memory.take_rest(blocks_);
}

class decode_stream final : public detail::windowed_stream<image, decode_window> {
 public:
  using windowed_stream::windowed_stream;

  awaitable<outcome> next() override {
    decode_window& w = window();
    auto taken = co_await w.take(false);
    if (!taken) co_return taken.error();
    const auto j = std::move(*taken);
    if (j->failed) co_return *j->failed;
    if (j->ends_epoch) {
      report_cache(w.options);
      co_return std::optional<image>();
    }
    if (j->warnings > 0) report_damage(w.run, *j);
    co_return std::optional<image>(std::move(j->out));
  }

 private:
  static void report_damage(run_context& run, const job& j) {
    if (run.counts.damaged++ > 0) return;
    log_notice(fmt::format(
        "an image is damaged, and was kept: key {} of {}, {} of its decoder; further ones are only "
        "counted",
        j.out.key, j.out.url ? redacted(*j.out.url) : "a shard",
        counted(static_cast<std::uint64_t>(j.warnings), "warning")));
  }

  // Logs once, at the end of the first epoch, what the cache holds.
  void report_cache(const decode_options& options) {
    const auto& cache = options.cache;
    if (cache && !std::exchange(reported_cache_, true)) log_notice(cache->summary());
  }

  bool reported_cache_ = false;
};

}  // namespace

stage<sample, image> decode_jpeg(const decode_options& options) {
  const decode_options o = checked(options);
  return {.name = "decode_jpeg",
          .wrap = [o](run_context& run,
                      std::unique_ptr<stream<sample>> samples) -> std::unique_ptr<stream<image>> {
            const auto threads = static_cast<std::size_t>(run.threads.cpu().threads());
            const std::size_t size =
                o.in_flight > 0 ? static_cast<std::size_t>(o.in_flight) : threads * 12;
            return std::make_unique<decode_stream>(
                std::make_shared<decode_window>(run, std::move(samples), o, size));
          },
          .keeps_order = true,
          .takes_ahead = true};
}

}  // namespace millrace
