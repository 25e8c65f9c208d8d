#include "tools/bench/decode_bench.h"

#include <algorithm>
#include <functional>
#include <thread>

#include "engine/host/start_thread.h"
#include "pipeline/codecs/jpeg.h"
#include "pipeline/formats/group.h"
#include "pipeline/formats/untar.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/images/sample_decoder.h"
#include "pipeline/pixels/resample.h"
#include "pipeline/shards/shards.h"
#include "tools/bench/bare_jpeg.h"
#include "tools/bench/measure.h"

namespace millrace {
namespace {

struct photo {
  std::vector<std::byte> file;
  int width = 0;
  int height = 0;
  view_of_image view;
  pixel_box region;  // the source of the output
};

double median(std::vector<double> of) {
  std::ranges::sort(of);
  return of[of.size() / 2];
}

// The work of each thread on an image, with its own memory.
using work = std::function<void(const photo&)>;
using make_work = std::function<work()>;

work header_alone() {
  return [decoder = std::make_shared<jpeg_decoder>()](const photo& p) {
    (void)decoder->read_size(p.file);
  };
}

// The same region at the same scale, with an output so small that resampling costs almost nothing.
view_of_image barely_resampled(view_of_image v, bool fast) {
  const double smaller = std::min(static_cast<double>(v.crop.width) / v.scaled_width,
                                  static_cast<double>(v.crop.height) / v.scaled_height);
  const double by = !fast || smaller >= 8 ? 1e9 : smaller >= 4 ? 7 : smaller >= 2 ? 3 : 1.5;
  v.scaled_width = std::max(1, static_cast<int>(v.crop.width / by));
  v.scaled_height = std::max(1, static_cast<int>(v.crop.height / by));
  v.window = {0, 0, v.scaled_width, v.scaled_height};
  return v;
}

work decode_path(const decode_options& o, bool resamples) {
  return [decoder = std::make_shared<jpeg_decoder>(), out = std::vector<std::uint8_t>(), o,
          resamples](const photo& p) mutable {
    const auto choose = [&](int, int) {
      return resamples ? p.view : barely_resampled(p.view, o.image.fast);
    };
    const auto slot = [&](const view_of_image& v) {
      out.resize(output_bytes(v));
      return std::span(out);
    };
    (void)decoder->decode(p.file, o.image, choose, slot);
  };
}

pixel_box region_of(const view_of_image& view) {
  resampler r;
  std::vector<std::uint8_t> out(output_bytes(view));
  r.begin(resample_job::of(view, resample_filter::bilinear), out.data());
  return {.x = view.crop.x + r.first_column(),
          .y = view.crop.y + r.first_row(),
          .width = r.end_column() - r.first_column(),
          .height = r.end_row() - r.first_row()};
}

work bare_region() {
  return [decoder = std::make_shared<bare_jpeg>()](const photo& p) {
    (void)decoder->decode_region(p.file, p.region);
  };
}

// FFCV's method: the whole image with the fast transform, then area averaging of the crop (with
// this project's resampler, which is faster than FFCV's).
work whole_by_fast_transform() {
  return [decoder = std::make_shared<bare_jpeg>(), r = std::make_shared<resampler>(),
          pixels = std::vector<unsigned char>(),
          out = std::vector<std::uint8_t>()](const photo& p) mutable {
    if (!decoder->decode_whole(p.file, true, pixels)) return;
    out.resize(output_bytes(p.view));
    r->begin(resample_job::of(p.view, resample_filter::box), out.data());
    pixels.resize(pixels.size() + r->readable_behind());
    for (int y = r->first_row(); y < r->end_row(); ++y) {
      const int at = (p.view.crop.y + y) * p.width + p.view.crop.x + r->first_column();
      r->add_row(pixels.data() + std::ptrdiff_t{at} * 4);
    }
  };
}

// On existing rows, whose content does not matter.
work resize_alone() {
  return [r = std::make_shared<resampler>(), row = std::vector<std::uint8_t>(),
          out = std::vector<std::uint8_t>()](const photo& p) mutable {
    out.resize(output_bytes(p.view));
    r->begin(resample_job::of(p.view, resample_filter::bilinear), out.data());
    row.resize(static_cast<std::size_t>(p.view.crop.width) * 4 + r->readable_behind(), 128);
    for (int y = r->first_row(); y < r->end_row(); ++y) r->add_row(row.data());
  };
}

// Wall and CPU seconds of all images on `threads` threads.
std::pair<double, double> round_of(const std::vector<photo>& photos, int threads,
                                   const make_work& make, const std::stop_token& stop) {
  std::vector<work> works;
  works.reserve(static_cast<std::size_t>(threads));
  for (int t = 0; t < threads; ++t) works.push_back(make());
  for (const work& w : works) w(photos.front());
  std::atomic<std::size_t> next{0};
  const stopwatch_pair watch;
  {
    std::vector<std::jthread> running;
    running.reserve(works.size());
    for (const work& w : works) {
      running.push_back(start_joined_thread("decode", [&](const std::stop_token& /*no*/) {
        for (std::size_t i = next++; i < photos.size() && !stop.stop_requested(); i = next++) {
          w(photos[i]);
        }
      }));
    }
  }
  return {watch.seconds(), watch.cpu_seconds()};
}

// The next sample; nullopt at the end, or if the run is stopped.
std::optional<sample> next_unless(loader<sample>& data, const std::stop_token& stop) {
  try {
    return stop.stop_requested() ? std::nullopt : data.next();
  } catch (const failure& f) {
    if (f.kind() != errc::stopped) throw;
    return std::nullopt;
  }
}

std::vector<photo> read_photos(const engine_options& how, const decode_bench_options& what,
                               decode_bench_report& report) {
  engine eng(how);
  auto data = eng.run(shards(what.urls, {.lanes = 1, .shuffle = false}) | untar() | group_by_key());
  std::vector<photo> photos;
  const std::stop_callback stopping(what.stop, [&] { data.stop(); });
  jpeg_decoder decoder;
  for (auto next = next_unless(data, what.stop); next && report.bytes < what.most_bytes;
       next = next_unless(data, what.stop)) {
    const sample& s = *next;
    const field* image = first_field(s, what.decode.images);
    if (image == nullptr) {
      report.others += std::ranges::any_of(
          s.fields, [](const field& f) { return is_image_extension(f.extension); });
      continue;
    }
    photo p{.file = {image->data.span().begin(), image->data.span().end()}};
    const auto choose = [&](int width, int height) {
      p.width = width;
      p.height = height;
      return p.view = view_of(what.decode, s.where, width, height);
    };
    std::vector<std::uint8_t> out;
    const auto slot = [&](const view_of_image& v) {
      out.resize(output_bytes(v));
      return std::span(out);
    };
    if (decoder.decode(p.file, what.decode.image, choose, slot)) {
      report.bytes += p.file.size();
      p.region = region_of(p.view);
      photos.push_back(std::move(p));
    } else {
      ++report.failed;
    }
  }
  if (photos.empty() && !what.stop.stop_requested()) {
    throw failure(error(errc::no_samples, "no image here can be decoded")
                      .hint(report.others > 0
                                ? "there are images other than JPEG, which have nothing "
                                  "to be compared with"
                                : "`millrace verify --images` says why"));
  }
  return photos;
}

}  // namespace

decode_bench_report run_decode_bench(const engine_options& how, decode_bench_options what) {
  what.decode.image.orient = false;  // the peers do not rotate images
  decode_bench_report report{.threads = what.threads};
  const auto photos = read_photos(how, what, report);
  report.images = photos.size();
  report.interrupted = what.stop.stop_requested();
  if (photos.empty()) return report;
  for (const photo& p : photos) report.views.push_back(p.view);
  const auto pixels = [&] { return decode_path(what.decode, false); };
  const auto whole = [&] { return decode_path(what.decode, true); };
  const std::map<decode_stage, make_work> stages{{decode_stage::header, header_alone},
                                                 {decode_stage::decode, pixels},
                                                 {decode_stage::resize, resize_alone},
                                                 {decode_stage::all, whole}};
  std::vector<double> seconds;
  std::vector<double> cpu;
  std::vector<double> limit;
  std::vector<double> whole_images;
  std::vector<double> ratio;
  std::map<decode_stage, std::vector<double>> one_thread;
  for (int round = 0; round < what.rounds && !what.stop.stop_requested(); ++round) {
    const auto timed = [&](int threads, const make_work& make) {
      return round_of(photos, threads, make, what.stop);
    };
    const auto [took, cpu_took] = timed(what.threads, stages.at(what.stage));
    const double bare = timed(what.threads, bare_region).first;
    const double by_fast_transform = timed(what.threads, whole_by_fast_transform).first;
    std::map<decode_stage, double> alone;
    for (const auto& [stage, make] : stages) alone[stage] = timed(1, make).first;
    if (what.stop.stop_requested()) break;  // an unfinished round has no figure
    seconds.push_back(took);
    cpu.push_back(cpu_took);
    limit.push_back(bare);
    whole_images.push_back(by_fast_transform);
    ratio.push_back(bare / took);
    for (const auto& [stage, one] : alone) one_thread[stage].push_back(one);
    if (what.rounds_done != nullptr) ++*what.rounds_done;
  }
  report.interrupted = what.stop.stop_requested();
  if (seconds.empty()) return report;
  report.seconds = median(seconds);
  report.cpu_seconds = median(cpu);
  report.limit_seconds = median(limit);
  report.of_limit = median(ratio);
  report.whole_image_seconds = median(whole_images);
  const auto us = [&](decode_stage s) {
    return 1e6 * median(one_thread[s]) / static_cast<double>(photos.size());
  };
  report.header_us = us(decode_stage::header);
  report.pixels_us = us(decode_stage::decode) - report.header_us;
  report.resize_us = us(decode_stage::resize);
  report.other_us = us(decode_stage::all) - report.header_us - report.pixels_us - report.resize_us;
  return report;
}

}  // namespace millrace
