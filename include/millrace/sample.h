// Samples, their fields, and the values in them: text, numbers, JSON, arrays. Include it for
// functions of samples, which run no plan themselves.
#pragma once

#include "pipeline/samples/fields.h"
#include "pipeline/samples/sample.h"
