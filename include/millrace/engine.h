// The engine runs plans; a loader gives their items, the figures of the run and the counts of its
// samples. Also the log. Include it wherever a plan is run.
#pragma once

#include "engine/log.h"
#include "pipeline/compiled_plans.h"
#include "pipeline/engine.h"
#include "pipeline/ledger.h"
#include "pipeline/run_stats.h"
