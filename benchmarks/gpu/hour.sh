#!/bin/bash
# bash benchmarks/gpu/hour.sh PART [WHEELS] [--pretend]: one part (1 to 5) of an hour on a machine with a GPU, each
# under ten minutes. It works in build/hour (or $FOLDER), and leaves one archive and the end of its log in $OUT.
#   1  facts, failures, bits       2  all methods in six processes, lanes and stacks     3  packing: ranks, MPS, tf32
#   4  headline beside peers and the naive loop     5  layouts with their slowest kernels, recovery, learning curves
# WHEELS: what wheels.py has fetched (default .whl). --pretend: toy sizes on the CPU, which show that the part works.
# If bits or imports fail in part 1: stop, mend, come again.
set -u
PART=$1 WHEELS=.whl PRETEND=""
for word in "${@:2}"; do [ "$word" = --pretend ] && PRETEND=--pretend || WHEELS=$word; done
FOLDER=${FOLDER:-$PWD/build/hour}
OUT=${OUT:-$FOLDER/out} PYTHON=$FOLDER/env/bin/python
mkdir -p "$FOLDER" "$OUT"
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PATH=$PATH:/usr/local/nvidia/bin:/usr/local/cuda/bin
FAILED=0

finish() {
  tar czf "$OUT/part$PART.tgz" -C "$FOLDER" $(cd "$FOLDER" && ls | grep -E '\.(json|log|txt)$')
  tail -c 4000 "$FOLDER/part$PART.log" > "$OUT/part$PART.log"
}

step() { # SCRIPT [OPTION ...]: one step of this folder; its JSON file lies in $FOLDER
  echo "== $*"
  "$PYTHON" "benchmarks/gpu/$1" "$FOLDER" "${@:2}" $PRETEND || FAILED=1
}

facts() {
  {
    date; uname -a; lscpu | grep -E 'Model name|^CPU\(s\)|MHz|L3'; free -g; df -h / /dev/shm; ls /dev/nvidia*
    nvidia-smi; command -v nvidia-cuda-mps-control mpirun; ulimit -l -n
  } > "$FOLDER/facts.txt" 2>&1
  cat "$FOLDER/facts.txt"
}

methods() { # in six processes, whose files do not meet; then the lanes
  local names
  for i in 0 1 2 3 4 5; do
    names=$("$PYTHON" -c "from hpcfed.config.methods import ALGORITHMS; print(*list(ALGORITHMS)[$i::6])")
    [ -n "$PRETEND" ] && names=${names%% *}
    "$PYTHON" benchmarks/gpu/step4_methods.py "$FOLDER/methods$i" --minutes 5 --only $names $PRETEND \
      > "$FOLDER/methods$i.log" 2>&1 || touch "$FOLDER/methods$i.failed" &
  done
  wait
  for i in 0 1 2 3 4 5; do
    cp "$FOLDER/methods$i/step4_methods.json" "$FOLDER/methods$i.json"
    [ -e "$FOLDER/methods$i.failed" ] && { FAILED=1; grep -h FAILS "$FOLDER/methods$i.log"; }
  done
}

main() {
  if [ ! -x "$PYTHON" ]; then
    python3 benchmarks/gpu/step1_install.py "$FOLDER" --wheels "$WHEELS" $PRETEND || FAILED=1
  fi
  case $PART in
    1) facts; step step3_failures.py --minutes 2; step step2_bits.py --minutes 5 ;;
    2) methods; step lanes.py --minutes 4 ;;
    3) step step7_packing.py --minutes 9.2 ;;
    4) step step6_headline.py --minutes 9.2 ;;
    5) step step5_layouts.py --minutes 2.5; step step8_recovery.py --minutes 3; step curves.py --minutes 3.5 ;;
    *) echo "there is no part $PART"; FAILED=2 ;;
  esac
  return $FAILED
}

set -o pipefail
main 2>&1 | tee "$FOLDER/part$PART.log"
STATUS=$?
finish
exit $STATUS
