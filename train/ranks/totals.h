#pragma once

#include "pipeline/plan/ledger.h"
#include "train/ranks/distributed.h"

namespace millrace {

// Called by all ranks: the sums of the counts over all of them, the same on every rank; of the
// lists and the epochs, this rank's are kept.
ledger sum_over_ranks(ledger mine, process_group& group);

}  // namespace millrace
