// Processes images as its input lines ask, to be compared with other programs' results. A line is a
// JSON object, and so is each answer:
//
//   {"do": "decode", "file": F, "out": O, "lenient": bool, "fill": bool, "orient": bool,
//    "raw": [width, height], "fast": bool, "own_huffman": bool, "filter": 0 to 3, "crop": [x, y,
//    width, height], "size": [width, height], "work": bytes}     the whole image, or its crop, as
//    it is or scaled to a size, by a decoder that has so much work memory,
//                                       RGB -> O; {"width", "height", "warnings", "hash"} of its
//                                       pixels, "seconds" of CPU and "peak" bytes of memory, or
//                                       {"kind", "error"}
//   {"do": "op", "op": NAME, "amount": x, "width": w, "height": h, "in": F, "out": O}
//   {"do": "blur", "amount": sigma, "size": k, ...}
//   {"do": "draw", "policy": NAME, "count": n, "width": w, "height": h}    {"steps": [[NAME,
//   x]...]}
#include <fmt/format.h>

#include <array>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/host/cpu_time.h"
#include "engine/memory/work_memory.h"
#include "pipeline/images/augment.h"
#include "pipeline/images/image_decoder.h"

namespace {

using namespace millrace;
using nlohmann::json;

constexpr std::array names = {
    "identity",     "shear_x",  "shear_y",  "translate_x", "translate_y", "rotate",
    "brightness",   "color",    "contrast", "sharpness",   "posterize",   "solarize",
    "autocontrast", "equalize", "invert",   "hue",         "grayscale"};

augment_op op_named(const std::string& name) {
  const auto* found = std::ranges::find(names, name);
  if (found == names.end()) throw failure(error(errc::usage, "no operation " + name));
  return static_cast<augment_op>(found - names.begin());
}

std::vector<std::uint8_t> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const std::vector<std::uint8_t>& pixels) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(pixels.data()),
             static_cast<std::streamsize>(pixels.size()));
}

// A value of /proc/self/status, in bytes.
long status_of(const std::string& name) {
  std::ifstream in("/proc/self/status");
  for (std::string text; std::getline(in, text);) {
    if (text.starts_with(name + ":")) return std::stol(text.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

// The peak of resident memory during `f`, above the present.
template <class F>
long peak_of(F&& f) {
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  const long before = status_of("VmRSS");
  f();
  return status_of("VmHWM") - before;
}

json decode(image_decoder& decoder, const json& line) {
  image_options options{.lenient = line.value("lenient", false),
                        .fill_truncated = line.value("fill", false),
                        .orient = line.value("orient", true),
                        .fast = line.value("fast", false)};
  options.own_huffman = line.value("own_huffman", true);
  options.filter = static_cast<resample_filter>(
      line.value("filter", static_cast<int>(resample_filter::bilinear)));
  if (line.contains("raw")) {
    options.raw_width = line["raw"][0];
    options.raw_height = line["raw"][1];
  }
  std::vector<std::uint8_t> out;
  int width = 0;
  int height = 0;
  const auto whole = [&](int w, int h) {
    width = w;
    height = h;
    pixel_box crop{0, 0, w, h};
    if (const auto c = line.find("crop"); c != line.end()) {
      crop = {(*c)[0], (*c)[1], (*c)[2], (*c)[3]};
    }
    pixel_box window{0, 0, crop.width, crop.height};
    if (const auto s = line.find("size"); s != line.end()) window = {0, 0, (*s)[0], (*s)[1]};
    return view_of_image{.crop = crop,
                         .scaled_width = window.width,
                         .scaled_height = window.height,
                         .window = window};
  };
  const auto place = [&](const view_of_image& v) {
    out.resize(output_bytes(v));
    return std::span(out);
  };
  const auto file = read_file(line["file"]);
  result<void> done;
  double seconds = 0;
  work_memory memory(line.value("work", std::size_t{1} << 40));
  const work_memory_scope in(memory);
  const long peak = peak_of([&] {
    const double begun = thread_cpu_seconds();
    done = decoder.decode(std::as_bytes(std::span(file)), options, whole, place);
    seconds = thread_cpu_seconds() - begun;
  });
  if (!done) {
    return {{"kind", kind_name(done.error().kind())},
            {"error", done.error().what()},
            {"seconds", seconds}};
  }
  if (line.contains("out")) write_file(line["out"], out);
  const std::string_view pixels(reinterpret_cast<const char*>(out.data()), out.size());
  return {{"width", width},
          {"height", height},
          {"hash", std::hash<std::string_view>()(pixels)},
          {"warnings", decoder.warnings()},
          {"seconds", seconds},
          {"peak", peak}};
}

json apply(op_applier& ops, const json& line) {
  auto pixels = read_file(line["in"]);
  const rgb_pixels view{pixels.data(), line["width"], line["height"]};
  if (line["do"] == "blur") {
    ops.blur(line["size"], line["amount"], view);
  } else {
    ops.apply({op_named(line["op"]), line["amount"]}, view);
  }
  write_file(line["out"], pixels);
  return json::object();
}

json draw(const json& line) {
  augment_options options;
  const std::string policy = line["policy"];
  options.policy = policy == "autoaugment"   ? augment_policy::autoaugment
                   : policy == "randaugment" ? augment_policy::randaugment
                                             : augment_policy::trivialaugment;
  json steps = json::array();
  for (std::uint64_t i = 0; i < line["count"]; ++i) {
    const auto drawn =
        draw_steps(options, random_stream(3, purpose::colors, 0, i), line["width"], line["height"]);
    for (const augment_step& s : drawn.steps) {
      steps.push_back({names[static_cast<std::size_t>(s.op)], s.amount});
    }
  }
  return {{"steps", steps}};
}

}  // namespace

int main() {
  try {
    image_decoder decoder;
    op_applier ops;
    for (std::string text; std::getline(std::cin, text);) {
      const json line = json::parse(text);
      const std::string what = line["do"];
      const json answer = what == "decode" ? decode(decoder, line)
                          : what == "draw" ? draw(line)
                                           : apply(ops, line);
      fmt::print("{}\n", answer.dump());
      std::fflush(stdout);
    }
    return 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "image_visitor: {}\n", e.what());
    return 1;
  }
}
