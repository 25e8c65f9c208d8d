// What memory_files keeps when a process is killed, or the host loses power.
#include <algorithm>

#include "tests/support/memory_files.h"
#include "tests/support/memory_node.h"

namespace millrace::testing {
namespace {

constexpr std::size_t sector = 512;

}  // namespace

void memory_files::kill(int process) {
  for (auto it = open_.begin(); it != open_.end();) {
    const auto which = it++;
    if (which->second->process == process) forget(which->first);
  }
  dead_.insert(process);
}

void memory_files::lose_unsynced(const node_ptr& n, std::set<const node*>& seen) {
  if (!seen.insert(n.get()).second) return;
  // Each write may or may not have reached the disk; of one write, only whole sectors.
  std::string kept = n->on_disk;
  for (const auto& op : n->unsynced) {
    const std::uint32_t fate = random_.below(3);
    if (fate == 0) continue;
    std::size_t bytes = op.bytes.size();
    if (fate == 1) {
      bytes = std::min<std::size_t>(
          bytes, sector * random_.below(static_cast<std::uint32_t>(bytes / sector + 1)));
    }
    node::apply(kept, op, bytes);
  }
  n->content = n->on_disk = std::move(kept);
  n->unsynced.clear();
  std::map<std::string, node_ptr> names = n->names_on_disk;
  for (const auto& op : n->unsynced_names) {
    bool is_kept = random_.below(2) == 0;
    if (op.both && *op.both) is_kept = **op.both;
    if (op.both) *op.both = is_kept;
    // A renamed file keeps its old name, unless that is lost, too.
    const auto old = names.find(op.old);
    if (!op.old.empty() && (old == names.end() || old->second != op.what)) is_kept = false;
    if (is_kept) node::apply(names, op);
  }
  n->names = n->names_on_disk = names;
  n->unsynced_names.clear();
  for (const auto& [one, what] : names) {
    what->links = seen.contains(what.get()) ? what->links + 1 : 1;
    lose_unsynced(what, seen);
  }
}

void memory_files::crash() {
  std::set<int> running;
  for (const auto& [fd, d] : open_) running.insert(d->process);
  for (const int process : running) kill(process);
  std::set<const node*> seen;
  lose_unsynced(root_, seen);
}

}  // namespace millrace::testing
