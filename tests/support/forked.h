#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace millrace::testing {

// The exit status of a child that runs `f`, exits with its result, and ends without destructors;
// 256 and more if a signal ended it. SIGALRM ends a child that waits forever. The parent calls
// `meanwhile` before it waits.
template <class F, class G = void (*)()>
int status_of_child(F f, G meanwhile = [] {}) {
  constexpr unsigned patience_seconds = 30;
  const pid_t child = fork();
  if (child == 0) {
    alarm(patience_seconds);
    _exit(f());
  }
  meanwhile();
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

}  // namespace millrace::testing
