#include "tools/bench/trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace millrace {
namespace {

using turns_of_each = std::vector<std::vector<trial>>;

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

trial described(trial figures, const candidate& c) {
  figures.variable = c.variable;
  figures.value = c.value;
  figures.meaning = c.meaning;
  return figures;
}

// The share of all pairs of turns in which `with` is faster, 0 to 1.
double share_of_pairs(const trial& with, const trial& before) {
  std::ptrdiff_t faster = 0;
  for (const double rate : with.rates) {
    faster += std::ranges::count_if(before.rates, [rate](double other) { return rate > other; });
  }
  const std::size_t pairs = with.rates.size() * before.rates.size();
  return pairs == 0 ? 0 : static_cast<double>(faster) / static_cast<double>(pairs);
}

bool seems_to_gain(const trial& with, const trial& before) {
  return with.from == before.from && with.mb_per_s >= before.mb_per_s * least_gain;
}

std::size_t turns_of(const family& f) {
  return first_turns * (f.size() + 1) + std::size_t{2} * more_turns;
}

class tuner {
 public:
  tuner(const measurement& measure, const tuning_options& options)
      : measure_(measure), options_(options), left_s_(options.seconds) {}

  tuning run(const std::vector<family>& families, engine_options best) {
    std::size_t turns_left = 0;
    for (const family& f : families) turns_left += turns_of(f);
    for (const family& f : families) {
      turn_s_ = left_s_ / static_cast<double>(turns_left);
      turns_left -= turns_of(f);
      if (!try_one(f, best)) break;
    }
    found_.stopped = is_stopped();
    return std::move(found_);
  }

 private:
  bool is_stopped() const { return options_.stop.stop_requested(); }

  // Puts the family's winner into `best`. False if nothing was measured.
  bool try_one(const family& f, engine_options& best) {
    std::vector<engine_options> with{best};
    for (const candidate& c : f) {
      with.push_back(best);
      c.apply(with.back());
    }
    auto figures = in_turns(with, first_turns);
    if (figures.front().empty()) return false;
    const auto promising = best_of(figures);
    bool wins = false;
    if (promising && !is_stopped()) {
      const auto more = in_turns({with.front(), with[*promising]}, more_turns);
      figures.front().insert(figures.front().end(), more[0].begin(), more[0].end());
      figures[*promising].insert(figures[*promising].end(), more[1].begin(), more[1].end());
      wins = !is_stopped() && gains(combined(figures[*promising]), combined(figures.front()));
    }
    tell(f, figures, wins ? promising : std::nullopt);
    if (wins) best = with[*promising];
    return true;
  }

  // The fastest that may be a gain over the first.
  static std::optional<std::size_t> best_of(const turns_of_each& figures) {
    const trial before = combined(figures.front());
    std::optional<std::size_t> best;
    double most = 0;
    for (std::size_t i = 1; i < figures.size(); ++i) {
      if (figures[i].empty()) continue;
      const trial tried = combined(figures[i]);
      if (!seems_to_gain(tried, before) || tried.mb_per_s <= most) continue;
      best = i;
      most = tried.mb_per_s;
    }
    return best;
  }

  // Measures each of `with` `turns` times; fewer if stopped.
  turns_of_each in_turns(const std::vector<engine_options>& with, int turns) {
    turns_of_each figures(with.size());
    for (int turn = 0; turn < turns; ++turn) {
      for (std::size_t i = 0; i < with.size(); ++i) {
        const std::size_t at = turn % 2 == 0 ? i : with.size() - 1 - i;
        if (is_stopped()) return figures;
        trial one = measure_(with[at], turn_s_);
        left_s_ -= turn_s_;
        if (!is_stopped()) figures[at].push_back(std::move(one));
      }
    }
    return figures;
  }

  void tell(const family& f, const turns_of_each& figures, std::optional<std::size_t> winner) {
    const trial before = combined(figures.front());
    // The baseline of the family, which the advice names.
    keep(described(before, {"", "", found_.gains.empty() ? "as set now" : "with what gained so far",
                            nullptr}));
    for (std::size_t i = 1; i < figures.size(); ++i) {
      if (figures[i].empty()) continue;
      trial tried = described(combined(figures[i]), f[i - 1]);
      tried.kept = i == winner;
      if (tried.kept) advise(tried, before);
      keep(std::move(tried));
    }
  }

  void keep(trial t) {
    found_.trials.push_back(std::move(t));
    if (options_.progress) options_.progress(found_.trials.back());
  }

  void advise(const trial& winner, const trial& before) {
    found_.gains.push_back(
        {winner.variable, winner.value,
         fmt::format("{}: {:.0f} MB/s ({:.0f} to {:.0f}) instead of {:.0f} ({:.0f} to {:.0f}){}",
                     winner.meaning, winner.mb_per_s, winner.least_mb_per_s, winner.most_mb_per_s,
                     before.mb_per_s, before.least_mb_per_s, before.most_mb_per_s,
                     winner.from == "page cache" ? ", from the page cache" : "")});
  }

  const measurement& measure_;
  const tuning_options& options_;
  double left_s_;
  double turn_s_ = 0;
  tuning found_;
};

}  // namespace

bool gains(const trial& with, const trial& before) {
  return seems_to_gain(with, before) && share_of_pairs(with, before) >= least_share;
}

double steady_rate(const std::vector<double>& rates) {
  const std::size_t first = rates.size() / 3;
  if (rates.empty()) return 0;
  return std::accumulate(rates.begin() + static_cast<std::ptrdiff_t>(first), rates.end(), 0.0) /
         static_cast<double>(rates.size() - first);
}

trial combined(std::vector<trial> turns) {
  const auto median = [&](double trial::* figure) {
    std::vector<double> values;
    values.reserve(turns.size());
    for (const trial& t : turns) values.push_back(t.*figure);
    return median_of(std::move(values));
  };
  trial out = turns.front();
  out.turns = static_cast<int>(turns.size());
  out.rates.clear();
  for (const trial& t : turns) out.rates.push_back(t.mb_per_s);
  out.mb_per_s = median(&trial::mb_per_s);
  out.p99_s = median(&trial::p99_s);
  out.cpu_s_per_gb = median(&trial::cpu_s_per_gb);
  out.least_mb_per_s = std::ranges::min(out.rates);
  out.most_mb_per_s = std::ranges::max(out.rates);
  if (std::ranges::any_of(turns, [&](const trial& t) { return t.from != out.from; })) {
    out.from = "mixed";
  }
  return out;
}

tuning try_families(const std::vector<family>& families, const engine_options& how,
                    const measurement& measure, const tuning_options& options) {
  return tuner(measure, options).run(families, how);
}

}  // namespace millrace
