#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/command.h"
#include "cli/storage_text.h"
#include "engine/uring_io.h"
#include "io/disks/mounts.h"
#include "io/files/file_source.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : format_bytes(limit);
}

// The storage of the given files and folders, each once; if none are given, of everything mounted
// from a block device.
std::vector<storage> storage_to_show(const environment& e, const std::vector<std::string>& specs) {
  std::vector<storage> found;
  const auto as_shown = [](const storage& s) {
    return storage_json(s).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  std::set<std::string> known;
  for (const auto& path : paths_alone(specs, engine_options::from(e.variables).source,
                                      "doctor looks at the disks of local files",
                                      "name local files or folders, or none")) {
    auto on = storage_of(path).value();
    if (known.insert(as_shown(on)).second) found.push_back(std::move(on));
  }
  if (!specs.empty()) return found;
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

// What slows reads down, and what to do about it.
std::vector<std::string> obstacles(const environment& e, const std::vector<storage>& shown) {
  std::vector<std::string> found;
  if (const auto refused = uring_refused()) found.push_back(*refused);
  rlimit memlock{};
  rlimit files{};
  getrlimit(RLIMIT_MEMLOCK, &memlock);
  getrlimit(RLIMIT_NOFILE, &files);
  const bool pins = engine_options::from(e.variables).register_buffers;
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
  const source_options options = engine_options::from(e.variables).source;
  const std::string folder =
      options.gate_folder.empty() ? default_gate_folder() : options.gate_folder;
  if (access(folder.c_str(), W_OK) != 0 && errno != ENOENT) {
    found.push_back("the gates' folder " + folder +
                    " is not writable, so processes cannot take turns: set MILLRACE_GATE_DIR");
  }
  for (const storage& s : shown) {
    for (const block_device& d : s.devices) look_at_devices(d, found);
  }
  return found;
}

// How files there are read, and why.
std::string reading_text(const storage& found, const environment& e) {
  const source_options options = engine_options::from(e.variables).source;
  const storage on = with_overrides(found, options);
  const int permits = gate_permits(on, options);
  if (permits == 0) return "no gate: as many reads at once as increase the rate";
  constexpr std::size_t shards = 8;
  const std::size_t set = engine_options::from(e.variables).memory_bytes;
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

std::string direct_text(const environment& e) {
  const direct_reads set = engine_options::from(e.variables).source.direct;
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
  return "none found: install ca-certificates";
}

nlohmann::json gpus() {
  auto out = nlohmann::json::array();
  std::error_code ignored;
  for (const auto& gpu : fs::directory_iterator("/proc/driver/nvidia/gpus", ignored)) {
    const std::string model = first_line(gpu.path() / "information");
    out.push_back(
        model.substr(std::min(model.find_first_not_of(" \t", model.find(':') + 1), model.size())));
  }
  return out;
}

nlohmann::json examine(const environment& e, const std::vector<storage>& shown) {
  rlimit memlock{};
  rlimit files{};
  getrlimit(RLIMIT_MEMLOCK, &memlock);
  getrlimit(RLIMIT_NOFILE, &files);
  const std::size_t memory = engine_options::from(e.variables).memory_bytes;
  const int threads = engine_options::from(e.variables).cpu_threads;
  auto devices = nlohmann::json::array();
  for (const storage& s : shown) {
    auto one = storage_json(s);
    one["reading"] = reading_text(s, e);
    devices.push_back(std::move(one));
  }
  return {{"io_uring", uring_refused().value_or("works")},
          {"memlock", limit_text(memlock.rlim_cur)},
          {"open_files", files.rlim_cur},
          {"cpus", allowed_cpus()},
          {"cpu_threads", threads > 0 ? threads : allowed_cpus()},
          {"memory_budget_bytes", memory > 0 ? memory : default_memory_bytes()},
          {"ca_certificates", ca_certificates()},
          {"gpus", gpus()},
          {"direct", direct_text(e)},
          {"storage", std::move(devices)},
          {"in_the_way", obstacles(e, shown)}};
}

void print(const nlohmann::json& found, const std::vector<storage>& shown, const environment& e) {
  fmt::print("io_uring         {}\n", found["io_uring"].get<std::string>());
  fmt::print("memlock          {}\n", found["memlock"].get<std::string>());
  fmt::print("open files       {}\n", found["open_files"].get<std::uint64_t>());
  fmt::print("CPUs             {} allowed, {} decoding threads\n", found["cpus"].get<int>(),
             found["cpu_threads"].get<int>());
  fmt::print("memory budget    {}\n",
             format_bytes(found["memory_budget_bytes"].get<std::size_t>()));
  fmt::print("CA certificates  {}\n", found["ca_certificates"].get<std::string>());
  if (found["gpus"].empty()) fmt::print("GPU              none\n");
  for (const auto& gpu : found["gpus"]) fmt::print("GPU              {}\n", gpu.get<std::string>());
  fmt::print("direct reads     {}\n", found["direct"].get<std::string>());
  for (const storage& on : shown) {
    fmt::print("\n{}{}\n", storage_tree(on), reading_text(on, e));
  }
  fmt::print("\n");
  for (const auto& what : found["in_the_way"]) {
    fmt::print("in the way       {}\n", what.get<std::string>());
  }
  if (found["in_the_way"].empty()) fmt::print("in the way       nothing\n");
}

}  // namespace

action add_doctor(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "doctor", "shows what this host allows: io_uring, memlock, devices, CPUs, certificates, GPU");
  auto json = std::make_shared<bool>(false);
  auto paths = std::make_shared<std::vector<std::string>>();
  command->add_option(
      "PATH", *paths,
      "files or folders (brace ranges, '*', @FILE) whose disks to show [all mounted disks]");
  add_json(*command, *json);
  command->footer("Example:\n  millrace doctor /data/train");
  return [json, paths](const environment& e) {
    const auto shown = storage_to_show(e, *paths);
    const auto found = examine(e, shown);
    if (*json) {
      print_json(found);
    } else {
      print(found, shown, e);
    }
    return 0;
  };
}

}  // namespace millrace::cli
