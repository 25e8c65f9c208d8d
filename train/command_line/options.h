#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pipeline/images/mixing.h"
#include "pipeline/images/sample_decoder.h"
#include "pipeline/stages/on_error.h"
#include "train/checkpoints/arguments.h"
#include "train/loop/schedule.h"
#include "train/models/model.h"
#include "train/optim/optimizer.h"

namespace millrace {

// The way in which all ranks get the same number of batches.
enum class train_epochs {
  resample,  // shards drawn with replacement
  equal,     // each sample at most once an epoch; all ranks stop when the first has no full batch
  exact,     // each sample once; the last batches are smaller, and ranks may run out before others
};

// The options of millrace-train (`millrace-train --help`).
// parse_train_options() checks the ranges; train() does not.
struct train_options {
  std::vector<std::string> shards;      // URLs for training
  std::vector<std::string> val_shards;  // URLs for validation; empty: none
  std::string val_index;                // of the validation shards: wids v1 JSON
  std::string raw;                      // a folder of class folders, instead of shards
  std::string index;                    // of the training shards: wids v1 JSON
  bool resync = false;                  // continue after damage within a shard
  std::string base;                     // of relative names: see with_base()
  bool allow_pipe = false;              // whether pipe: URLs may run commands
  std::string label = "auto";           // decode_options::label
  int batch_size = 32;                  // per rank
  int val_batch_size = 64;              // per rank
  int size = 224;                       // side of the images in pixels, 8 to 4096
  bool augment = true;                  // random crops and flips; else as in validation
  augment_options changes;              // further augmentations of training images
  mixing_options mixing;                // mixup and CutMix
  growing_size growing;                 // of image sizes by epoch
  image_options image;                  // how images are decoded
  double gpu_decode = 0;                // fraction of the JPEGs that nvJPEG decodes on the GPU
  std::string cache_decoded;            // bytes for decoded images: "8G"; empty: none are kept
  std::string cache_folder;             // where; empty: in memory
  int cache_resize = 0;                 // their shorter side; 0: full size
  double min_crop = 0.08;      // smallest area of a training crop, as a fraction of the image
  std::size_t shuffle = 5000;  // samples held; 0: none
  int lanes = 0;               // of all ranks; 0: shard_list_options::lanes
  std::uint64_t seed = 0;      // of order, augmentation and initial weights
  train_epochs mode = train_epochs::equal;  // epochs of training
  // The length of an epoch that is not one pass over the data: the next epoch continues where it
  // stopped. At most one of the two is set; 0: not given.
  std::int64_t epoch_batches = 0;  // per rank
  std::int64_t epoch_samples = 0;  // over all ranks
  std::int64_t epochs = 90;        // to train, at least 1
  std::int64_t max_steps = 0;      // stop after this many steps; 0: only `epochs` limits them
  error_policy bad_samples;        // of training and of validation
  int prefetch = 2;                // batches ready beyond the one in use

  std::string model = "resnet50";       // of known_models() or `own_models`, or a file
  std::vector<known_model> own_models;  // of the program
  int classes = 1000;                   // labels are 0 to classes - 1
  std::string init_weights;             // a state dict to start from
  bool zero_last_norm = false;          // model_terms::zero_last_norm
  optimizer_options optimizer;          // how weights follow from gradients
  schedule_options rate;                // the learning rate over the run
  int accumulate = 1;                   // parts of a batch, of which one at a time is in the model
  double ema_decay = 0;        // of the average that is validated and saved, below 1; 0: none
  double label_smoothing = 0;  // of the loss, 0 to 1

  std::string device = "auto";  // auto|cpu|cuda
  bool amp = true;              // bf16 autocast, on a GPU
  bool asks_for_amp = false;    // whether the command line does, for a notice
  bool tf32 = false;            // for float32, on a GPU
  bool deterministic = false;   // the same bits each time, on a GPU
  bool cudnn_benchmark = true;  // on a GPU
  bool graph = false;           // steps as CUDA graphs
  bool synthetic = false;       // batches that are made once, in place of data
  int data_rank = -1;           // of `data_world`, which this rank reads; -1: by its rank
  int data_world = 0;           // parts of the data, which ranks share; 0: each has its own
  int local_ranks = 0;          // to start on this host; 0: this process is a rank itself
  int restarts = 0;             // of those, after one has failed
  int timeout_s = 300;          // of a collective operation, after which a peer counts as lost

  std::string recipe;  // a file with values of options; empty: none
  arguments said;      // the command line with the recipe's values, as checkpoints record it
  arguments defaults;  // one without options

  std::string checkpoint_dir;         // written by rank 0; empty: none
  std::int64_t checkpoint_every = 0;  // steps; 0: only at the end of each epoch
  int keep = 2;                       // checkpoints of this run that are kept
  std::string resume;                 // "auto", or a checkpoint folder; empty: from the start
  bool overwrite = false;             // set another run's checkpoints aside, replace its files
  std::string metrics;                // JSON lines
  bool metrics_keys = false;          // with the keys of each step's samples
  std::string profile;                // a trace of a few steps of rank 0; empty: none
  double log_every_s = 10;            // seconds between log lines
  bool json = false;                  // an object on the last line of stdout
  std::string record_batches;  // writes every batch there, for comparisons with other programs
};

// Batches per rank of an epoch of given length; 0: an epoch is one pass over the data.
std::int64_t epoch_length(const train_options& o, int world_size);

}  // namespace millrace
