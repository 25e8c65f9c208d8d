#include "train/job/recorded_batches.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <system_error>
#include <vector>

#include "engine/base/error.h"
#include "train/models/safetensors.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code why;
  for (fs::directory_iterator i(folder, why), end; !why && i != end; i.increment(why)) {
    names.push_back(i->path().filename());
  }
  if (why) {
    throw failure(
        error(kind_of(why.value()), "cannot read the folder").at(folder).cause(why.value()));
  }
  std::ranges::sort(names);
  return names;
}

// The step whose batch record() wrote under this name; the largest number for other names.
std::int64_t step_recorded(const std::string& name) {
  int rank = 0;
  std::int64_t step = 0;
  constexpr int both = 2;
  const bool is_recorded =
      std::sscanf(name.c_str(), "rank%d-%ld.safetensors", &rank, &step) == both;
  return is_recorded ? step : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

void check_recorded(const std::string& folder, std::int64_t step, bool is_resumed) {
  if (folder.empty()) return;
  for (const std::string& name : names_in(folder)) {
    const std::int64_t recorded = step_recorded(name);
    if (is_resumed && recorded < step) continue;
    throw failure(error(errc::usage, is_resumed ? "--record-batches would overwrite " + name
                                                : "--record-batches is a folder that is not empty")
                      .at(folder)
                      .hint("use another folder, or empty it"));
  }
}

void record(const host_batch& b, const std::string& folder, const job_place& place,
            std::int64_t step) {
  const auto n = static_cast<std::int64_t>(b.size());
  auto pixels = torch::from_blob(b.pixels->data, {n, b.height, b.width, 3}, torch::kUInt8);
  try {
    save_tensors(fmt::format("{}/rank{}-{:06}.safetensors", folder, place.rank, step),
                 {{"images", pixels.clone()}, {"labels", torch::tensor(b.labels, torch::kInt64)}});
  } catch (const failure& f) {
    error why = f.why();
    const std::string known = why.what_to_do();
    // check_recorded() would refuse the same command.
    throw failure(why.hint(known + (known.empty() ? "" : "; ") +
                           "then record the run again into an empty folder"));
  }
}

}  // namespace millrace
