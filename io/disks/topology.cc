#include "io/disks/topology.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "io/disks/mounts.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// Deeper than any working set-up; a loop device whose file is on the device itself would recurse
// without end.
constexpr int deepest = 16;

std::size_t number(const fs::path& file) {
  return std::strtoull(first_line(file).c_str(), nullptr, 10);
}

// "none [mq-deadline] kyber" -> "mq-deadline"
std::string in_brackets(const std::string& text) {
  const auto open = text.find('[');
  const auto close = text.find(']');
  if (open == std::string::npos || close == std::string::npos) return text == "none" ? "" : text;
  const auto inside = text.substr(open + 1, close - open - 1);
  return inside == "none" ? "" : inside;
}

bool is_made_up(const std::string& name) {
  constexpr std::array prefixes{"vd", "xvd", "nbd", "rbd", "zram", "ram", "drbd", "pmem"};
  return std::ranges::any_of(prefixes, [&](const char* p) { return name.starts_with(p); });
}

class explorer {
 public:
  explicit explorer(const fs::path& root)
      : root_(root), mounts_(read_mounts(root / "proc/self/mountinfo")) {}

  storage find(dev_t device, const std::string& path, int depth = 0) const;

 private:
  block_device describe(const fs::path& folder, int depth) const;
  void describe_members(block_device& d, const fs::path& folder, int depth) const;
  void find_loop(block_device& d, const fs::path& folder, int depth) const;
  std::optional<fs::path> by_source(const std::string& source) const;

  fs::path root_;
  std::vector<mount> mounts_;
};

// The number of members that work together on a large read: those that alternate by chunks.
int working_together(const std::string& level, int members) {
  if (level == "raid0") return members;
  if (level == "raid4" || level == "raid5") return members - 1;
  if (level == "raid6") return members - 2;
  if (level == "raid10") return members / 2;
  return 1;  // raid1, linear, faulty: one reader stays on one disk
}

void explorer::describe_members(block_device& d, const fs::path& folder, int depth) const {
  std::error_code none;
  std::set<fs::path> slaves;
  for (const auto& s : fs::directory_iterator(folder / "slaves", none)) slaves.insert(s.path());
  for (const auto& slave : slaves) {
    const fs::path target = fs::canonical(slave, none);
    if (!none) d.below.push_back(describe(target, depth + 1));
  }
  if (d.below.empty()) return;
  d.rotational = std::ranges::any_of(d.below, &block_device::rotational);
  d.virtual_disk = std::ranges::all_of(d.below, &block_device::virtual_disk);
  const auto least = std::ranges::min_element(d.below, {}, &block_device::spindles);
  int members = static_cast<int>(d.below.size());
  std::string level = first_line(folder / "md/level");
  std::size_t chunk = number(folder / "md/chunk_size");
  if (!level.empty()) {
    d.kind = level;
    members = std::max(members, static_cast<int>(number(folder / "md/raid_disks")));
  } else if (fs::exists(folder / "dm", none)) {
    const std::string uuid = first_line(folder / "dm/uuid");
    d.kind = uuid.starts_with("LVM-")     ? "LVM"
             : uuid.starts_with("CRYPT-") ? "crypt"
                                          : "device mapper";
    // Only root can read the table; a striped target shows its shape in the I/O hints instead:
    // minimum_io_size is the chunk, optimal_io_size one chunk of every stripe.
    const std::size_t smallest = number(folder / "queue/minimum_io_size");
    const std::size_t best = number(folder / "queue/optimal_io_size");
    if (members > 1 && smallest > 4096 && best == smallest * d.below.size()) {
      level = "raid0";
      chunk = smallest;
      d.kind += " striped";
    }
  } else {
    d.kind = d.name.starts_with("bcache") ? "bcache" : "stacked";
  }
  const int together = std::max(1, working_together(level, members));
  d.spindles = together * least->spindles;
  d.chunk_bytes = together > 1 ? chunk : d.below.front().chunk_bytes;
}

void explorer::find_loop(block_device& d, const fs::path& folder, int depth) const {
  d.kind = "loop";
  const std::string file = first_line(folder / "loop/backing_file");
  if (file.empty() || depth >= deepest) return;
  const storage under = find(0, file, depth + 1);
  d.below = under.devices;
  d.rotational = under.rotational;
  d.virtual_disk = !d.below.empty() && std::ranges::all_of(d.below, &block_device::virtual_disk);
  d.spindles = under.spindles;
  d.chunk_bytes = under.chunk_bytes;
}

block_device explorer::describe(const fs::path& folder, int depth) const {
  block_device d{.name = folder.filename(), .kind = "disk", .below = {}};
  std::error_code none;
  if (depth >= deepest) return d;
  if (fs::exists(folder / "partition", none)) {
    d.below.push_back(describe(folder.parent_path(), depth + 1));
    const block_device& whole = d.below.front();
    d.kind = "partition";
    d.rotational = whole.rotational;
    d.virtual_disk = whole.virtual_disk;
    d.spindles = whole.spindles;
    d.chunk_bytes = whole.chunk_bytes;
    d.queue_requests = whole.queue_requests;
    d.scheduler = whole.scheduler;
    d.read_ahead_bytes = whole.read_ahead_bytes;
    return d;
  }
  const fs::path queue = folder / "queue";
  d.rotational = first_line(queue / "rotational") == "1";
  d.virtual_disk = is_made_up(d.name);
  d.queue_requests = static_cast<int>(number(queue / "nr_requests"));
  d.scheduler = in_brackets(first_line(queue / "scheduler"));
  d.read_ahead_bytes = number(queue / "read_ahead_kb") * 1024;
  if (d.name.starts_with("loop")) {
    find_loop(d, folder, depth);
  } else {
    describe_members(d, folder, depth);
  }
  return d;
}

// Maps /dev/sda1 or /dev/mapper/group-volume, as mountinfo names them, to their folder in sysfs.
std::optional<fs::path> explorer::by_source(const std::string& source) const {
  if (!source.starts_with("/dev/")) return std::nullopt;
  const std::string name = fs::path(source).filename();
  const fs::path all = root_ / "sys/class/block";
  std::error_code none;
  if (auto folder = fs::canonical(all / name, none); !none) return folder;
  for (const auto& candidate : fs::directory_iterator(all, none)) {
    if (first_line(candidate.path() / "dm/name") != name) continue;
    if (auto folder = fs::canonical(candidate.path(), none); !none) return folder;
  }
  return std::nullopt;
}

void collect_disks(const block_device& d, std::set<std::string>& names) {
  if (d.below.empty()) names.insert(d.name);
  for (const block_device& b : d.below) collect_disks(b, names);
}

// What answers if no block device can be found.
std::string remark_on(const std::string& type) {
  const auto is = [&](std::initializer_list<const char*> names) {
    return std::ranges::any_of(names, [&](const char* n) { return type == n; });
  };
  if (is({"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "afs", "gpfs", "beegfs"})) {
    return "a network file system: the server's disks cannot be seen from here";
  }
  if (type.starts_with("fuse")) return "a FUSE file system: a program serves it";
  if (is({"9p", "virtiofs"})) return "shared by the virtual machine's host";
  if (is({"tmpfs", "ramfs", "devtmpfs"})) return "in memory";
  if (type == "overlay") return "an overlay whose folders cannot be seen from here";
  if (type == "zfs") return "a ZFS pool, whose disks sysfs does not show";
  return "no block device is known for it";
}

storage explorer::find(dev_t device, const std::string& path, int depth) const {
  storage s;
  const auto on = mount_of(mounts_, device, path);
  if (on) {
    s.file_system = on->type;
    s.mount_point = on->point;
    if (device == 0) device = on->device;
  }
  std::error_code none;
  std::optional<fs::path> folder;
  if (major(device) != 0) {
    const auto link = root_ / "sys/dev/block" / fmt::format("{}:{}", major(device), minor(device));
    if (auto found = fs::canonical(link, none); !none) folder = std::move(found);
  }
  // btrfs, and perhaps others, gives files device numbers of its own: use the mount's source.
  if (!folder && on) folder = by_source(on->source);
  if (!folder && on && on->type == "overlay" && depth < deepest) {
    const auto at = on->options.find("upperdir=");
    const auto upper = at == std::string::npos ? "" : on->options.substr(at + 9);
    const auto layer = upper.substr(0, upper.find(','));
    if (const auto under = mount_of(mounts_, 0, layer); under && under->type != "overlay") {
      storage found = find(0, layer, depth + 1);
      if (!layer.empty() && !found.devices.empty()) return found;
    }
  }
  if (!folder) {
    s.remark = remark_on(s.file_system);
    s.identity = fmt::format("dev-{}-{}", major(device), minor(device));
    return s;
  }
  const block_device top = describe(*folder, depth);
  s.devices.push_back(top);
  s.spindles = top.spindles;
  s.chunk_bytes = top.chunk_bytes;
  s.rotational = top.rotational && !top.virtual_disk;
  if (top.rotational && top.virtual_disk) {
    s.remark = "a virtual disk: its rotational flag says nothing about the real disk";
  }
  std::set<std::string> disks;
  collect_disks(top, disks);
  for (const auto& name : disks) s.identity += (s.identity.empty() ? "" : "+") + name;
  return s;
}

}  // namespace

storage find_storage(const fs::path& root, dev_t device, const std::string& path) {
  return explorer(root).find(device, path);
}

result<storage> storage_of(const std::string& path) {
  struct stat info{};
  if (stat(path.c_str(), &info) != 0) {
    const errc kind = kind_of(errno);
    return error(kind, kind == errc::not_found ? "no such file" : "cannot look at the file")
        .at(path)
        .cause(errno)
        .hint("check the path");
  }
  std::error_code none;
  const auto real = fs::canonical(path, none);
  return find_storage("/", info.st_dev, none ? path : real.string());
}

}  // namespace millrace
