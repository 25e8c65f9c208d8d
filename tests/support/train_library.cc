// millrace-train as a library: tests/support/forked_trainer.py runs it in forks of a process that
// has loaded it.
#include "train/train_main.h"

extern "C" [[gnu::visibility("default")]] int millrace_train(int argc, char** argv,
                                                             char** environment) {
  return millrace::train_main(argc, argv, environment);
}
