// Single samples by number: the index of a list of shards, samples read by it, and the orders in
// which ranks draw numbers. Include it for tools and evaluation, instead of a plan.
#pragma once

#include "pipeline/shards/shard_index.h"
#include "pipeline/wids/indexed_dataset.h"
#include "pipeline/wids/read_index.h"
#include "pipeline/wids/samplers.h"
