#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

namespace millrace::rotational {

// A 7200-rpm disk. Times in seconds, rates in bytes per second.
struct disk_parameters {
  double settle = 0.001;      // the shortest seek
  double mean_seek = 0.0085;  // over the whole stroke, places uniform and independent
  double turn = 60.0 / 7200;  // half of it is waited for, on average, after every seek
  double rate = 200e6;
  double stroke = 4e12;  // bytes from the first track to the last
  std::uint64_t read_through =
      128ULL * 1024;  // a gap ahead of the head that is read, not sought over

  // Square-root curve: settle + c sqrt(distance / stroke). The mean of the root of the distance of
  // two uniform places is 8/15, which gives c.
  double seek(double distance) const;
};

enum class scheduling {
  fifo,      // in the order of arrival: the worst case
  elevator,  // upward sweeps over what is pending, as mq-deadline and NCQ do
};

// A piece of a request, on one spindle.
struct part {
  std::uint64_t position = 0;  // bytes from the spindle's first track
  std::uint64_t size = 0;
  double arrival = 0;
  std::uint64_t request = 0;  // whose part it is
};

// One arm over one platter. Pure: time is what the caller says. The head stands where the last
// part ended.
class spindle {
 public:
  struct service {
    part what;
    double begin = 0;
    double end = 0;
    bool sought = false;
  };

  spindle(const disk_parameters& disk, scheduling order) : disk_(disk), order_(order) {}

  void add(const part& p) { pending_.push_back(p); }
  bool idle() const { return pending_.empty(); }
  // Takes the next part and says when it is served; nullopt when none is pending. A part that came
  // while the arm was idle begins when it came.
  std::optional<service> serve();

 private:
  disk_parameters disk_;
  scheduling order_;
  std::list<part> pending_;  // in order of arrival
  std::uint64_t head_ = 0;
  double free_at_ = 0;
};

// RAID-0: consecutive units of `unit` bytes lie on consecutive spindles.
struct stripe {
  int spindles = 1;
  std::uint64_t unit = 512ULL * 1024;

  struct piece {
    int spindle;
    std::uint64_t position;
    std::uint64_t size;
  };
  // Adjacent pieces of one spindle are joined, in order of their first byte.
  std::vector<piece> split(std::uint64_t offset, std::uint64_t size) const;
};

}  // namespace millrace::rotational
