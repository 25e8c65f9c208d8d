#include "pipeline/images/decode.h"

#include <fmt/format.h>

#include <deque>

#include "engine/offload.h"
#include "pipeline/label.h"
#include "pipeline/lanes.h"

namespace millrace {
namespace {

error described(error why, const sample& s) {
  if (why.where().empty()) {
    why.at(s.url ? *s.url : "").offset(static_cast<std::uint64_t>(s.where.offset));
  }
  if (why.sample_key().empty()) why.key(s.key);
  return why;
}

// Runs on a pool thread. `out` is this sample's slot.
result<std::int64_t> decode_one(const sample& s, const decode_options& o, std::uint8_t* out) {
  const field* file = first_field(s, o.images);
  if (file == nullptr) {
    return described(error(errc::missing_field, fmt::format("no image among its fields (looked for "
                                                            "{})",
                                                            o.images))
                         .skippable(),
                     s);
  }
  auto label = label_of(s, o.label);
  if (!label) return label;
  const auto choose = [&](int width, int height) { return view_of(o, s.where, width, height); };
  const auto bytes = static_cast<std::size_t>(o.size) * static_cast<std::size_t>(o.size) * 3;
  const auto slot = [&](const view_of_image&) { return std::span(out, bytes); };
  // Its tables and row buffers are kept from image to image.
  thread_local jpeg_decoder decoder;
  if (auto decoded = decoder.decode(file->data.span(), o.jpeg, choose, slot); !decoded) {
    return described(decoded.error(), s);
  }
  return label;
}

// One sample on its way through the pool. `finished` and `out` are the spine's.
struct job {
  sample in;
  image out;
  std::optional<error> failed;
  bool finished = false;
  bool has_sample = false;
  bool ends_epoch = false;
};

// What the stream shares with the coroutines it has spawned.
struct shared {
  shared(run_context& r, const decode_options& o, std::size_t w)
      : run(r), options(o), window(w), head_finished(r.io.executor()), has_room(r.io.executor()) {}

  run_context& run;
  decode_options options;
  std::size_t window;
  std::shared_ptr<memory_share> blocks;
  std::shared_ptr<block> filling;
  std::size_t next_slot = 0;
  std::deque<std::shared_ptr<job>> jobs;  // in order
  bool ended = false;                     // nothing more is asked of the stage in front
  std::optional<error> broken;            // why: given again to whoever asks again
  bool epoch_held = false;                // an end of epoch waits to be taken
  condition head_finished;
  condition has_room;

  std::size_t image_bytes() const {
    const auto side = static_cast<std::size_t>(options.size);
    return side * side * 3;
  }
};

awaitable<void> run_job(std::shared_ptr<shared> s, std::shared_ptr<job> j) {
  std::byte* out = j->out.pixels->data + j->out.slot * s->image_bytes();
  const auto work = [s, j, out] {
    return decode_one(j->in, s->options, reinterpret_cast<std::uint8_t*>(out));
  };
  try {
    const auto label = co_await offload(s->run.io, s->run.threads.cpu(), work);
    if (label) {
      j->out.label = *label;
    } else {
      j->failed = label.error();
    }
  } catch (const std::exception& e) {
    j->failed = error(errc::internal, e.what()).key(j->in.key).skippable();
  }
  // The compressed bytes go back to the budget as soon as they are used.
  for (field& f : j->in.fields) f.data = bytes();
  j->finished = true;
  s->head_finished.notify_all();
}

awaitable<result<void>> give_slot(shared& s, job& j) {
  if (s.filling && s.next_slot == static_cast<std::size_t>(s.run.batch_size)) s.filling.reset();
  if (!s.filling) {
    auto fresh =
        co_await s.blocks->acquire(s.image_bytes() * static_cast<std::size_t>(s.run.batch_size));
    if (!fresh) co_return fresh.error();
    s.filling = fresh->owner();
    s.next_slot = 0;
  }
  j.out.pixels = s.filling;
  j.out.slot = s.next_slot++;
  j.out.height = s.options.size;
  j.out.width = s.options.size;
  j.out.key = j.in.key;
  j.out.where = j.in.where;
  co_return result<void>();
}

void queue_failure(shared& s, const error& why) {
  auto j = std::make_shared<job>();
  j->failed = why;
  j->finished = true;
  s.jobs.push_back(std::move(j));
  s.head_finished.notify_all();
}

// Keeps the window full: takes samples from the stage in front and gives them to the pool.
awaitable<void> pump(std::shared_ptr<shared> s, stream<sample>* samples) {
  while (!s->ended) {
    while (s->jobs.size() >= s->window || s->epoch_held) co_await s->has_room.wait();
    auto next = co_await samples->next();
    if (!next) {
      queue_failure(*s, next.error());
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
    s->run.tasks.spawn(run_job(s, j));
  }
}

class decode_stream final : public stream<image> {
 public:
  decode_stream(run_context& run, std::unique_ptr<stream<sample>> samples,
                const decode_options& options)
      : samples_(std::move(samples)) {
    const auto threads = static_cast<std::size_t>(run.threads.cpu().threads());
    const auto window =
        options.in_flight > 0 ? static_cast<std::size_t>(options.in_flight) : threads * 3;
    shared_ = std::make_shared<shared>(run, options, window);
    // Blocks: two in the caller's hands, those queued, one waiting for its last samples, one being
    // filled.
    const std::size_t block = shared_->image_bytes() * static_cast<std::size_t>(run.batch_size);
    const std::size_t page_rounded = (block + 4095) / 4096 * 4096;
    const auto queued = static_cast<std::size_t>(run.batches_queued);
    shared_->blocks =
        run.memory.share("batches", 4 * page_rounded, (5 + queued) * page_rounded, run.allocator);
  }

  awaitable<outcome> next() override {
    shared& s = *shared_;
    if (!pump_started_) {
      pump_started_ = true;
      pump_ = s.run.tasks.spawn_stoppable(pump(shared_, samples_.get()));
    }
    while (s.jobs.empty() || !s.jobs.front()->finished) {
      if (s.jobs.empty() && s.broken) co_return *s.broken;
      co_await s.head_finished.wait();
    }
    const auto j = std::move(s.jobs.front());
    s.jobs.pop_front();
    if (j->ends_epoch) s.epoch_held = false;
    s.has_room.notify_one();
    if (j->failed) {
      if (!j->failed->is_skippable()) s.broken = j->failed;
      co_return *j->failed;
    }
    if (j->ends_epoch) co_return std::optional<image>();
    co_return std::optional<image>(std::move(j->out));
  }

  void save(state& to) const override {
    samples_->save(to);
    for (const auto& j : shared_->jobs) {
      if (j->has_sample) to.hold(pending_record, {&j->in.where, 1});
    }
    if (shared_->epoch_held) to.append(end_owed_record, state::record{1});
  }
  void restore(const state& from) override { samples_->restore(from); }

 private:
  std::unique_ptr<stream<sample>> samples_;
  std::shared_ptr<shared> shared_;
  scope::task pump_;
  bool pump_started_ = false;
};

}  // namespace

decode_options checked(decode_options o) {
  if (o.size < 1 || o.size > 16384) {
    throw failure(error(errc::usage, fmt::format("an image size of {} pixels", o.size)));
  }
  if (o.resize == 0) o.resize = (o.size * 256 + 112) / 224;
  if (o.resize < o.size) {
    throw failure(
        error(errc::usage, fmt::format("a resize to {} below the size {}", o.resize, o.size)));
  }
  return o;
}

view_of_image view_of(const decode_options& o, const origin& where, int width, int height) {
  if (!o.train) return resize_center_crop(width, height, o.resize, o.size);
  return random_resized_crop(
      width, height, o.size, o.crop,
      random_stream(o.seed, purpose::augment, static_cast<std::uint64_t>(where.epoch),
                    static_cast<std::uint64_t>(where.position)));
}

const field* first_field(const sample& s, std::string_view names) {
  for (std::size_t from = 0; from <= names.size();) {
    const auto end = std::min(names.find(';', from), names.size());
    if (const field* f = s.find(names.substr(from, end - from))) return f;
    from = end + 1;
  }
  return nullptr;
}

stage<sample, image> decode_jpeg(const decode_options& options) {
  const decode_options o = checked(options);
  return {"decode_jpeg",
          [o](run_context& run,
              std::unique_ptr<stream<sample>> samples) -> std::unique_ptr<stream<image>> {
            return std::make_unique<decode_stream>(run, std::move(samples), o);
          }};
}

}  // namespace millrace
