#!/usr/bin/env bash
# On a machine with a GPU: builds against the LibTorch that is there, runs the tests that need a GPU, and measures training beside
# PyTorch, within 30 minutes and without network. On a machine without one it says so.
#
#   bench/gpu.sh [FOLDER]    where results go: gpu.json, gpu.txt, tests.txt, trace.json (gpu-results)
#
# BIN: a folder with millrace, millrace-train and train_tests that were built elsewhere against the same LibTorch: builds nothing.
# ROUNDS: how often each comparison is made (3).
# PYTHON: an interpreter with torch and torchvision, for LibTorch and as the peer (build/venv/bin/python, else python3).
set -euo pipefail
out=$(realpath -m "${1:-gpu-results}")
cd "$(dirname "$0")/.."

if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  echo "gpu: there is no GPU here (nvidia-smi lists none): nothing to measure"
  exit 0
fi
python=${PYTHON:-build/venv/bin/python}
[ -x "$python" ] || python=$(command -v python3)
mkdir -p "$out"
nvidia-smi -L | tee "$out/gpu.txt"

"$python" - <<'SAY' || { echo "gpu: $python has no torch that finds the GPU: set PYTHON" >&2; exit 1; }
import torch
assert torch.cuda.is_available()
SAY
bin=${BIN:-$PWD/build/release/bin}
if [ -z "${BIN:-}" ]; then
  torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
  cmake --preset release -DMILLRACE_TESTS=ON -DMILLRACE_TORCH=ON -DTorch_DIR="$torch/share/cmake/Torch" >"$out/configure.txt"
  cmake --build --preset release --target millrace millrace-train train_tests >"$out/build.txt"
fi

status=0
"$bin/train_tests" --gtest_filter='*Gpu*' >"$out/tests.txt" 2>&1 || status=$?
MILLRACE_TEST_BIN=$bin "$python" tests/train/gpu_test.py >>"$out/tests.txt" 2>&1 || status=$?
# The Python package, where it is installed.
if "$python" -c 'import millrace' 2>/dev/null; then "$python" tests/python/device_test.py >>"$out/tests.txt" 2>&1 || status=$?; fi
[ $status = 0 ] || { tail -n 50 "$out/tests.txt"; echo "gpu: tests failed: see $out/tests.txt" >&2; }

"$python" bench/training.py --bin "$bin" --rounds "${ROUNDS:-3}" --json "$out/gpu.json" --trace "$out/trace.json" | tee -a "$out/gpu.txt"
exit $status
