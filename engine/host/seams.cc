#include "engine/host/seams.h"

#include "engine/host/clock.h"
#include "engine/host/stepper.h"

namespace millrace {

void simulate_clock(simulated_clock* instead) {
  steady_clock::simulated_ = instead;
}

void simulate_threads(stepper* instead) {
  stepper::in_force_ = instead;
}

}  // namespace millrace
