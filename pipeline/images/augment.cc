#include "pipeline/images/augment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/check_option.h"

namespace millrace {
namespace {

using op = augment_op;

// The inputs of drawing a change, and the steps that it is added to.
struct drawing {
  random_stream& random;
  int width;  // of the image, in pixels
  int height;
  augment_steps& out;
};

// One kind of change: all that is known of its options. A new one is a row of `changes`, below.
struct change {
  // Throws `failure` (usage) for options out of range, but for those of shares_of().
  void (*check)(const augment_options& o) = nullptr;
  bool (*is_on)(const augment_options& o);
  // Draws it for one image. Called only if it is on: what is off takes no random numbers.
  void (*draw)(const augment_options& o, drawing& to);
  // Applies what was drawn, if it is not one of augment_steps::steps.
  void (*apply)(const augment_options& o, const augment_steps& drawn, op_applier& ops,
                const rgb_pixels& pixels) = nullptr;
};

// The amounts of an operation: interpolated linearly from `none` (level 0) to `most` (level 1).
struct op_range {
  op what = op::identity;
  double none = 0;
  double most = 0;
  bool has_sign = false;
  bool is_factor = false;  // the amount is added to 1
};

constexpr std::size_t policy_ops = 14;

// Shifts are at most that many pixels.
std::array<op_range, policy_ops> ranges_of(double shear, double shift_x, double shift_y,
                                           double turn, double factor, double bits) {
  return {{{.what = op::identity},
           {.what = op::shear_x, .most = shear, .has_sign = true},
           {.what = op::shear_y, .most = shear, .has_sign = true},
           {.what = op::translate_x, .most = shift_x, .has_sign = true},
           {.what = op::translate_y, .most = shift_y, .has_sign = true},
           {.what = op::rotate, .most = turn, .has_sign = true},
           {.what = op::brightness, .most = factor, .has_sign = true, .is_factor = true},
           {.what = op::color, .most = factor, .has_sign = true, .is_factor = true},
           {.what = op::contrast, .most = factor, .has_sign = true, .is_factor = true},
           {.what = op::sharpness, .most = factor, .has_sign = true, .is_factor = true},
           {.what = op::posterize, .none = 8, .most = bits},
           {.what = op::solarize, .none = 255, .most = 0},
           {.what = op::autocontrast},
           {.what = op::equalize}}};
}

std::array<op_range, policy_ops> usual_ranges(int width, int height) {
  constexpr double shift = 150.0 / 331;  // of the image
  return ranges_of(0.3, shift * width, shift * height, 30, 0.9, 4);
}

augment_step step_at(const op_range& range, double level, bool negative) {
  double amount = range.none + level * (range.most - range.none);
  if (range.what == op::posterize) amount = range.none - std::nearbyint(range.none - amount);
  if (range.has_sign && negative) amount = -amount;
  return {range.what, range.is_factor ? 1 + amount : amount};
}

const op_range& range_for(const std::array<op_range, policy_ops>& ranges, op what) {
  static constexpr op_range plain{.what = op::invert};
  const auto found = std::ranges::find(ranges, what, &op_range::what);
  return found == ranges.end() ? plain : *found;
}

void rand_augment(const augment_options& o, random_stream& random, int width, int height,
                  std::vector<augment_step>& to) {
  constexpr double most_magnitude = 30;
  const auto ranges = usual_ranges(width, height);
  for (int i = 0; i < o.randaugment_ops; ++i) {
    const op_range& range = ranges[random.below(policy_ops)];
    to.push_back(step_at(range, o.randaugment_magnitude / most_magnitude, random.below(2) == 1));
  }
}

void trivial_augment(random_stream& random, std::vector<augment_step>& to) {
  constexpr std::uint32_t levels = 31;
  constexpr double shift = 32;
  const auto ranges = ranges_of(0.99, shift, shift, 135, 0.99, 2);
  const op_range& range = ranges[random.below(policy_ops)];
  const double level = static_cast<double>(random.below(levels)) / (levels - 1);
  to.push_back(step_at(range, level, random.below(2) == 1));
}

// One half of a sub-policy: its probability in tenths and its level in ninths.
struct policy_part {
  op what;
  int tenths;
  int ninths = 0;
};

// Source: AutoAugment, table 9 (ImageNet), in torchvision's order.
constexpr std::array<std::array<policy_part, 2>, 25> imagenet_policy = {{
    {{{op::posterize, 4, 8}, {op::rotate, 6, 9}}}, {{{op::solarize, 6, 5}, {op::autocontrast, 6}}},
    {{{op::equalize, 8}, {op::equalize, 6}}},      {{{op::posterize, 6, 7}, {op::posterize, 6, 6}}},
    {{{op::equalize, 4}, {op::solarize, 2, 4}}},   {{{op::equalize, 4}, {op::rotate, 8, 8}}},
    {{{op::solarize, 6, 3}, {op::equalize, 6}}},   {{{op::posterize, 8, 5}, {op::equalize, 10}}},
    {{{op::rotate, 2, 3}, {op::solarize, 6, 8}}},  {{{op::equalize, 6}, {op::posterize, 4, 6}}},
    {{{op::rotate, 8, 8}, {op::color, 4, 0}}},     {{{op::rotate, 4, 9}, {op::equalize, 6}}},
    {{{op::equalize, 0}, {op::equalize, 8}}},      {{{op::invert, 6}, {op::equalize, 10}}},
    {{{op::color, 6, 4}, {op::contrast, 10, 8}}},  {{{op::rotate, 8, 8}, {op::color, 10, 2}}},
    {{{op::color, 8, 8}, {op::solarize, 8, 7}}},   {{{op::sharpness, 4, 7}, {op::invert, 6}}},
    {{{op::shear_x, 6, 5}, {op::equalize, 10}}},   {{{op::color, 4, 0}, {op::equalize, 6}}},
    {{{op::equalize, 4}, {op::solarize, 2, 4}}},   {{{op::solarize, 6, 5}, {op::autocontrast, 6}}},
    {{{op::invert, 6}, {op::equalize, 10}}},       {{{op::color, 6, 4}, {op::contrast, 10, 8}}},
    {{{op::equalize, 8}, {op::equalize, 6}}},
}};

void auto_augment(random_stream& random, int width, int height, std::vector<augment_step>& to) {
  const auto ranges = usual_ranges(width, height);
  const auto& parts = imagenet_policy[random.below(imagenet_policy.size())];
  for (const policy_part& part : parts) {
    const bool is_done = random.uniform() < part.tenths / 10.0;
    const bool negative = random.below(2) == 1;
    if (is_done) to.push_back(step_at(range_for(ranges, part.what), part.ninths / 9.0, negative));
  }
}

constexpr change policy_change = {
    .check =
        [](const augment_options& o) {
          check_option("augment_options.randaugment_ops", o.randaugment_ops, 0,
                       augment_options::most_randaugment_ops);
          check_option("augment_options.randaugment_magnitude", o.randaugment_magnitude, 0,
                       augment_options::most_randaugment_magnitude);
        },
    .is_on = [](const augment_options& o) { return o.policy != augment_policy::none; },
    .draw =
        [](const augment_options& o, drawing& to) {
          switch (o.policy) {
            case augment_policy::none:
              break;
            case augment_policy::autoaugment:
              auto_augment(to.random, to.width, to.height, to.out.steps);
              break;
            case augment_policy::randaugment:
              rand_augment(o, to.random, to.width, to.height, to.out.steps);
              break;
            case augment_policy::trivialaugment:
              trivial_augment(to.random, to.out.steps);
              break;
          }
        },
};

void jitter_colors(const augment_options::color_jitter& o, random_stream& random,
                   std::vector<augment_step>& to) {
  if (random.uniform() >= o.probability) return;
  std::array<augment_step, 4> steps;
  const auto factor = [&](double reach) {
    return random.uniform(std::max(0.0, 1 - reach), 1 + reach);
  };
  steps[0] = {op::brightness, factor(o.brightness)};
  steps[1] = {op::contrast, factor(o.contrast)};
  steps[2] = {op::color, factor(o.saturation)};
  steps[3] = {op::hue, random.uniform(-o.hue, o.hue)};
  const std::array<double, 4> reach = {o.brightness, o.contrast, o.saturation, o.hue};
  std::array<std::size_t, 4> order = {0, 1, 2, 3};
  for (std::uint32_t i = 3; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  for (const std::size_t i : order) {
    if (reach[i] > 0) to.push_back(steps[i]);
  }
}

constexpr change jitter_change = {
    .check =
        [](const augment_options& o) {
          constexpr double most_factor = 255;
          const auto& j = o.jitter;
          check_option("color_jitter.brightness", j.brightness, 0, most_factor);
          check_option("color_jitter.contrast", j.contrast, 0, most_factor);
          check_option("color_jitter.saturation", j.saturation, 0, most_factor);
          check_option("color_jitter.hue", j.hue, 0, 0.5);
          check_option("color_jitter.probability", j.probability, 0, 1);
        },
    .is_on =
        [](const augment_options& o) {
          const auto& j = o.jitter;
          return j.brightness > 0 || j.contrast > 0 || j.saturation > 0 || j.hue > 0;
        },
    .draw = [](const augment_options& o,
               drawing& to) { jitter_colors(o.jitter, to.random, to.out.steps); },
};

constexpr change gray_change = {
    .is_on = [](const augment_options& o) { return o.gray > 0; },
    .draw =
        [](const augment_options& o, drawing& to) {
          if (to.random.uniform() < o.gray) to.out.steps.push_back({op::grayscale, 0});
        },
};

constexpr change solarize_change = {
    .check =
        [](const augment_options& o) {
          check_option("augment_options.solarize_from", o.solarize_from, 0, 255);
        },
    .is_on = [](const augment_options& o) { return o.solarize > 0; },
    .draw =
        [](const augment_options& o, drawing& to) {
          if (to.random.uniform() < o.solarize) {
            to.out.steps.push_back({op::solarize, o.solarize_from});
          }
        },
};

constexpr change blur_change = {
    .check =
        [](const augment_options& o) {
          constexpr double most_sigma = 1000;
          constexpr int most_size = 255;
          const auto& b = o.blur;
          check_option("gaussian_blur.size", b.size, 1, most_size);
          if (b.size % 2 == 0) {
            refuse_option("gaussian_blur.size", option_text(b.size), "an odd number");
          }
          check_option("gaussian_blur.most_sigma", b.most_sigma, 1e-3, most_sigma);
          check_option("gaussian_blur.least_sigma", b.least_sigma, 1e-3, b.most_sigma);
        },
    .is_on = [](const augment_options& o) { return o.blur.probability > 0; },
    .draw =
        [](const augment_options& o, drawing& to) {
          if (to.random.uniform() >= o.blur.probability) return;
          to.out.blur_sigma = to.random.uniform(o.blur.least_sigma, o.blur.most_sigma);
        },
    .apply =
        [](const augment_options& o, const augment_steps& drawn, op_applier& ops,
           const rgb_pixels& pixels) {
          if (drawn.blur_sigma == 0) return;
          // The kernel must not reach beyond the reflection of a small image.
          const int most = 2 * std::min(pixels.width, pixels.height) - 1;
          ops.blur(std::min(o.blur.size, most), drawn.blur_sigma, pixels);
        },
};

std::optional<pixel_box> erased_box(const augment_options::random_erasing& o, random_stream& random,
                                    int width, int height) {
  const double area = static_cast<double>(width) * height;
  const double least = std::log(o.least_aspect);
  const double most = std::log(o.most_aspect);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target = area * random.uniform(o.least_area, o.most_area);
    const double aspect = std::exp(random.uniform(least, most));
    const auto h = static_cast<int>(std::nearbyint(std::sqrt(target * aspect)));
    const auto w = static_cast<int>(std::nearbyint(std::sqrt(target / aspect)));
    if (w >= width || h >= height) continue;
    const auto y = static_cast<int>(random.below(static_cast<std::uint32_t>(height - h + 1)));
    const auto x = static_cast<int>(random.below(static_cast<std::uint32_t>(width - w + 1)));
    return pixel_box{x, y, w, h};
  }
  return std::nullopt;
}

constexpr change erasing_change = {
    .check =
        [](const augment_options& o) {
          constexpr double most_aspect = 1000;
          const auto& e = o.erasing;
          check_option("random_erasing.most_area", e.most_area, 0, 1);
          check_option("random_erasing.least_area", e.least_area, 0, e.most_area);
          check_option("random_erasing.most_aspect", e.most_aspect, 1 / most_aspect, most_aspect);
          check_option("random_erasing.least_aspect", e.least_aspect, 1 / most_aspect,
                       e.most_aspect);
        },
    .is_on = [](const augment_options& o) { return o.erasing.probability > 0; },
    .draw =
        [](const augment_options& o, drawing& to) {
          if (to.random.uniform() >= o.erasing.probability) return;
          to.out.erased = erased_box(o.erasing, to.random, to.width, to.height);
        },
    .apply =
        [](const augment_options& o, const augment_steps& drawn, op_applier& /*ops*/,
           const rgb_pixels& pixels) {
          if (drawn.erased) erase(*drawn.erased, o.erasing.color, pixels);
        },
};

// In the order in which they draw their random numbers, which is part of what a seed means, and in
// which they are applied: first those that are steps.
constexpr std::array changes = {policy_change,   jitter_change, gray_change,
                                solarize_change, blur_change,   erasing_change};

}  // namespace

void check(const augment_options& o) {
  augment_options same = o;
  for (const change_share& each : shares_of(same)) check_option(each.option, *each.share, 0, 1);
  for (const change& each : changes) {
    if (each.check != nullptr) each.check(o);
  }
}

std::vector<change_share> shares_of(augment_options& o) {
  return {
      {"--gray", "augment_options.gray", &o.gray, "share of the images to make gray"},
      {"--solarize", "augment_options.solarize", &o.solarize, "share of the images to solarise"},
      {"--blur", "gaussian_blur.probability", &o.blur.probability, "share of the images to blur"},
      {"--erase", "random_erasing.probability", &o.erasing.probability,
       "share of the images to erase a box from"}};
}

bool changes_pixels(const augment_options& o) {
  return std::ranges::any_of(changes, [&](const change& each) { return each.is_on(o); });
}

augment_steps draw_steps(const augment_options& o, random_stream random, int width, int height) {
  augment_steps out;
  drawing to{.random = random, .width = width, .height = height, .out = out};
  for (const change& each : changes) {
    if (each.is_on(o)) each.draw(o, to);
  }
  return out;
}

void augmenter::apply(const augment_options& o, random_stream random, const rgb_pixels& pixels) {
  const augment_steps drawn = draw_steps(o, random, pixels.width, pixels.height);
  for (const augment_step& step : drawn.steps) ops_.apply(step, pixels);
  for (const change& each : changes) {
    if (each.apply != nullptr) each.apply(o, drawn, ops_, pixels);
  }
}

}  // namespace millrace
