// millrace-rotational: mounts a folder so that reading it takes the time that rotational disks
// would. bench/rotational/README.md says what is modelled.
#define FUSE_USE_VERSION 312
#include <fmt/format.h>
#include <fuse3/fuse_lowlevel.h>
#include <sys/mount.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>

#include "bench/rotational/array.h"
#include "bench/rotational/mirror.h"
#include "engine/host/standard_error.h"
#include "engine/host/start_thread.h"

namespace {

using namespace millrace::rotational;

struct model {
  mirror files;
  stripe layout;
  array disks;
  std::string failing;  // reads of this file from `fails_from` on are EIO
  std::uint64_t fails_from = 0;
};

model& of(fuse_req_t request) {
  return *static_cast<model*>(fuse_req_userdata(request));
}

constexpr double for_ever = 1e9;  // names and sizes do not change

void lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  const mirror& files = of(request).files;
  if (!files.has(parent)) return void(fuse_reply_err(request, ENOENT));
  const auto found = files.at(parent).children.find(name);
  if (found == files.at(parent).children.end()) return void(fuse_reply_err(request, ENOENT));
  fuse_entry_param e{};
  e.ino = found->second;
  e.attr = files.at(found->second).info;
  e.attr_timeout = e.entry_timeout = for_ever;
  fuse_reply_entry(request, &e);
}

void get_attributes(fuse_req_t request, fuse_ino_t inode, fuse_file_info* /*info*/) {
  const mirror& files = of(request).files;
  if (!files.has(inode)) return void(fuse_reply_err(request, ENOENT));
  fuse_reply_attr(request, &files.at(inode).info, for_ever);
}

void read_folder(fuse_req_t request, fuse_ino_t inode, size_t size, off_t from, fuse_file_info*) {
  const mirror& files = of(request).files;
  std::vector<char> out(size);
  std::size_t used = 0;
  off_t at = 0;
  for (const auto& [name, child] : files.at(inode).children) {
    if (at++ < from) continue;
    const std::size_t n = fuse_add_direntry(request, out.data() + used, size - used, name.c_str(),
                                            &files.at(child).info, at);
    if (n > size - used) break;
    used += n;
  }
  fuse_reply_buf(request, out.data(), used);
}

// The page cache is dropped at every open: each run is cold, and what is read ahead within one open
// file is the kernel's own doing.
void open_file(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  if (of(request).files.at(inode).fd < 0) return void(fuse_reply_err(request, EISDIR));
  if ((info->flags & O_ACCMODE) != O_RDONLY) return void(fuse_reply_err(request, EROFS));
  fuse_reply_open(request, info);
}

void read_file(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info*) {
  model& m = of(request);
  const mirror::entry& file = m.files.at(inode);
  const auto from = static_cast<std::uint64_t>(offset);
  const auto end = static_cast<std::uint64_t>(file.info.st_size);
  if (from >= end) return void(fuse_reply_buf(request, nullptr, 0));
  const std::uint64_t wanted = std::min<std::uint64_t>(size, end - from);
  const bool fails = file.name == m.failing && from + wanted > m.fails_from;
  m.disks.submit(m.layout.split(file.place + from, wanted), [request, &file, from, wanted, fails] {
    if (fails) return void(fuse_reply_err(request, EIO));
    fuse_bufvec data{};
    data.count = 1;
    data.buf[0].size = wanted;
    data.buf[0].flags = static_cast<fuse_buf_flags>(FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK);
    data.buf[0].fd = file.fd;
    data.buf[0].pos = static_cast<off_t>(from);
    fuse_reply_data(request, &data, static_cast<fuse_buf_copy_flags>(0));
  });
}

void begin(void* /*user*/, fuse_conn_info* connection) {
  // All requests of a large read are to reach the queue at once, as they would a disk's.
  connection->max_background = 4096;
  connection->congestion_threshold = 4096;
}

constexpr fuse_lowlevel_ops operations() {
  fuse_lowlevel_ops o{};
  o.init = begin;
  o.lookup = lookup;
  o.getattr = get_attributes;
  o.readdir = read_folder;
  o.open = open_file;
  o.read = read_file;
  return o;
}

struct options {
  std::string folder;
  std::string mount;
  int spindles = 1;
  std::uint64_t stripe_kib = 512;
  double span_gb = 150;
  std::string order = "elevator";
  std::string timeline;
  std::string fail;
  disk_parameters disk;
};

void parse(options& o, CLI::App& app) {
  app.add_option("FOLDER", o.folder,
                 "the folder to mirror; in memory (tmpfs), so that it takes no time")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("MOUNT", o.mount, "the mount point")->required()->check(CLI::ExistingDirectory);
  app.add_option("--spindles", o.spindles, "disks, striped as RAID-0")->check(CLI::Range(1, 64));
  app.add_option("--stripe-kib", o.stripe_kib, "bytes in a row on one disk")
      ->check(CLI::Range(4, 65536));
  app.add_option("--span-gb", o.span_gb, "the part of each disk that the files are spread over");
  app.add_option("--order", o.order, "how a disk orders pending requests")
      ->check(CLI::IsMember({"fifo", "elevator"}));
  app.add_option("--rate-mb",
                 [&o](const CLI::results_t& text) {
                   o.disk.rate = 1e6 * std::stod(text.at(0));
                   return true;
                 })
      ->description("MB/s of one disk (200)");
  app.add_option("--timeline", o.timeline, "write a line per read: begin, end, disk, place, bytes");
  app.add_option("--fail", o.fail, "NAME:OFFSET from where on the file's reads are EIO");
}

// One thread takes the signals: USR1 hangs the disks, USR2 lets them continue.
void obey_signals(const sigset_t& signals, array& disks, fuse_session* session,
                  const std::string& mount, const std::atomic<bool>& ended) {
  for (;;) {
    int which = 0;
    sigwait(&signals, &which);
    if (ended) return;
    if (which == SIGUSR1 || which == SIGUSR2) {
      disks.set_hung(which == SIGUSR1);
      fmt::print("{}\n", which == SIGUSR1 ? "hung" : "going on");
      std::fflush(stdout);
    } else {
      disks.set_hung(false);  // otherwise waiting requests could not end
      fuse_session_exit(session);
      umount2(mount.c_str(), MNT_DETACH);  // ends the session's read
    }
  }
}

int serve(const options& o) {
  // Before any thread is made, so that all of them leave the signals to one.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int s : {SIGUSR1, SIGUSR2, SIGINT, SIGTERM}) sigaddset(&signals, s);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::FILE* timeline = o.timeline.empty() ? nullptr : std::fopen(o.timeline.c_str(), "w");
  const stripe layout{o.spindles, o.stripe_kib * 1024};
  const auto span = static_cast<std::uint64_t>(o.span_gb * 1e9 * o.spindles);
  const auto colon = o.fail.rfind(':');
  const auto order = o.order == "fifo" ? scheduling::fifo : scheduling::elevator;
  model m{.files = mirror(o.folder, span, layout.unit),
          .layout = layout,
          .disks = array(o.spindles, o.disk, order, timeline),
          .failing = o.fail.substr(0, colon),
          .fails_from = o.fail.empty() ? 0 : std::stoull(o.fail.substr(colon + 1))};
  std::array arguments{std::string("millrace-rotational"),
                       std::string("-oro,default_permissions,allow_other,fsname=rotational")};
  std::array<char*, 2> argv{arguments[0].data(), arguments[1].data()};
  fuse_args args = FUSE_ARGS_INIT(static_cast<int>(argv.size()), argv.data());
  const fuse_lowlevel_ops ops = operations();
  fuse_session* session = fuse_session_new(&args, &ops, sizeof ops, &m);
  if (session == nullptr || fuse_session_mount(session, o.mount.c_str()) != 0) {
    millrace::to_stderr(
        "millrace-rotational: cannot mount at {}: is /dev/fuse there, and is this "
        "user allowed to mount?\n",
        o.mount);
    return 1;
  }
  fmt::print("{} spindles, {}, stripe {} KiB, {:.0f} MB/s each, at {}\n", o.spindles, o.order,
             o.stripe_kib, o.disk.rate / 1e6, o.mount);
  std::fflush(stdout);
  std::atomic<bool> ended = false;
  std::thread obeying = millrace::start_thread(
      "mr-signals", [&] { obey_signals(signals, m.disks, session, o.mount, ended); });
  const int code = fuse_session_loop(session);
  ended = true;
  kill(getpid(), SIGTERM);  // blocked in all threads: sigwait takes it
  obeying.join();
  m.disks.stop();  // they answer through the session
  fuse_session_unmount(session);
  fuse_session_destroy(session);
  if (timeline != nullptr) std::fclose(timeline);
  return code < 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app("A folder that reads as slowly as rotational disks would.", "millrace-rotational");
  parse(o, app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return code == 0 ? 0 : 2;
  }
  try {
    return serve(o);
  } catch (const std::exception& e) {
    millrace::to_stderr("millrace-rotational: {}\n", e.what());
    return 1;
  }
}
