// To be preloaded: a child that has ended seems to run still for the first LATE_END calls of
// waitpid(WNOHANG), with a SIGCHLD after each, as if it ended after the call.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <map>

extern "C" pid_t waitpid(pid_t pid, int* status, int options) {
  using function = pid_t (*)(pid_t, int*, int);
  static const auto real = reinterpret_cast<function>(dlsym(RTLD_NEXT, "waitpid"));
  static std::map<pid_t, int> told;  // calls for a child that had ended
  siginfo_t about{};
  const char* const most = std::getenv("LATE_END");
  const bool has_ended =
      (options & WNOHANG) != 0 && most != nullptr &&
      waitid(P_PID, static_cast<id_t>(pid), &about, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      about.si_pid == pid;
  if (!has_ended || told[pid] >= std::atoi(most)) return real(pid, status, options);
  ++told[pid];
  kill(getpid(), SIGCHLD);
  return 0;
}
