# An imported target millrace_torch from a LibTorch >= 2.6: the one that Torch_DIR names, else the wheel in the venv of
# ./setup. find_package(Torch) is not called: with a CUDA wheel it insists on a CUDA compiler, and nothing here is CUDA
# C++ (docs/decisions.md, 6).
if(Torch_DIR)
  set(MILLRACE_TORCH_ROOT ${Torch_DIR}/../../..)
else()
  file(GLOB MILLRACE_TORCH_ROOT ${PROJECT_SOURCE_DIR}/build/venv/lib/python3*/site-packages/torch)
endif()
find_path(MILLRACE_TORCH_INCLUDE torch/csrc/distributed/c10d/reducer.hpp HINTS ${MILLRACE_TORCH_ROOT}/include
  NO_DEFAULT_PATH)
find_library(MILLRACE_TORCH_CPU torch_cpu HINTS ${MILLRACE_TORCH_ROOT}/lib NO_DEFAULT_PATH)
find_library(MILLRACE_C10 c10 HINTS ${MILLRACE_TORCH_ROOT}/lib NO_DEFAULT_PATH)
find_library(MILLRACE_TORCH_CUDA torch_cuda HINTS ${MILLRACE_TORCH_ROOT}/lib NO_DEFAULT_PATH)
find_library(MILLRACE_C10_CUDA c10_cuda HINTS ${MILLRACE_TORCH_ROOT}/lib NO_DEFAULT_PATH)
if(NOT MILLRACE_TORCH_INCLUDE OR NOT MILLRACE_TORCH_CPU OR NOT MILLRACE_C10)
  message(FATAL_ERROR "LibTorch was not found. Run ./setup, or name one with -DTorch_DIR=.../share/cmake/Torch, or "
    "build without training: -DMILLRACE_TORCH=OFF.")
endif()

find_file(MILLRACE_TORCH_VERSION_HEADER NAMES torch/headeronly/version.h torch/csrc/api/include/torch/version.h
  HINTS ${MILLRACE_TORCH_INCLUDE} NO_DEFAULT_PATH)
file(STRINGS ${MILLRACE_TORCH_VERSION_HEADER} MILLRACE_TORCH_VERSION_LINES
  REGEX "define TORCH_VERSION_(MAJOR|MINOR) [0-9]+")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" MILLRACE_TORCH_VERSION
  "${MILLRACE_TORCH_VERSION_LINES}")
if(MILLRACE_TORCH_VERSION VERSION_LESS 2.6)
  message(FATAL_ERROR "LibTorch ${MILLRACE_TORCH_VERSION} in ${MILLRACE_TORCH_ROOT} is too old: 2.6 or newer is needed.")
endif()

find_path(MILLRACE_GLOO_INCLUDE gloo/transport/device.h)
if(NOT MILLRACE_GLOO_INCLUDE)
  message(FATAL_ERROR "The headers of Gloo were not found (the torch wheel leaves them out): install libgloo-dev.")
endif()

add_library(millrace_torch INTERFACE)
target_include_directories(millrace_torch SYSTEM INTERFACE
  ${MILLRACE_TORCH_INCLUDE} ${MILLRACE_TORCH_INCLUDE}/torch/csrc/api/include ${MILLRACE_GLOO_INCLUDE})
# The wheel brings headers of another fmt than the system's library: header-only, the two do not meet.
target_compile_definitions(millrace_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC FMT_HEADER_ONLY)
target_link_libraries(millrace_torch INTERFACE ${MILLRACE_TORCH_CPU} ${MILLRACE_C10})

# NCCL and pinned memory, where the wheel is a CUDA one and its headers (or a toolkit's) are there.
find_path(MILLRACE_NCCL_INCLUDE nccl.h HINTS ${MILLRACE_TORCH_ROOT}/../nvidia/nccl/include)
file(GLOB MILLRACE_CUDA_HINTS ${MILLRACE_TORCH_ROOT}/../nvidia/cu*/include)
find_path(MILLRACE_CUDA_INCLUDE cuda_runtime_api.h HINTS ${MILLRACE_CUDA_HINTS} /usr/local/cuda/include)
# Of other packages than the rest: nvidia-cuda-crt, nvidia-cuda-cccl.
find_path(MILLRACE_CUDA_CRT_INCLUDE crt/host_config.h HINTS ${MILLRACE_CUDA_INCLUDE} ${MILLRACE_CUDA_HINTS} /usr/local/cuda/include)
find_path(MILLRACE_CUDA_CCCL_INCLUDE nv/target
  HINTS ${MILLRACE_CUDA_INCLUDE} ${MILLRACE_CUDA_HINTS} /usr/local/cuda/include PATH_SUFFIXES . cccl)
if(MILLRACE_TORCH_CUDA AND MILLRACE_NCCL_INCLUDE AND MILLRACE_CUDA_INCLUDE AND MILLRACE_CUDA_CRT_INCLUDE AND
    MILLRACE_CUDA_CCCL_INCLUDE)
  set(MILLRACE_CUDA ON)
  target_include_directories(millrace_torch SYSTEM INTERFACE
    ${MILLRACE_NCCL_INCLUDE} ${MILLRACE_CUDA_INCLUDE} ${MILLRACE_CUDA_CRT_INCLUDE} ${MILLRACE_CUDA_CCCL_INCLUDE})
  target_compile_definitions(millrace_torch INTERFACE USE_C10D_NCCL MILLRACE_CUDA)
  # Kept although nothing refers to it by name: loading it registers the CUDA backend.
  target_link_libraries(millrace_torch INTERFACE
    -Wl,--no-as-needed ${MILLRACE_TORCH_CUDA} ${MILLRACE_C10_CUDA} -Wl,--as-needed)
else()
  set(MILLRACE_CUDA OFF)
  if(MILLRACE_TORCH_CUDA)
    message(WARNING "This LibTorch is one for GPUs, but training will use the CPU: headers were not found "
      "(nccl.h: ${MILLRACE_NCCL_INCLUDE}; cuda_runtime_api.h: ${MILLRACE_CUDA_INCLUDE}; crt/host_config.h: "
      "${MILLRACE_CUDA_CRT_INCLUDE}; nv/target: ${MILLRACE_CUDA_CCCL_INCLUDE}). ./setup installs them; elsewhere they are in the CUDA toolkit, or in the packages "
      "nvidia-nccl, nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl of PyPI")
  endif()
endif()
# The library itself is found at run time.
if(MILLRACE_NVJPEG)
  find_path(MILLRACE_NVJPEG_INCLUDE nvjpeg.h HINTS ${MILLRACE_CUDA_HINTS} /usr/local/cuda/include)
  if(NOT MILLRACE_NVJPEG_INCLUDE OR NOT MILLRACE_CUDA_INCLUDE)
    message(FATAL_ERROR "MILLRACE_NVJPEG is on, and nvjpeg.h or cuda_runtime_api.h was not found: install the CUDA "
      "toolkit (the packages nvidia-nvjpeg and nvidia-cuda-runtime in build/venv serve), or name the folders with "
      "-DMILLRACE_NVJPEG_INCLUDE=... and -DMILLRACE_CUDA_INCLUDE=...")
  endif()
endif()
message(STATUS "LibTorch ${MILLRACE_TORCH_VERSION} in ${MILLRACE_TORCH_ROOT}, CUDA: ${MILLRACE_CUDA}")
