// For a source of your own: how the bytes of a URL are read, and the registry of URL schemes.
// Include it where engine_options::add_sources is set.
#pragma once

#include "engine/memory/bytes.h"
#include "engine/memory/memory.h"
#include "engine/threads/offload.h"
#include "io/names/url.h"
#include "io/registry.h"
#include "io/source.h"
