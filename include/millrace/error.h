// Errors: their kinds, results of functions that may fail, and the exception that reaches a
// program. Include it for code that handles only errors: all other headers include it.
#pragma once

#include "engine/base/error.h"
#include "engine/base/result.h"
