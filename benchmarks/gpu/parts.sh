#!/bin/bash
# bash benchmarks/gpu/parts.sh PART [WHEELS] [--pretend] [--again METHOD ...]: one part of a quarter of an hour on a
# machine with a GPU. It works in build/gpu (or $FOLDER), and leaves one archive and the end of its log in $OUT.
#   right  what has to hold, all at once: facts, a user's first run, bits, failures, recovery, every method    4 minutes
#   fast   what is measured, one after the other: the first time, engines and precisions beside naive loops, ranks    9
#   more   if there is time left: curves, lanes and stacks, peers, layouts with their slowest kernels    9 minutes
# WHEELS: what wheels.py has fetched (default .whl). --pretend: toy sizes on the CPU, which show that the part works.
# --again: methods that failed in `right` and were mended; they run first. DATA: Fashion-MNIST's HDF5 file.
set -u
PART=$1 WHEELS=.whl PRETEND="" AGAIN=()
shift
while [ $# -gt 0 ]; do
  case $1 in
    --pretend) PRETEND=--pretend ;;
    --again) shift; AGAIN=("$@"); break ;;
    *) WHEELS=$1 ;;
  esac
  shift
done
FOLDER=${FOLDER:-$PWD/build/gpu} DATA=${DATA:-data/fashion_mnist.h5}
OUT=${OUT:-$FOLDER/out} PYTHON=$FOLDER/env/bin/python
mkdir -p "$FOLDER" "$OUT"
export PYTHONUNBUFFERED=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
export PATH=$PATH:/usr/local/nvidia/bin:/usr/local/cuda/bin
MODELS="resnet18 shufflenetv2 googlenet alexnet"
FAILED=0

alone() { # NAME SCRIPT [OPTION ...]: one step; its files lie in $FOLDER/NAME
  echo "== $* at $SECONDS s"
  "$PYTHON" "benchmarks/gpu/$2" "$FOLDER/$1" "${@:3}" $PRETEND || FAILED=1
  keep
}

keep() ( # what there is so far, for the part may be cut short; not the checkpoints, which are large
  cd "$FOLDER"
  local part=kept-$BASHPID
  find . \( -path ./env -o -path ./out -o -name checkpoints \) -prune -o -type f \
    -regex '.*\.\(json\|log\|txt\|h5\)' -print0 | tar czf "$part" --null -T - 2> /dev/null
  mv "$part" "$OUT/$PART.tgz" # tar complains of logs that grow
)

beside() { # NAME SCRIPT [OPTION ...]: the same beside others
  mkdir -p "$FOLDER/$1"
  rm -f "$FOLDER/$1/failed"
  { "$PYTHON" "benchmarks/gpu/$2" "$FOLDER/$1" "${@:3}" $PRETEND || touch "$FOLDER/$1/failed"; } \
    > "$FOLDER/$1/log.txt" 2>&1 &
  PROCESSES+=($!)
  BESIDE+=("$1")
}

together() { # wait for all steps that run beside each other, and say how they ended
  wait "${PROCESSES[@]}"
  for name in "${BESIDE[@]}"; do
    echo "== $name: $(tail -n 1 "$FOLDER/$name/log.txt")"
    [ -e "$FOLDER/$name/failed" ] && { FAILED=1; grep -ah FAILS "$FOLDER/$name/log.txt"; }
  done
}

facts() {
  date; uname -a; lscpu | grep -E 'Model name|^CPU\(s\)|MHz|L3'; free -g; df -h / /dev/shm; ls /dev/nvidia*
  nvidia-smi; command -v nvidia-cuda-mps-control mpirun; ulimit -l -n
}

right() {
  facts > "$FOLDER/facts.txt" 2>&1
  beside machine step1_machine.py --minutes 3
  for model in $MODELS; do
    beside "bits-$model" step2_bits.py --minutes 3 --models $model
  done
  beside failures step3_failures.py --minutes 3
  beside recovery step8_recovery.py --minutes 3
  local shares names i=0
  shares=$("$PYTHON" -c "from hpcfed.config.methods import ALGORITHMS as A
for i in range(9): print(*list(A)[i::9])")
  while read -r names; do
    [ -n "$PRETEND" ] && names=${names%% *}
    beside "methods-$i" step4_methods.py --minutes 3 --only $names
    i=$((i + 1))
  done <<< "$shares"
  together
}

fast() {
  if [ ${#AGAIN[@]} -gt 0 ]; then
    alone again step4_methods.py --minutes 1 --only "${AGAIN[@]}"
  fi
  alone first step9_first.py --minutes 1
  alone paper step6_headline.py --minutes 4.5 --parts paper
  alone packing step7_packing.py --minutes 4
}

more() {
  alone curves curves.py --minutes 2 --data "$DATA"
  alone lanes lanes.py --minutes 2.5
  alone peers step6_headline.py --minutes 1.5 --parts peers
  alone layouts step5_layouts.py --minutes 3
}

main() {
  if [ ! -x "$PYTHON" ]; then
    python3 benchmarks/gpu/install.py "$FOLDER" --wheels "$WHEELS" $PRETEND || { FAILED=1; return 1; }
  fi
  BESIDE=() PROCESSES=()
  (while sleep 15; do keep; done) > "$FOLDER/keep.txt" 2>&1 &
  trap "kill $!" EXIT
  case $PART in
    right | fast | more) $PART ;;
    *) echo "there is no part $PART"; FAILED=2 ;;
  esac
  echo "== $PART: $SECONDS s"
  return $FAILED
}

set -o pipefail
main 2>&1 | tee "$FOLDER/$PART.log"
STATUS=$?
keep
tail -c 6000 "$FOLDER/$PART.log" > "$OUT/$PART.log"
exit $STATUS
