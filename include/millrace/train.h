// Training on LibTorch: models, distributed data parallel, checkpoints, the parts of a training
// loop, and millrace-train as a function. A program that includes this links millrace::train and
// its own LibTorch (>= 2.6).
#pragma once

#include "train/checkpoints/checkpoint.h"
#include "train/checkpoints/run_checkpoints.h"
#include "train/device/devices.h"
#include "train/device/to_device.h"
#include "train/loop/lockstep.h"
#include "train/loop/report.h"
#include "train/loop/schedule.h"
#include "train/loop/signals.h"
#include "train/models/known_models.h"
#include "train/models/model.h"
#include "train/models/safetensors.h"
#include "train/models/weights.h"
#include "train/ranks/data_ranks.h"
#include "train/ranks/distributed.h"
#include "train/train_main.h"
