// All of the loader: the sum of the headers of its topics, which can also be included alone. Begin
// with this one. Training is in <millrace/train.h>.
#pragma once

#include <millrace/engine.h>
#include <millrace/error.h>
#include <millrace/formats.h>
#include <millrace/images.h>
#include <millrace/options.h>
#include <millrace/plan.h>
#include <millrace/random_access.h>
#include <millrace/sample.h>
#include <millrace/sources.h>
#include <millrace/stages.h>
#include <millrace/state.h>
#include <millrace/stream.h>
