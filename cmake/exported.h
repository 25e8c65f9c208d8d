// The first thing that is compiled of libmillrace.so, with -fvisibility=hidden: the library exports
// what the interface's headers declare, and nothing else. Not installed.
#pragma once

#pragma GCC visibility push(default)
#include <millrace/asio.h>
#include <millrace/millrace.h>
#include <millrace/version.h>
#pragma GCC visibility pop
