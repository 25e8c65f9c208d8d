// For a stage of your own: running streams, the context of a run, coroutines and the pool, and the
// records of a saved state. Include it where a stage is a class (docs/stages.md).
#pragma once

#include "engine/coroutines/awaitable.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/scope.h"
#include "engine/threads/offload.h"
#include "pipeline/plan/plan.h"
#include "pipeline/plan/run_context.h"
#include "pipeline/plan/stream.h"
#include "pipeline/stages/sample_stage.h"
#include "pipeline/state/records.h"
