// For stages and sources of a program's own that await Asio's operations: `co_await this_executor`
// is the I/O thread's executor, and the token `no_throw` makes an operation give its error code and
// results. A program that includes this links millrace::asio, which says where Boost is, and how
// the library's Asio was compiled; elsewhere define BOOST_ASIO_SEPARATE_COMPILATION,
// BOOST_BEAST_SEPARATE_COMPILATION and BOOST_ASIO_NO_DEPRECATED.
#pragma once

#if !defined(BOOST_ASIO_SEPARATE_COMPILATION) || !defined(BOOST_BEAST_SEPARATE_COMPILATION) || \
    !defined(BOOST_ASIO_NO_DEPRECATED)
#error "link millrace::asio: its definitions say how the Asio in millrace was compiled"
#endif

#if defined(__GNUC__) && !defined(__clang__)
#error "GCC's symbols of Asio differ from those that Clang compiled in millrace: use Clang for this"
#endif

#include "engine/coroutines/async.h"
