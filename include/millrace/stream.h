// For a stage of your own: running streams, the context of a run, coroutines and the pool, and the
// records of a saved state. Include it where a stage is a class (docs/stages.md).
#pragma once

#include "engine/awaitable.h"
#include "engine/condition.h"
#include "engine/offload.h"
#include "engine/scope.h"
#include "pipeline/plan.h"
#include "pipeline/records.h"
#include "pipeline/run_context.h"
#include "pipeline/stages/sample_stage.h"
#include "pipeline/stream.h"
