// Saved positions: a state and its text form, states of several ranks merged, the fingerprint by
// which ranks compare their plans, and states moved to another epoch or over some samples. Include
// it to save and to resume.
#pragma once

#include "pipeline/shards/edited_state.h"
#include "pipeline/shards/redeal.h"
#include "pipeline/state/merged.h"
#include "pipeline/state/state.h"
