# cmake --install, and find_package(millrace) for what is installed.
include(CMakePackageConfigHelpers)
# What of train/ a program can link is static.
set(MILLRACE_TRAIN ${MILLRACE_TORCH})
if(BUILD_SHARED_LIBS)
  set(MILLRACE_TRAIN OFF)
endif()
install(CODE "set(MILLRACE_SOURCE \"${PROJECT_SOURCE_DIR}\")
set(MILLRACE_HEADERS \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/millrace\")
set(MILLRACE_TRAIN \"${MILLRACE_TRAIN}\")")
install(SCRIPT cmake/InstallHeaders.cmake)
install(EXPORT millrace NAMESPACE millrace:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millrace
  FILE millraceTargets.cmake)
string(REGEX MATCH "^[0-9]+" MILLRACE_COMPILER_MAJOR "${CMAKE_CXX_COMPILER_VERSION}")
configure_package_config_file(cmake/millraceConfig.cmake.in ${CMAKE_BINARY_DIR}/millraceConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/millraceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/millraceConfig.cmake ${CMAKE_BINARY_DIR}/millraceConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)
# Where it lies, it finds the rest of the installation from there.
file(RELATIVE_PATH MILLRACE_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
set(MILLRACE_PC_REQUIRES "fmt openssl zlib liburing libarchive libjpeg libhwy libpng libwebp")
set(MILLRACE_PC_LIBS "-lmillrace_tools -lmillrace_pipeline -lmillrace_io -lmillrace_engine")
if(BUILD_SHARED_LIBS)
  set(MILLRACE_PC_REQUIRES "")
  set(MILLRACE_PC_LIBS "-lmillrace")
endif()
configure_file(cmake/millrace.pc.in ${CMAKE_BINARY_DIR}/millrace.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/millrace.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
