#include "tests/support/option_ranges.h"

#include <gtest/gtest.h>

#include "millrace/millrace.h"
#include "pipeline/images/decoded_cache.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/text_shards.h"
#include "tools/write/fake.h"

namespace millrace {
namespace {

using testing::one_number;
using testing::with_memory_store;

template <class F>
void members(http_timeouts& o, F& f) {
  auto& [connect, tls, first_byte, progress] = o;
  f("connect", connect), f("tls", tls), f("first_byte", first_byte), f("progress", progress);
}
template <class F>
void members(http_options& o, F& f) {
  auto& [timeouts, attempts, backoff, connections, idle, receive_buffer_bytes, split, part_bytes,
         hedge, private_redirects, user_agent, fields, tls, netrc, tokens, s3_path_style,
         s3_unsigned, s3_requester_pays, environment] = o;
  members(timeouts, f);
  f("attempts", attempts), f("backoff", backoff), f("connections", connections);
  f("idle", idle), f("receive_buffer_bytes", receive_buffer_bytes), f("split", split);
  f("part_bytes", part_bytes), f("hedge", hedge);
}
template <class F>
void members(cache_options& o, F& f) {
  auto& [folder, most_bytes, least_free, paths, patience] = o;
  f("most_bytes", most_bytes), f("least_free", least_free), f("patience", patience);
}
template <class F>
void members(source_options& o, F& f) {
  auto& [chunk_bytes, read_ahead, read_depth, direct, drop_cache, spindles, serialize, extent_bytes,
         gate_folder, gate_patience, read_timeout, http, allow_pipe, cache, rewrites, max_expansion,
         working_set_bytes, quick_start] = o;
  f("chunk_bytes", chunk_bytes), f("read_ahead", read_ahead), f("read_depth", read_depth);
  f("spindles", spindles), f("serialize", serialize), f("extent_bytes", extent_bytes);
  f("gate_patience", gate_patience), f("read_timeout", read_timeout);
  members(http, f), members(cache, f);
  f("max_expansion", max_expansion), f("working_set_bytes", working_set_bytes);
}
template <class F>
void members(engine_options& o, F& f) {
  auto& [cpu_threads, io_threads, memory_bytes, io, register_buffers, source, allocator,
         add_sources, tell_skipped, in_words] = o;
  f("cpu_threads", cpu_threads), f("io_threads", io_threads), f("memory_bytes", memory_bytes);
  members(source, f);
}
template <class F>
void members(shard_list_options& o, F& f) {
  auto& [seed, rank, world_size, lanes, mode, shuffle, epochs, first_epoch, index, hooks] = o;
  f("seed", seed), f("rank", rank), f("world_size", world_size), f("lanes", lanes);
  f("epochs", epochs), f("first_epoch", first_epoch);
}
template <class F>
void members(shuffle_options& o, F& f) {
  auto& [samples, seed, bytes] = o;
  f("samples", samples), f("seed", seed), f("bytes", bytes);
}
template <class F>
void members(window_options& o, F& f) {
  auto& [samples, seed, ahead] = o;
  f("samples", samples), f("seed", seed), f("ahead", ahead);
}
template <class F>
void members(map_options& o, F& f) {
  auto& [threads, ordered] = o;
  f("threads", threads);
}
template <class F>
void members(error_policy& o, F& f) {
  auto& [most_skipped, most_rate, most_in_a_row, report, report_of] = o;
  f("most_skipped", most_skipped), f("most_rate", most_rate), f("most_in_a_row", most_in_a_row);
}
template <class F>
void members(batch_options& o, F& f) {
  auto& [size, drop_last, held] = o;
  f("size", size), f("held", held);
}
template <class F>
void members(crop_options& o, F& f) {
  auto& [least_area, most_area, least_aspect, most_aspect, flip] = o;
  f("least_area", least_area), f("most_area", most_area), f("least_aspect", least_aspect);
  f("most_aspect", most_aspect), f("flip", flip);
}
template <class F>
void members(augment_options& o, F& f) {
  auto& [policy, ops, magnitude, jitter, gray, solarize, solarize_from, blur, erasing] = o;
  auto& [brightness, contrast, saturation, hue, jitter_probability] = jitter;
  auto& [blur_probability, size, least_sigma, most_sigma] = blur;
  auto& [probability, least_area, most_area, least_aspect, most_aspect, color] = erasing;
  f("randaugment_ops", ops), f("randaugment_magnitude", magnitude);
  f("brightness", brightness), f("contrast", contrast), f("saturation", saturation);
  f("hue", hue), f("probability", jitter_probability), f("gray", gray), f("solarize", solarize);
  f("solarize_from", solarize_from), f("probability", blur_probability), f("size", size);
  f("least_sigma", least_sigma), f("most_sigma", most_sigma), f("probability", probability);
  f("least_area", least_area), f("most_area", most_area), f("least_aspect", least_aspect);
  f("most_aspect", most_aspect);
}
template <class F>
void members(decode_options& o, F& f) {
  auto& [size, train, resize, seed, crop, augment, growing, images, label, classes, image,
         encoded_share, cache, in_flight] = o;
  auto& [from, epochs, multiple] = growing;
  auto& [limits, filter, lenient, fill_truncated, orient, runs, own_huffman, fast, raw_width,
         raw_height] = image;
  auto& [max_pixels, max_scans, max_held_bytes, max_cpu_seconds] = limits;
  f("size", size), f("resize", resize), f("seed", seed), f("classes", classes);
  members(crop, f), members(augment, f);
  f("from", from), f("epochs", epochs), f("multiple", multiple);
  f("max_pixels", max_pixels), f("max_scans", max_scans), f("max_held_bytes", max_held_bytes);
  f("max_cpu_seconds", max_cpu_seconds), f("raw_width", raw_width), f("raw_height", raw_height);
  f("encoded_share", encoded_share), f("in_flight", in_flight);
}
template <class F>
void members(mixing_options& o, F& f) {
  auto& [mixup, cutmix, seed] = o;
  f("mixup", mixup), f("cutmix", cutmix), f("seed", seed);
}
template <class F>
void members(mix_source& o, F& f) {
  auto& [samples, weight] = o;
  f("weight", weight);
}
template <class F>
void members(decoded_cache_options& o, F& f) {
  auto& [bytes, folder, resize] = o;
  f("bytes", bytes), f("resize", resize);
}
template <class F>
void members(indexed_dataset_options& o, F& f) {
  auto& [lru_shards] = o;
  f("lru_shards", lru_shards);
}
template <class F>
void members(chunked_sampler& o, F& f) {
  auto& [samples, chunk, seed, shuffle, shuffle_first] = o;
  f("chunk", chunk), f("seed", seed);
}
template <class F>
void members(distributed_chunked_sampler& o, F& f) {
  auto& [samples, replicas, rank, chunk, seed, shuffle, shuffle_first] = o;
  f("replicas", replicas), f("rank", rank), f("chunk", chunk);
  f("seed", seed);
}
class OptionRanges : public testing::text_shards {
 protected:
  template <class O, class Use>
  static void expect_served_or_refused(const O& usual, Use use) {
    testing::expect_served_or_refused(usual, use, [](O& o, auto& f) { members(o, f); });
  }
  static lane_plan<sample> data(const shard_list_options& o = {.seed = 1, .lanes = 2}) {
    return shards(urls(2), o) | untar() | group_by_key();
  }
  template <class T>
  static void read_epoch(loader<T> from) {
    while (from.next()) {
    }
  }

  engine eng_{with_memory_store(store_)};
};

TEST_F(OptionRanges, OfEnginesAndSources) {
  expect_served_or_refused(with_memory_store(store_), [](const engine_options& o) {
    engine eng(o);
    read_epoch(eng.run(data() | shuffle({.samples = 10})));
  });
}

TEST_F(OptionRanges, OfStagesOfSamples) {
  const auto run = [&](const auto& what) { read_epoch(eng_.run(what)); };
  expect_served_or_refused(shard_list_options{.seed = 1, .lanes = 2},
                           [&](const shard_list_options& o) { run(interleaved(data(o))); });
  expect_served_or_refused(
      shuffle_options{}, [&](const shuffle_options& o) { run(interleaved(data() | shuffle(o))); });
  expect_served_or_refused(map_options{}, [&](const map_options& o) {
    run(interleaved(data()) | map([](sample s) { return s; }, o));
  });
  expect_served_or_refused(error_policy{},
                           [&](const error_policy& o) { run(interleaved(data()) | on_error(o)); });
  expect_served_or_refused(mix_source{data(), 1},
                           [&](const mix_source& o) { run(interleaved(mix({{data(), 1}, o}))); });
  const auto index = testing::index_of(eng_, urls(2));
  expect_served_or_refused(window_options{}, [&](const window_options& o) {
    run(interleaved(indexed_shards(index, {.seed = 1, .lanes = 2}) | window_shuffle(o)));
  });
  expect_served_or_refused(indexed_dataset_options{}, [&](const indexed_dataset_options& o) {
    auto without = index;
    for (auto& s : without.shards) s.blocks.clear();
    indexed_dataset of(eng_, without, o);
    of.get(0);
    of.get(of.size() - 1);
  });
  const auto of = interleaved(data());
  const auto number = [&](auto use) { expect_served_or_refused(one_number{}, use); };
  number([&](one_number n) { run(of | prefetch(static_cast<int>(n.n))); });
  number([&](one_number n) { run(of | batched(static_cast<std::size_t>(n.n))); });
  number([&](one_number n) { run(of | epochs_of(n.n)); });
  number([&](one_number n) { run(of | repeated(n.n)); });
  number([&](one_number n) { run(of | slice(n.n, 100)); });
  number([&](one_number n) { run(of | slice(0, n.n)); });
  number([&](one_number n) { run(of | slice(0, 100, n.n)); });
  number([&](one_number n) {
    run(of | bucketed([](const sample&) { return 1; },
                      {{.up_to = 1, .size = static_cast<std::size_t>(n.n)}}));
  });
}

TEST_F(OptionRanges, OfImages) {
  const testing::temporary_folder folder;
  const std::string path = folder / "f.tar";
  write_fake_shards({path}, {.samples = 6, .classes = 2, .size = 40});
  const auto samples = interleaved(shards({path}) | untar() | group_by_key());
  const auto run = [&](const decode_options& o) {
    read_epoch(eng_.run(samples | decode_jpeg(o) | on_error(skip_errors()) | batch({.size = 4})));
  };
  decode_options all{.size = 32};
  all.augment = {.policy = augment_policy::randaugment,
                 .jitter = {0.1, 0.1, 0.1, 0.1},
                 .gray = 0.5,
                 .solarize = 0.5,
                 .blur = {.probability = 0.5},
                 .erasing = {.probability = 0.5}};
  expect_served_or_refused(all, run);
  expect_served_or_refused(batch_options{.size = 4}, [&](const batch_options& o) {
    read_epoch(eng_.run(samples | decode_jpeg({.size = 32}) | batch(o)));
  });
  expect_served_or_refused(mixing_options{}, [&](const mixing_options& o) {
    read_epoch(
        eng_.run(samples | decode_jpeg({.size = 32}) | batch({.size = 4}) | map(mix_images(o))));
  });
  expect_served_or_refused(decoded_cache_options{.bytes = 1_MiB},
                           [&](const decoded_cache_options& o) {
                             decode_options with{.size = 32};
                             with.cache = std::make_shared<decoded_cache>(o);
                             run(with);
                           });
}

TEST_F(OptionRanges, OfSamplers) {
  const auto draw = [](const auto& sampler) {
    auto indices = sampler.epoch(0);
    for (int i = 0; i < 10 && indices.next(); ++i) {
    }
  };
  expect_served_or_refused(chunked_sampler{.samples = {0, 10}, .chunk = 3}, draw);
  expect_served_or_refused(distributed_chunked_sampler{.samples = 10, .replicas = 2, .chunk = 3},
                           draw);
}

}  // namespace
}  // namespace millrace
