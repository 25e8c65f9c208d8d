// The engine runs plans; a loader gives their items, the figures of the run and the counts of its
// samples. Also the log. Include it wherever a plan is run.
#pragma once

#include "engine/host/log.h"
#include "pipeline/plan/ledger.h"
#include "pipeline/run/compiled_plans.h"
#include "pipeline/run/engine.h"
#include "pipeline/run/run_stats.h"
