#pragma once

#include <sys/wait.h>
#include <unistd.h>

namespace millrace::testing {

// The exit status of a child that does `f`, which returns it, and ends without destructors; 256 and
// more where a signal ended it. A child that waits for ever is ended by SIGALRM. `meanwhile` is
// done by the parent before it waits.
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
