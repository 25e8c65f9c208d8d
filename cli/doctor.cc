#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/storage_text.h"
#include "engine/base/units.h"
#include "tools/inspect/host_check.h"

namespace millrace::cli {
namespace {

std::string uring_text(const host_facts& f) {
  return f.uring_refused.value_or("works");
}

std::string memlock_text(const host_facts& f) {
  return f.memlock_bytes ? format_bytes(*f.memlock_bytes) : "unlimited";
}

std::string certificates_text(const host_facts& f) {
  return f.ca_certificates.empty() ? "none found: install ca-certificates" : f.ca_certificates;
}

nlohmann::json to_json(const host_facts& f) {
  auto devices = nlohmann::json::array();
  for (const host_storage& s : f.storage) {
    auto one = storage_json(s.on);
    one["reading"] = s.reading;
    devices.push_back(std::move(one));
  }
  return {{"io_uring", uring_text(f)},
          {"memlock", memlock_text(f)},
          {"open_files", f.open_files},
          {"cpus", f.cpus},
          {"cpu_threads", f.cpu_threads},
          {"memory_budget_bytes", f.memory_budget_bytes},
          {"ca_certificates", certificates_text(f)},
          {"gpus", f.gpus},
          {"direct", f.direct},
          {"storage", std::move(devices)},
          {"in_the_way", f.in_the_way}};
}

void print(const host_facts& f) {
  fmt::print("io_uring         {}\n", uring_text(f));
  fmt::print("memlock          {}\n", memlock_text(f));
  fmt::print("open files       {}\n", f.open_files);
  fmt::print("CPUs             {} allowed, {} decoding threads\n", f.cpus, f.cpu_threads);
  fmt::print("memory budget    {}\n", format_bytes(f.memory_budget_bytes));
  fmt::print("CA certificates  {}\n", certificates_text(f));
  if (f.gpus.empty()) fmt::print("GPU              none\n");
  for (const auto& gpu : f.gpus) fmt::print("GPU              {}\n", gpu);
  fmt::print("direct reads     {}\n", f.direct);
  for (const host_storage& s : f.storage) fmt::print("\n{}{}\n", storage_tree(s.on), s.reading);
  fmt::print("\n");
  for (const auto& what : f.in_the_way) fmt::print("in the way       {}\n", what);
  if (f.in_the_way.empty()) fmt::print("in the way       nothing\n");
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
    const engine_options how = engine_options::from(e.variables);
    const auto local = paths_alone(*paths, how.source, "doctor looks at the disks of local files",
                                   "name local files or folders, or none");
    const host_facts found = examine_host(how, local);
    *json ? print_json(to_json(found)) : print(found);
    return 0;
  };
}

}  // namespace millrace::cli
