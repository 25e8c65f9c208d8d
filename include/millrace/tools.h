// Functions that do what the program millrace does to shards: write, pack, verify and index them. A
// program that includes this links millrace::tools. Functions that take an engine need
// <millrace/engine.h> as well; <millrace/plan.h> finds lists of shards.
#pragma once

#include "tools/index/create_index.h"
#include "tools/index/update_index.h"
#include "tools/inspect/verify.h"
#include "tools/jobs/job_progress.h"
#include "tools/write/pack.h"
#include "tools/write/shard_writer.h"
