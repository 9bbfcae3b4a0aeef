#!/bin/bash
# bash benchmarks/gpu/rehearse.sh FOLDER: an environment with the builds of a GPU machine, Python 3.12 and
# torch 2.11 for CUDA 13, which can be imported without a GPU. Several GB; there is nothing of hpcfed's own in it.
set -eu
for PYTHON in python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3; do
  "$PYTHON" -c "" 2> /dev/null && break
done
[ -x "$1/bin/python" ] || "$PYTHON" -m venv "$1"
"$1/bin/python" -m pip install -q --no-compile torch==2.11.0 torchvision==0.26.0 numpy==2.5.2
"$1/bin/python" -m pip install -q --no-compile --only-binary=:all: h5py scipy scikit-learn matplotlib rich pillow
"$1/bin/python" -m pip install -q --no-compile pytest hypothesis pytest-timeout pytest-xdist
"$1/bin/python" -c "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"
