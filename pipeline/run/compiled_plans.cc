#include "pipeline/run/compiled_plans.h"

#include "pipeline/stages/on_error.h"
#include "pipeline/stages/prefetch.h"

namespace millrace {

namespace detail {

template lane_plan<sample> append(lane_plan<shard_ref>, lane_stage<shard_ref, sample>);
template lane_plan<sample> append(lane_plan<sample>, lane_stage<sample, sample>);
template plan<sample> append(lane_plan<sample>, stage<sample, sample>);
template plan<image> append(lane_plan<sample>, stage<sample, image>);
template plan<sample> append(plan<sample>, stage<sample, sample>);
template plan<image> append(plan<sample>, stage<sample, image>);
template plan<image> append(plan<image>, stage<image, image>);
template plan<host_batch> append(plan<image>, stage<image, host_batch>);
template plan<host_batch> append(plan<host_batch>, stage<host_batch, host_batch>);

template class run<sample>;
template class run<image>;
template class run<host_batch>;

}  // namespace detail

template stage<sample, sample> on_error::for_items() const;
template stage<image, image> on_error::for_items() const;
template stage<host_batch, host_batch> on_error::for_items() const;
template stage<sample, sample> prefetch::for_items() const;
template stage<image, image> prefetch::for_items() const;
template stage<host_batch, host_batch> prefetch::for_items() const;

}  // namespace millrace
