# Run by cmake --install: the interface, which is include/millrace/ and what that includes, by way of others. Headers name
# each other in full there, <millrace/engine/threads/runtime.h>, so that a program's own engine/threads/runtime.h cannot come in between.
# With them the sources that modules of Python compile themselves.
file(GLOB waiting RELATIVE ${MILLRACE_SOURCE} ${MILLRACE_SOURCE}/include/millrace/*.h ${MILLRACE_SOURCE}/python/binding/*.cc)
if(NOT MILLRACE_TRAIN)
  list(REMOVE_ITEM waiting include/millrace/train.h)
endif()
set(seen ${waiting})
while(waiting)
  list(POP_FRONT waiting header)
  file(READ ${MILLRACE_SOURCE}/${header} text)
  string(REGEX MATCHALL "#include \"[^\"]+" includes "${text}")
  list(TRANSFORM includes REPLACE "#include \"" "")
  list(TRANSFORM includes REPLACE "^millrace/" "include/millrace/")
  list(REMOVE_ITEM includes ${seen})
  list(APPEND waiting ${includes})
  list(APPEND seen ${includes})

  string(REGEX REPLACE "^include/millrace/" "" installed "${header}")
  get_filename_component(folder ${installed} DIRECTORY)
  file(INSTALL ${MILLRACE_SOURCE}/${header} DESTINATION ${MILLRACE_HEADERS}/${folder} TYPE FILE)
  string(REGEX REPLACE "#include \"(engine|io|pipeline|python|tools|train)/" "#include \"millrace/\\1/" full "${text}")
  file(WRITE "$ENV{DESTDIR}${MILLRACE_HEADERS}/${installed}" "${full}")
endwhile()
