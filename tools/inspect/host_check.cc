#include "tools/inspect/host_check.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <tuple>

#include "engine/base/units.h"
#include "engine/host/host.h"
#include "engine/threads/uring_io.h"
#include "io/cache/cache_folder.h"
#include "io/disks/mounts.h"
#include "io/files/file_source.h"
#include "pipeline/run/engine_options.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// The storage of the given files and folders, each once; if none are given, of everything mounted
// from a block device.
std::vector<storage> storage_to_show(const std::vector<std::string>& paths) {
  std::vector<storage> found;
  std::set<std::tuple<std::string, std::string, std::string, std::string>> known;
  for (const auto& path : paths) {
    auto on = storage_of(path).value();
    if (known.emplace(on.mount_point, on.file_system, on.identity, on.remark).second) {
      found.push_back(std::move(on));
    }
  }
  if (!paths.empty()) return found;
  std::set<dev_t> seen;
  for (const mount& m : read_mounts("/proc/self/mountinfo")) {
    const bool from_device = m.source.starts_with("/dev/") && !m.type.starts_with("squashfs");
    if (!from_device || !seen.insert(m.device).second) continue;
    found.push_back(find_storage("/", m.device, m.point));
  }
  return found;
}

void look_at_devices(const block_device& d, std::vector<std::string>& in_the_way) {
  if (d.below.empty() && d.rotational && !d.virtual_disk) {
    if (d.scheduler.empty() || d.scheduler == "kyber") {
      in_the_way.push_back(fmt::format(
          "{} is rotational and its scheduler does not sort requests: echo mq-deadline > "
          "/sys/block/{}/queue/scheduler",
          d.name, d.name));
    }
    if (d.read_ahead_bytes < 128_KiB) {
      in_the_way.push_back(
          fmt::format("{} reads only {} ahead for other programs: blockdev --setra 8192 /dev/{}",
                      d.name, format_bytes(d.read_ahead_bytes), d.name));
    }
  }
  for (const block_device& b : d.below) look_at_devices(b, in_the_way);
}

// Why no object can be kept in the cache; nullopt: some can, or there is no cache.
std::optional<std::string> cache_obstacle(const cache_options& cache) {
  if (cache.folder.empty()) return std::nullopt;
  // The folder, or the one that it would be created in. A link to nothing is in its way.
  std::error_code ignored;
  fs::path place = fs::absolute(cache.folder, ignored);
  while (!fs::exists(fs::symlink_status(place, ignored)) && place.has_relative_path()) {
    place = place.parent_path();
  }
  if (access((place / ".").c_str(), W_OK | X_OK) != 0) {
    return fmt::format("nothing can be written to {}, for the cache {}: {}; set MILLRACE_CACHE",
                       place.string(), cache.folder, std::strerror(errno));
  }
  if (const auto usable = cache_folder(cache).check();
      !usable && usable.error().kind() != errc::not_found) {
    return usable.error().message();
  }
  const fs::space_info disk = fs::space(place, ignored);
  if (disk.available >= cache.least_free) return std::nullopt;
  return fmt::format(
      "the disk of the cache {} has {} free, less than MILLRACE_CACHE_FREE, {}: entries are "
      "removed, or nothing is kept",
      cache.folder, format_bytes(disk.available), format_bytes(cache.least_free));
}

// The things that slow reads down, and what to do about each.
std::vector<std::string> obstacles(const engine_options& how,
                                   const std::vector<host_storage>& shown) {
  std::vector<std::string> found;
  if (const auto refused = uring_refused()) found.push_back(*refused);
  rlimit memlock{};
  rlimit files{};
  getrlimit(RLIMIT_MEMLOCK, &memlock);
  getrlimit(RLIMIT_NOFILE, &files);
  const bool pins = how.register_buffers;
  if (pins && geteuid() != 0 && memlock.rlim_cur < 64_MiB) {
    found.push_back(
        fmt::format("locked memory is limited to {}: raise `ulimit -l`, or unset "
                    "MILLRACE_REGISTERED_BUFFERS",
                    format_bytes(memlock.rlim_cur)));
  }
  if (files.rlim_cur < 256) {
    found.push_back(
        fmt::format("only {} files may be open: shards beyond that are closed and opened "
                    "again and again; raise `ulimit -n`",
                    files.rlim_cur));
  }
  const source_options& options = how.source;
  const std::string folder =
      options.gate_folder.empty() ? default_gate_folder() : options.gate_folder;
  if (access(folder.c_str(), W_OK) != 0 && errno != ENOENT) {
    found.push_back("the gates' folder " + folder +
                    " is not writable, so processes cannot take turns: set MILLRACE_GATE_DIR");
  }
  if (const auto why = cache_obstacle(options.cache)) found.push_back(*why);
  for (const host_storage& s : shown) {
    for (const block_device& d : s.on.devices) look_at_devices(d, found);
  }
  return found;
}

// How files there are read, and why.
std::string reading_text(const storage& found, const engine_options& how) {
  const source_options& options = how.source;
  const storage on = with_overrides(found, options);
  const int permits = gate_permits(on, options);
  if (permits == 0) return "no gate: as many reads at once as increase the rate";
  constexpr std::size_t shards = 8;
  const std::size_t set = how.memory_bytes;
  const std::size_t budget = set > 0 ? set : default_memory_bytes();
  const extent_controller extents(on, options.extent_bytes);
  const std::size_t extent =
      std::min(extents.wanted(), affordable_extent(budget / shards, options.chunk_bytes));
  std::string text = fmt::format(
      "gate {}: {} extent of {} at a time reaches {:.2f} of the rate (expected: {:.0f} MB/s, "
      "{:.0f} ms per seek)",
      on.identity, permits, format_bytes(extent), extents.speed().share_at(extent),
      extents.speed().bytes_per_s / 1e6, 1e3 * extents.speed().move_s);
  if (const auto lost = rate_lost(on, options, budget / shards, shards, budget)) {
    text += "; " + *lost;
  }
  return text;
}

std::string direct_text(const engine_options& how) {
  const direct_reads set = how.source.direct;
  if (set != direct_reads::automatic) return set == direct_reads::always ? "on" : "off";
  return fmt::format(
      "auto: bypass the page cache, unless the file is in it already or all shards fit into it "
      "({} free)",
      format_bytes(page_cache_room()));
}

std::string ca_certificates() {
  constexpr std::array usual{"/etc/ssl/certs/ca-certificates.crt",
                             "/etc/pki/tls/certs/ca-bundle.crt"};
  for (const char* file : usual) {
    if (access(file, R_OK) == 0) return file;
  }
  return "";
}

std::vector<std::string> models_of_gpus() {
  std::vector<std::string> out;
  std::error_code ignored;
  for (const auto& gpu : fs::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    const std::string model = first_line(gpu.path() / "information");
    out.push_back(
        model.substr(std::min(model.find_first_not_of(" \t", model.find(':') + 1), model.size())));
  }
  return out;
}

}  // namespace

host_facts examine_host(const engine_options& options, const std::vector<std::string>& paths) {
  rlimit memlock{};
  rlimit files{};
  getrlimit(RLIMIT_MEMLOCK, &memlock);
  getrlimit(RLIMIT_NOFILE, &files);
  host_facts out{.uring_refused = uring_refused(),
                 .open_files = files.rlim_cur,
                 .cpus = allowed_cpus(),
                 .cpu_threads = options.cpu_threads > 0 ? options.cpu_threads : allowed_cpus(),
                 .memory_budget_bytes =
                     options.memory_bytes > 0 ? options.memory_bytes : default_memory_bytes(),
                 .ca_certificates = ca_certificates(),
                 .gpus = models_of_gpus(),
                 .direct = direct_text(options)};
  if (memlock.rlim_cur != RLIM_INFINITY) out.memlock_bytes = memlock.rlim_cur;
  for (storage& s : storage_to_show(paths)) {
    std::string reading = reading_text(s, options);
    out.storage.push_back({.on = std::move(s), .reading = std::move(reading)});
  }
  out.in_the_way = obstacles(options, out.storage);
  return out;
}

}  // namespace millrace
