#pragma once

#include <exception>
#include <new>
#include <span>

#include "engine/base/error.h"
#include "engine/host/standard_error.h"

namespace millrace {

// Opens /dev/null in place of a closed standard input, output or error. Otherwise the first files
// that the program opens would get those numbers, and printed text would be written into them.
// Reading from a closed input and writing to a closed output still fail; output to a closed stderr
// vanishes.
// Also sets SIGCHLD to its default: if a parent left it ignored, no command's status would be
// known. Ignores SIGXFSZ, so that exceeding the file size limit is an error with a message. Call it
// first in main().
void open_standard_streams();

// Checks the words of a command line after the program's name: throws `failure` (usage) for an
// option with nothing after its '=', as of "--index=$UNSET". CLI11 takes the next word for the
// value.
void check_values_given(std::span<const char* const> words);

// Writes out what was printed. Throws `failure` if stdout cannot be written, now or before.
void flush_stdout();

// The exit code for the exception being handled: the result of `report`, which prints the error.
// Without memory for that, prints a fixed line.
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
