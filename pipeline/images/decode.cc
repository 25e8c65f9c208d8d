#include "pipeline/images/decode.h"

#include <fmt/format.h>

#include <deque>

#include "engine/condition.h"
#include "engine/io_thread.h"
#include "engine/log.h"
#include "engine/offload.h"
#include "engine/scope.h"
#include "engine/worker_pool.h"
#include "pipeline/images/decoded_cache.h"
#include "pipeline/images/sample_decoder.h"
#include "pipeline/records.h"

namespace millrace {
namespace {

// One sample on its way through the pool. `finished` and `out` are the spine's.
struct job {
  sample in;
  image out;
  std::optional<error> failed;
  int warnings = 0;  // of the image's decoder
  bool finished = false;
  bool away = false;  // in the pool, or given to it
  bool has_sample = false;
  bool ends_epoch = false;
};

// What the stream shares with the coroutines it has spawned.
struct shared {
  shared(run_context& r, const decode_options& o, std::size_t w)
      : run(r),
        options(o),
        window(w),
        slots(r.in_order ? static_cast<std::size_t>(r.batch_size) : 1),
        head_finished(r.io.executor()),
        has_room(r.io.executor()) {}

  run_context& run;
  decode_options options;
  std::size_t window;
  std::size_t slots;  // of a block: a batch's images, or one
  std::shared_ptr<memory_share> blocks;
  std::shared_ptr<work_memory> decoding;
  std::shared_ptr<block> filling;
  int filling_size = 0;  // the side of its images
  std::size_t next_slot = 0;
  std::deque<std::shared_ptr<job>> jobs;       // in order
  std::vector<std::shared_ptr<job>> gathered;  // for the next crossing
  std::size_t groups_away = 0;
  bool ended = false;           // nothing more is asked of the stage in front
  std::optional<error> broken;  // why, where the sample in hand may be in no state
  bool epoch_held = false;      // an end of epoch waits to be taken
  bool error_held = false;  // one of the stage in front, which stays where it is until it is told
  condition head_finished;
  condition has_room;

  static std::size_t bytes_of(int size) {
    const auto side = static_cast<std::size_t>(size);
    return side * side * 3;
  }
};

void submit(const std::shared_ptr<shared>& s);

// Runs on a pool thread.
void decode_into_slot(job& j, const decode_options& options) {
  // Its tables and row buffers are kept from image to image.
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wexit-time-destructors"  // it ends with its thread
  thread_local sample_decoder decoder;
#pragma clang diagnostic pop
  std::byte* out = j.out.pixels->data + j.out.slot * j.out.bytes_per_image();
  try {
    const auto decoded = decoder.decode(j.in, options, reinterpret_cast<std::uint8_t*>(out));
    if (!decoded) {
      j.failed = decoded.error();
      return;
    }
    j.out.label = decoded->label;
    j.out.encoded = decoded->encoded;
    j.warnings = decoded->warnings;
  } catch (const std::bad_alloc&) {
    throw;  // no fault of the image
  } catch (...) {
    // No fault of the image: the host is out of memory, or the decoder is wrong.
    j.failed =
        error_of(std::current_exception(), "decoding").at(j.in.url ? *j.in.url : "").key(j.in.key);
  }
}

// One crossing for all that are gathered.
awaitable<void> run_group(std::shared_ptr<shared> s) {
  const auto group = std::exchange(s->gathered, {});
  for (const auto& j : group) j->away = true;
  ++s->groups_away;
  const auto work = [s, &group] {
    const work_memory_scope in(*s->decoding);
    for (const auto& j : group) decode_into_slot(*j, s->options);
  };
  co_await offload(s->run.io, s->run.threads.cpu(), work);
  for (const auto& j : group) {
    // The compressed bytes go back to the budget as soon as they are used.
    for (field& f : j->in.fields) f.data = bytes();
    j->finished = true;
  }
  --s->groups_away;
  submit(s);
  s->head_finished.notify_all();
}

// Samples cross one by one while threads may be idle, else in groups: a wake-up of the spine costs
// more than all else that it does for a small image. Each thread has a group in hand and one
// waiting; whenever one comes back, what was gathered goes.
void submit(const std::shared_ptr<shared>& s) {
  constexpr std::size_t most_of_a_group = 4;
  const std::size_t enough = 2 * static_cast<std::size_t>(s->run.threads.cpu().used());
  const bool may_wait = s->groups_away >= enough && s->gathered.size() < most_of_a_group;
  if (s->gathered.empty() || may_wait) return;
  s->run.tasks.spawn(run_group(s));  // which takes them before this returns
}

awaitable<result<void>> give_slot(shared& s, job& j) {
  const int size = size_in(s.options, j.in.where.epoch);
  // Images grow with the epochs of the data, whose ends stages in front may move or leave out.
  if (s.next_slot == s.slots || size != s.filling_size) s.filling.reset();
  if (!s.filling) {
    auto fresh = co_await s.blocks->acquire(shared::bytes_of(size) * s.slots);
    if (!fresh) co_return fresh.error();
    s.filling = fresh->owner();
    s.filling_size = size;
    s.next_slot = 0;
  }
  j.out.pixels = s.filling;
  j.out.slot = s.next_slot++;
  j.out.height = size;
  j.out.width = size;
  j.out.key = j.in.key;
  j.out.where = j.in.where;
  j.out.url = j.in.url;
  co_return result<void>();
}

void queue_failure(shared& s, const error& why) {
  auto j = std::make_shared<job>();
  j->failed = why;
  j->finished = true;
  s.jobs.push_back(std::move(j));
  s.head_finished.notify_all();
}

// Takes samples from the stage in front and gives them to the pool, as many as the window holds.
awaitable<void> fill_window(std::shared_ptr<shared> s, stream<sample>* samples) {
  while (!s->ended) {
    while (s->jobs.size() >= s->window || s->epoch_held || s->error_held) {
      co_await s->has_room.wait();
    }
    auto next = co_await samples->next();
    if (!next) {
      queue_failure(*s, next.error());
      s->error_held = true;
      s->ended = !next.error().is_skippable();
      continue;
    }
    auto j = std::make_shared<job>();
    if (!*next) {
      // The next epoch begins a new block, and is not begun before this one's end is taken.
      j->finished = j->ends_epoch = s->epoch_held = true;
      s->filling.reset();
      s->jobs.push_back(std::move(j));
      s->head_finished.notify_all();
      continue;
    }
    j->in = std::move(**next);
    j->has_sample = true;
    s->jobs.push_back(j);
    if (auto given = co_await give_slot(*s, *j); !given) {
      j->failed = given.error().skippable(false);
      j->finished = s->ended = true;
      s->head_finished.notify_all();
      continue;
    }
    s->gathered.push_back(j);
    submit(s);
  }
}

// What is thrown on the way is the error of the first sample that is not given to the pool for it,
// and of all that are asked for after.
awaitable<void> pump(std::shared_ptr<shared> s, stream<sample>* samples) {
  auto failed = co_await failure_of(fill_window(s, samples), "decode_jpeg");
  if (!failed) co_return;
  s->ended = true;
  s->broken = failed->skippable(false);
  for (const auto& j : s->jobs) {
    if (j->finished || j->away) continue;
    j->failed = s->broken;
    j->finished = true;
  }
  s->head_finished.notify_all();
}

class decode_stream final : public stream<image> {
 public:
  decode_stream(run_context& run, std::unique_ptr<stream<sample>> samples,
                const decode_options& options)
      : samples_(std::move(samples)) {
    const auto threads = static_cast<std::size_t>(run.threads.cpu().threads());
    const auto window =
        options.in_flight > 0 ? static_cast<std::size_t>(options.in_flight) : threads * 12;
    shared_ = std::make_shared<shared>(run, options, window);
    shared_->decoding = run.memory_for_decoding();
    claim_memory(run);
  }

  awaitable<outcome> next() override {
    shared& s = *shared_;
    if (!pump_started_) {
      pump_started_ = true;
      pump_ = s.run.tasks.spawn_stoppable(pump(shared_, samples_.get()));
    }
    decode_stream::leave_failed();
    while (s.jobs.empty() || !s.jobs.front()->finished) {
      if (s.jobs.empty() && s.broken) co_return *s.broken;
      co_await s.head_finished.wait();
    }
    const auto j = std::move(s.jobs.front());
    s.jobs.pop_front();
    if (j->ends_epoch) s.epoch_held = false;
    s.has_room.notify_one();
    if (j->failed) {
      if (j->has_sample) failed_ = j->in.where;
      error_told_ = !j->has_sample;
      co_return *j->failed;
    }
    if (j->ends_epoch) {
      tell_of_cache();
      co_return std::optional<image>();
    }
    if (j->warnings > 0) tell_of_damage(*j);
    co_return std::optional<image>(std::move(j->out));
  }

  void leave_failed() override {
    failed_.reset();
    if (!std::exchange(error_told_, false)) return;
    samples_->leave_failed();
    shared_->error_held = false;
    shared_->has_room.notify_one();
  }

  void save(state& to) const override {
    if (shared_->broken) throw failure(*shared_->broken);
    samples_->save(to);
    if (failed_) to.hold(pending_record, {&*failed_, 1});
    for (const auto& j : shared_->jobs) {
      if (j->has_sample) to.hold(pending_record, {&j->in.where, 1});
    }
    if (shared_->epoch_held) to.append(end_owed_record, state::record{1});
  }
  void restore(const state& from) override { samples_->restore(from); }

 private:
  // Where images come to the batch stage in order, they are decoded into blocks of a batch: those
  // that the program holds, one that waits for its last images, one being filled, one more to have
  // room, those queued. Else each has memory of its own: those in the window, and those that stages
  // behind hold while they wait for more.
  void claim_memory(run_context& run) {
    shared& s = *shared_;
    run.decoded_into_batches = run.in_order;
    run.image_bytes = shared::bytes_of(s.options.size);
    const std::size_t block = round_up(run.image_bytes * s.slots, page_bytes);
    const auto held = static_cast<std::size_t>(run.batches_held);
    const auto queued = static_cast<std::size_t>(run.batches_queued);
    const std::size_t least = run.in_order ? 2 + held : 4 + run.images_held;
    const std::size_t more = run.in_order ? 1 + queued : s.window + queued;
    // What only passes through need not be memory that a device can read.
    const bool passes_through = run.has_batches && !run.in_order;
    s.blocks =
        run.memory.share(run.in_order ? "batches" : "images", least * block, (least + more) * block,
                         passes_through ? default_host_allocator() : run.allocator);
    run.memory.take_rest(s.blocks);
  }

  void tell_of_damage(const job& j) {
    if (shared_->run.counts.damaged++ > 0) return;
    log_notice(fmt::format(
        "the data of image {} are damaged ({} warnings of its decoder), and it was kept; "
        "further ones are only counted",
        j.out.key, j.warnings));
  }

  // What keeping them costs, once an epoch has been through.
  void tell_of_cache() {
    const auto& cache = shared_->options.cache;
    if (cache && !std::exchange(told_of_cache_, true)) log_notice(cache->summary());
  }

  bool told_of_cache_ = false;
  std::unique_ptr<stream<sample>> samples_;
  std::shared_ptr<shared> shared_;
  std::optional<origin> failed_;  // of the sample whose error was given, until the next call
  bool error_told_ = false;       // one of the stage in front has been given, in the last call
  scope::task pump_;
  bool pump_started_ = false;
};

}  // namespace

stage<sample, image> decode_jpeg(const decode_options& options) {
  const decode_options o = checked(options);
  return {"decode_jpeg",
          [o](run_context& run,
              std::unique_ptr<stream<sample>> samples) -> std::unique_ptr<stream<image>> {
            return std::make_unique<decode_stream>(run, std::move(samples), o);
          },
          nullptr,
          true,
          false,
          true};
}

}  // namespace millrace
