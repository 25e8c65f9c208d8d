#pragma once

namespace millrace {

// Has malloc keep what is freed, for a program that trains on the CPU: each step frees its
// activations and asks for them again, and the kernel would clear the same pages in each step,
// which takes a tenth of the time. Does nothing where the variables of the process set malloc's
// thresholds. For the whole process: called by programs, not by libraries, before the first step.
void keep_freed_memory();

}  // namespace millrace
