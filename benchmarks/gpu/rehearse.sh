#!/bin/bash
# bash benchmarks/gpu/rehearse.sh FOLDER: the parts of parts.sh with the builds that a GPU machine has (Python 3.12 and
# torch 2.11 for CUDA 13, which can be imported without a GPU), at toy sizes on pretended devices. Several GB.
# FOLDER/machine is what the machine has, FOLDER/wheels what travels there, FOLDER/out what comes back.
set -eu
mkdir -p "$1"
FOLDER=$(cd "$1" && pwd) MACHINE=$FOLDER/machine
cd "$(dirname "$0")/../.."
for PYTHON in python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin/python3; do
  "$PYTHON" -c "" 2> /dev/null && break
done
[ -x "$MACHINE/bin/python" ] || "$PYTHON" -m venv "$MACHINE"
PIP=("$MACHINE/bin/python" -m pip install -q --no-compile --disable-pip-version-check)
"${PIP[@]}" torch==2.11.0 torchvision==0.26.0 numpy==2.5.2
"${PIP[@]}" --only-binary=:all: h5py scipy scikit-learn matplotlib rich pillow
"${PIP[@]}" pytest hypothesis pytest-timeout pytest-xdist attrs absl-py tqdm packaging
"$MACHINE/bin/python" -c "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"
[ -d "$FOLDER/wheels" ] || "$MACHINE/bin/python" benchmarks/gpu/wheels.py "$FOLDER/wheels" --python 3.12
export PATH=$MACHINE/bin:$PATH OUT=$FOLDER/out
unset PYTHONPATH
for PART in right fast more; do
  FOLDER=$FOLDER/work bash benchmarks/gpu/parts.sh $PART "$FOLDER/wheels" --pretend > "$FOLDER/$PART.log" 2>&1 ||
    { tail -30 "$FOLDER/$PART.log"; echo "part $PART fails: $FOLDER/$PART.log"; exit 1; }
  echo "part $PART: done"
done
