#include <cstdio>
#include <cstdlib>

#include "train/train_main.h"

int main(int argc, char** argv, char** environment) {
  const int code = millrace::train_main(argc, argv, environment);
  // Without the destructors of global objects: LibTorch would withdraw each of its operators, which
  // takes a third of a second, and nothing is left to be written but what stdio still holds.
  std::fflush(nullptr);
  std::_Exit(code);
}
