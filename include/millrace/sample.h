// Samples, their fields, and the values in them: text, numbers, JSON, arrays. Include it for
// functions of samples, which run no plan themselves.
#pragma once

#include "pipeline/fields.h"
#include "pipeline/sample.h"
