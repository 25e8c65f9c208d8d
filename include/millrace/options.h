// Options of an engine, also from the environment: threads, memory and its allocators, and how
// files, servers, stores and caches are read; messages in a program's words for options; and the
// rank of this process, as its launcher says it. Include it for code that sets them and runs no
// plan.
#pragma once

#include "engine/job_place.h"
#include "engine/memory.h"
#include "engine/runtime.h"
#include "engine/settings.h"
#include "io/options.h"
#include "pipeline/engine_options.h"
#include "pipeline/option_words.h"
