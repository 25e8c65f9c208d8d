// Saved positions: a state and its text form, states of several ranks merged, and the fingerprint
// by which ranks compare their plans. Include it to save and to resume.
#pragma once

#include "pipeline/redeal.h"
#include "pipeline/state.h"
