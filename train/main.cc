#include "train/train_main.h"

int main(int argc, char** argv, char** environment) {
  return millrace::train_main(argc, argv, environment);
}
