// Plans, and how they begin: the list of shards, the order in which a rank reads it, and the
// samples of tar archives. Include it where a plan is made or passed on; later stages are in
// <millrace/stages.h> and <millrace/images.h>.
#pragma once

#include "io/names/shard_spec.h"
#include "io/shard_urls.h"
#include "pipeline/formats/group.h"
#include "pipeline/formats/untar.h"
#include "pipeline/plan/plan.h"
#include "pipeline/shards/shards.h"
#include "pipeline/stages/lanes.h"
