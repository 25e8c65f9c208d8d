// Training on LibTorch: models, distributed data parallel, and the trainer of millrace-train. A
// program that includes this links millrace::train and its own LibTorch (>= 2.6).
#pragma once

#include "train/checkpoint.h"
#include "train/data.h"
#include "train/distributed.h"
#include "train/model.h"
#include "train/safetensors.h"
#include "train/schedule.h"
#include "train/to_device.h"
#include "train/trainer.h"
