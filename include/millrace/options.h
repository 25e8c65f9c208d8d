// Options of an engine, also from the environment: threads, memory and its allocators, and how
// files, servers, stores and caches are read; messages in a program's words for options; and the
// rank of this process, as its launcher says it. Include it for code that sets them and runs no
// plan.
#pragma once

#include "engine/base/settings.h"
#include "engine/base/units.h"
#include "engine/host/host.h"
#include "engine/host/job_place.h"
#include "engine/memory/memory.h"
#include "engine/threads/runtime.h"
#include "io/options.h"
#include "pipeline/run/engine_options.h"
#include "pipeline/run/option_words.h"
