#include "train/checkpoints/edited_checkpoint.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {

// Gives an error about the states a place.
template <class F>
auto located(const std::string& path, F edit) {
  try {
    return edit();
  } catch (const failure& f) {
    if (!f.why().where().empty()) throw;
    throw failure(error(f.why()).at(path));
  }
}

// The files with this record and these states in place of their own.
checkpoint_files with_position(const checkpoint_files& files, const checkpoint_record& c,
                               const std::vector<state>& of_ranks) {
  checkpoint_files rest = files;
  std::string validation;
  const auto validated = rest.find(validation_name);
  // Not in the list of train.json: a run may replace it.
  if (validated != rest.end()) validation = std::move(rest.extract(validated).mapped());
  rest.erase(meta_name);
  std::vector<std::string> data;
  data.reserve(of_ranks.size());
  for (const state& s : of_ranks) data.push_back(s.to_json());
  checkpoint_files out = files_of(c, std::move(rest), data);
  if (!validation.empty()) out[validation_name] = std::move(validation);
  return out;
}

// Whether --epoch-samples or --epoch-batches is set.
bool has_length(const arguments& said) {
  return std::ranges::any_of(std::array{"--epoch-samples", "--epoch-batches"}, [&](const char* o) {
    const auto found = said.find(o);
    return found != said.end() && !found->second.empty() && found->second != "0";
  });
}

}  // namespace

whole_checkpoint whole_of(const checkpoint_files& files, const std::string& path) {
  whole_checkpoint out{.record = record_as_saved(files, path), .of_ranks = {}};
  for (int r = 0; r < out.record.world_size; ++r) {
    out.of_ranks.push_back(state_in(files, path, r, 0));
  }
  return out;
}

checkpoint_files moved_to_epoch(const checkpoint_files& files, const std::string& path,
                                std::int64_t epoch) {
  auto [c, of_ranks] = whole_of(files, path);
  return located(path, [&] {
    for (state& s : of_ranks) s = moved_to_epoch(s, epoch);
    c.epoch = epoch;
    c.batch_in_epoch = 0;
    return with_position(files, c, of_ranks);
  });
}

skipping_checkpoint skipping(const checkpoint_files& files, const std::string& path,
                             std::int64_t samples) {
  auto [c, of_ranks] = whole_of(files, path);
  return located(path, [&] {
    skipping_states passed = skipping(of_ranks, samples);
    const std::int64_t batch = std::int64_t{c.batch_size} * c.world_size;  // 0: not known
    // An epoch of a given length has as many batches after the stretch.
    const bool is_given = has_length(c.said);
    std::int64_t after = c.batch_in_epoch + (batch > 0 && !is_given ? passed.samples / batch : 0);
    if (c.epoch_batches > 0) after = std::min(after, c.epoch_batches);
    c.batch_in_epoch = std::max(after, c.batch_in_epoch);
    checkpoint_files made = with_position(files, c, passed.of_ranks);
    return skipping_checkpoint{std::move(made), std::move(c), std::move(passed)};
  });
}

}  // namespace millrace
