// The templates that plans of samples, images and batches are made of, compiled once, in the
// library: a program compiles only the stages that it writes itself.
#pragma once

#include "pipeline/pixels/image.h"
#include "pipeline/plan/plan.h"
#include "pipeline/run/engine.h"
#include "pipeline/samples/sample.h"
#include "pipeline/shards/shards.h"

namespace millrace {

namespace detail {

extern template lane_plan<sample> append(lane_plan<shard_ref>, lane_stage<shard_ref, sample>);
extern template lane_plan<sample> append(lane_plan<sample>, lane_stage<sample, sample>);
extern template plan<sample> append(lane_plan<sample>, stage<sample, sample>);
extern template plan<image> append(lane_plan<sample>, stage<sample, image>);
extern template plan<sample> append(plan<sample>, stage<sample, sample>);
extern template plan<image> append(plan<sample>, stage<sample, image>);
extern template plan<image> append(plan<image>, stage<image, image>);
extern template plan<host_batch> append(plan<image>, stage<image, host_batch>);
extern template plan<host_batch> append(plan<host_batch>, stage<host_batch, host_batch>);

extern template class run<sample>;
extern template class run<image>;
extern template class run<host_batch>;

}  // namespace detail

}  // namespace millrace
