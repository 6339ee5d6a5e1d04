#!/usr/bin/env bash
# Parity tests of one cell of each kind on an emulated ARM64 (qemu), on Debian as root: bash benchmarks/arm64.sh [FOLDER] [pytest arguments]
# Needs apt-get (qemu-user, debootstrap), pip and 2 GB in FOLDER (default /tmp/gatedrnn-arm64), which is kept; takes half an hour.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-/tmp/gatedrnn-arm64}
root=$folder/root
mkdir -p "$root" "$folder/site"

packages="python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 libstdc++6 libgomp1 zlib1g libexpat1
libffi8 libssl3 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libncursesw6 libtinfo6 libreadline8 libdb5.3 libcrypt1 media-types"
if [ ! -x "$root/usr/bin/python3.11" ]; then
    command -v qemu-aarch64 debootstrap > /dev/null || { apt-get update -q; apt-get install -qy qemu-user debootstrap; }
    debootstrap --arch=arm64 --variant=minbase --include=python3,libgomp1 --download-only bookworm "$root"
    mkdir -p "$root"/usr/{bin,lib,sbin}
    for name in bin lib sbin; do ln -sfn "usr/$name" "$root/$name"; done
    for name in $packages; do
        dpkg-deb --fsys-tarfile "$root"/var/cache/apt/archives/"$name"_*.deb | tar -x --keep-directory-symlink -C "$root"
    done
fi

# torch 2.10.0 is the last release whose wheel for ARM64 is without CUDA
wheels="torch==2.10.0 numpy==2.4.6 numba==0.68.1 llvmlite==0.50.0 pytest==9.2.0 hypothesis==6.170.15 pyyaml==6.0.3
filelock fsspec iniconfig jinja2 markupsafe mpmath networkx packaging pluggy pygments sortedcontainers sympy typing-extensions"
if [ ! -d "$folder/site/torch" ]; then
    platforms=$(printf -- '--platform %s ' manylinux_2_28_aarch64 manylinux_2_27_aarch64 manylinux_2_17_aarch64 manylinux2014_aarch64 any)
    # shellcheck disable=SC2086 - lists of words
    .venv/bin/python -m pip install -q --target "$folder/site" $platforms --python-version 3.11 --only-binary=:all: --no-deps $wheels
fi

tests=("${@:2}")
if [ ${#tests[@]} = 0 ]; then
    for cell in rnn-tanh lstm peephole coupled gru-after gru-before onlstm-chunks; do
        tests+=("tests/parity/test_cpu_backend.py::test_float32_errs_no_more_than_the_reference[long-1.0-$cell]"
            "tests/parity/test_cpu_backend.py::test_values_and_gradients_equal_the_reference_in_float64[odd-ragged-both-$cell]")
    done
fi
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$folder/site:$PWD NUMBA_CACHE_DIR=$folder/cache OMP_NUM_THREADS=1
exec qemu-aarch64 -L "$root" "$root/usr/bin/python3.11" -m pytest -v -p no:cacheprovider --durations=0 "${tests[@]}"
