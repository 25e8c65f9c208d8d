#pragma once

#include <exception>
#include <new>

#include "engine/error.h"
#include "engine/standard_error.h"

namespace millrace {

// Opens /dev/null wherever standard input, output or error is closed. Otherwise the first files
// that the program opens would take those numbers, and what is printed would be written into them.
// Reading from a closed input and writing to a closed output fail, as they did; what goes to a
// closed stderr vanishes.
// Sets SIGCHLD to its default, too: where a parent left it ignored, no command's status is known.
// Ignores SIGXFSZ: a file that would be larger than allowed is an error, which says so.
// Call it first thing in main().
void open_standard_streams();

// What main() returns for the exception that is being handled: what `report` returns, which tells
// the error. Where there is no memory to tell it, a line says so that needs none.
template <class F>
int exit_code_of_caught(F report) {
  try {
    return report(error_of(std::current_exception()));
  } catch (const std::bad_alloc&) {
    write_to_stderr("millrace: no_memory: the host gives no more memory\n");
    return exit_code(errc::no_memory);
  }
}

}  // namespace millrace
