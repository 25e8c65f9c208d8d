#pragma once

#include <functional>

// Replaces the host by simulators, for tests. Not installed: programs have no use for it. Call
// these while no thread of the engine runs. Null: the host itself.
namespace millrace {

class file_system;
class process_starter;
class simulated_clock;
class stepper;

void simulate_clock(simulated_clock* instead);
void simulate_files(file_system* instead);
void simulate_processes(process_starter* instead);
// I/O threads and worker pools created from now on start no threads.
void simulate_threads(stepper* instead);

// `when` is called before each thread is started; true: the host refuses it. Null: none is refused.
void refuse_threads(std::function<bool()> when);

}  // namespace millrace
