#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "engine/block_io.h"

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

nlohmann::json block_devices() {
  auto out = nlohmann::json::array();
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator("/sys/block", ignored)) {
    const std::string name = device.path().filename();
    if (name.starts_with("loop") || name.starts_with("ram") || name.starts_with("zram")) continue;
    const fs::path queue = device.path() / "queue";
    out.push_back({{"name", name},
                   {"rotational", first_line(queue / "rotational") == "1"},
                   {"scheduler", first_line(queue / "scheduler")},
                   {"read_ahead_kib", first_line(queue / "read_ahead_kb")}});
  }
  return out;
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

nlohmann::json examine(const environment& e) {
  rlimit memlock{};
  rlimit files{};
  getrlimit(RLIMIT_MEMLOCK, &memlock);
  getrlimit(RLIMIT_NOFILE, &files);
  const std::size_t memory = e.variables.bytes("MILLRACE_MEMORY");
  const int threads = e.variables.integer("MILLRACE_CPU_THREADS");
  return {{"io_uring", uring_refused().value_or("works")},
          {"memlock", limit_text(memlock.rlim_cur)},
          {"open_files", files.rlim_cur},
          {"cpus", allowed_cpus()},
          {"cpu_threads", threads > 0 ? threads : allowed_cpus()},
          {"memory_budget_bytes", memory > 0 ? memory : default_memory_bytes()},
          {"ca_certificates", ca_certificates()},
          {"gpus", gpus()},
          {"block_devices", block_devices()}};
}

void print(const nlohmann::json& found) {
  fmt::print("io_uring         {}\n", found["io_uring"].get<std::string>());
  fmt::print("memlock          {}\n", found["memlock"].get<std::string>());
  fmt::print("open files       {}\n", found["open_files"].get<std::uint64_t>());
  fmt::print("CPUs             {} allowed, {} threads decode\n", found["cpus"].get<int>(),
             found["cpu_threads"].get<int>());
  fmt::print("memory budget    {}\n",
             format_bytes(found["memory_budget_bytes"].get<std::size_t>()));
  fmt::print("CA certificates  {}\n", found["ca_certificates"].get<std::string>());
  if (found["gpus"].empty()) fmt::print("GPU              none\n");
  for (const auto& gpu : found["gpus"]) fmt::print("GPU              {}\n", gpu.get<std::string>());
  for (const auto& d : found["block_devices"]) {
    fmt::print("device           {}: {}, scheduler {}, read-ahead {} KiB\n",
               d["name"].get<std::string>(),
               d["rotational"].get<bool>() ? "rotational" : "not rotational",
               d["scheduler"].get<std::string>(), d["read_ahead_kib"].get<std::string>());
  }
}

}  // namespace

action add_doctor(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "doctor", "what this host allows: io_uring, memlock, devices, CPUs, certificates, GPU");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print one JSON object on the last line");
  return [json](const environment& e) {
    const auto found = examine(e);
    if (*json) {
      fmt::print("{}\n", found.dump());
    } else {
      print(found);
    }
    return 0;
  };
}

}  // namespace millrace::cli
