// What the program millrace does to shards, as functions: writing, packing, verifying and indexing
// them. A program that includes this links millrace::tools. Those that take an engine need
// <millrace/engine.h> as well; lists of shards are found by <millrace/plan.h>.
#pragma once

#include "tools/create_index.h"
#include "tools/job_progress.h"
#include "tools/pack.h"
#include "tools/shard_writer.h"
#include "tools/update_index.h"
#include "tools/verify.h"
