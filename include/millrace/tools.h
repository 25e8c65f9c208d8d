// Functions that do what the program millrace does to shards: write, pack, verify and index them. A
// program that includes this links millrace::tools. Functions that take an engine need
// <millrace/engine.h> as well; <millrace/plan.h> finds lists of shards.
#pragma once

#include "tools/create_index.h"
#include "tools/job_progress.h"
#include "tools/pack.h"
#include "tools/shard_writer.h"
#include "tools/update_index.h"
#include "tools/verify.h"
