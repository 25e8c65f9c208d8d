# Run by cmake --install: the headers in MILLRACE_HEADERS include each other by their full names,
# <millrace/engine/runtime.h>, so that a program's own engine/runtime.h cannot come in between.
file(GLOB_RECURSE headers "$ENV{DESTDIR}${MILLRACE_HEADERS}/*.h")
foreach(header IN LISTS headers)
  file(READ "${header}" text)
  string(REGEX REPLACE "#include \"(engine|io|pipeline|train)/" "#include \"millrace/\\1/" full "${text}")
  if(NOT full STREQUAL text)
    file(WRITE "${header}" "${full}")
  endif()
endforeach()
