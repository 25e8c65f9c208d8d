// Formats of shards: tar archives, class folders read without shards, and the classes from which a
// format of your own is derived. Include it for read_samples() and raw_samples().
#pragma once

#include "pipeline/formats/class_folders.h"
#include "pipeline/formats/sample_source.h"
#include "pipeline/formats/tar_samples.h"
#include "pipeline/formats/untar_options.h"
