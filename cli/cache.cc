#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "engine/base/printable.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/files/folders.h"
#include "io/cache/cache_folder.h"
#include "io/hashes.h"

namespace millrace::cli {
namespace {

cache_folder opened_folder(const environment& e) {
  cache_folder folder(engine_options::from(e.variables).source.cache);
  if (folder.options().folder.empty()) {
    throw failure(
        error(errc::bad_setting, "MILLRACE_CACHE is not set").hint("set it to the cache's folder"));
  }
  if (const auto usable = folder.check(); !usable) throw failure(usable.error());
  return folder;
}

int list(const environment& e, bool json) {
  const cache_folder folder = opened_folder(e);
  auto all = nlohmann::json::array();
  std::uint64_t sum = 0;
  for (cache_entry& entry : folder.entries()) {
    sum += entry.bytes;
    const auto file = entry.complete ? folder.look_at(entry.name) : nullptr;
    if (file) entry.url = file->url();
    const std::string what = file             ? file->url()
                             : entry.complete ? "(damaged, or a file of another program)"
                                              : "(being filled, or abandoned)";
    if (json) {
      all.push_back({{"name", entry.name},
                     {"url", entry.url},
                     {"bytes", entry.bytes},
                     {"used", entry.used_ns / 1'000'000'000},
                     {"complete", entry.complete}});
    } else {
      fmt::print("{}  {:>10}  {:%Y-%m-%d %H:%M}  {}\n", entry.name.substr(0, 12),
                 format_bytes(entry.bytes), fmt::localtime(entry.used_ns / 1'000'000'000), what);
    }
  }
  if (json) {
    print_json({{"bytes", sum}, {"entries", std::move(all)}});
  } else {
    fmt::print("{} in {}\n", format_bytes(sum), folder.options().folder);
  }
  return 0;
}

int clean(const environment& e, bool all, bool json) {
  const cache_folder folder = opened_folder(e);
  const std::uint64_t freed = all ? folder.clean() : folder.evict();
  if (json) {
    print_json({{"freed_bytes", freed}});
  } else {
    fmt::print("{} freed in {}\n", format_bytes(freed), folder.options().folder);
  }
  return 0;
}

// The first block whose checksum is wrong; nullopt if there is none, or once `stopped` is true.
// Adds the bytes read to `read`.
std::optional<std::uint64_t> damaged_block(const cached_file& file,
                                           std::atomic<std::uint64_t>& read,
                                           const std::atomic<bool>& stopped) {
  std::vector<std::byte> block(cache_block_bytes);
  for (std::uint64_t i = 0; i < file.blocks() && !stopped; ++i) {
    const std::uint64_t at = i * cache_block_bytes;
    const auto size =
        static_cast<std::size_t>(std::min<std::uint64_t>(cache_block_bytes, file.bytes() - at));
    const ssize_t got = pread(file.fd(), block.data(), size, static_cast<off_t>(at));
    if (got != static_cast<ssize_t>(size) || !file.has_sum(i, crc32c({block.data(), size})))
      return i;
    read += size;
  }
  return std::nullopt;
}

// The number of bad entries.
struct damage {
  std::uint64_t removed = 0;
  std::uint64_t left = 0;  // without the cache's name or mark: perhaps another program's files
};

// Removes an entry whose `block` is damaged. `file`: nullptr if the entry is unreadable.
void remove_damaged(const cache_folder& folder, const std::string& name, const cached_file* file,
                    std::uint64_t block, damage& found, bool json) {
  std::string told;
  if (file != nullptr) {
    folder.remove(name, *file);
    ++found.removed;
    told = fmt::format("damaged: {} ({}), block {}; removed", name, file->url(), block);
  } else if (folder.remove_damaged(name)) {
    ++found.removed;
    told = fmt::format("damaged: {} (unreadable); removed", name);
  } else if (is_there(folder.options().folder + "/" + name)) {
    ++found.left;
    told = fmt::format("damaged, or a file of another program: {}; not removed", name);
  } else {
    return;  // evicted in the meantime
  }
  if (!json) print_line(told);
}

int verify(const environment& e, bool json) {
  const std::atomic<bool>& stopped = interrupted();
  const cache_folder folder = opened_folder(e);
  damage found;
  std::uint64_t right = 0;
  const auto entries = folder.entries();
  amount_of_work all;
  for (const cache_entry& entry : entries) all.bytes += entry.complete ? entry.bytes : 0;
  std::atomic<std::uint64_t> read = 0;
  progress shown("cache verify", all, [&] { return work_done{read, 0}; });
  for (const cache_entry& entry : entries) {
    if (!entry.complete) continue;
    const auto file = folder.look_at(entry.name);
    const auto block = file ? damaged_block(*file, read, stopped) : std::optional<std::uint64_t>(0);
    if (stopped) break;
    if (!block) {
      right += file->bytes();
      continue;
    }
    remove_damaged(folder, entry.name, file.get(), *block, found, json);
  }
  shown.end();
  for (const std::string& name : stopped ? std::vector<std::string>() : folder.other_files()) {
    ++found.left;
    if (!json)
      print_line(fmt::format("a file of another program: {}; not removed", printable(name)));
  }
  if (json) {
    print_json({{"bytes", right},
                {"damaged", found.removed},
                {"left", found.left},
                {"interrupted", stopped.load()}});
  } else {
    fmt::print("{}{} intact; {} damaged and removed{}\n", stopped ? "stopped after " : "",
               format_bytes(right), counted(found.removed, "entry", "entries"),
               found.left > 0
                   ? "; kept " + counted(found.left, "file") + " that may belong to other programs"
                   : "");
  }
  if (stopped) return exit_code_of_interrupt();
  return found.removed + found.left > 0 ? exit_code(errc::integrity) : 0;
}

}  // namespace

action add_cache(CLI::App& app) {
  CLI::App* command = app.add_subcommand("cache", "lists, cleans or verifies MILLRACE_CACHE");
  command->require_subcommand(1);
  CLI::App* ls = command->add_subcommand("ls", "lists the entries, least recently used first");
  CLI::App* cleaning = command->add_subcommand(
      "clean", "evicts entries until MILLRACE_CACHE_SIZE and MILLRACE_CACHE_FREE are met");
  CLI::App* verifying = command->add_subcommand(
      "verify",
      "reads every entry and removes damaged ones; exit code 5 if there are any, or files "
      "of other programs");
  auto json = std::make_shared<bool>();
  auto all = std::make_shared<bool>();
  for (CLI::App* each : {ls, cleaning, verifying}) {
    add_json(*each, *json);
    each->footer("Example:\n  MILLRACE_CACHE=/nvme/cache millrace cache " + each->get_name());
  }
  cleaning->add_flag("--all", *all, "remove every entry that is not being read")->group("Entries");
  return [command, json, all](const environment& e) {
    const std::string what = command->get_subcommands().front()->get_name();
    if (what == "ls") return list(e, *json);
    return what == "clean" ? clean(e, *all, *json) : verify(e, *json);
  };
}

}  // namespace millrace::cli
