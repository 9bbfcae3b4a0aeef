#!/bin/bash
@directives
# @{fields}scancel --batch --signal=TERM JOB has it save and stop.

again= stopped= run=   # whatever the environment has
trap '@{again}stop' USR1   # the time limit is near, or others need the nodes: save, continue later
trap stop TERM
stop() { stopped=yes; [ "$run" ] && kill -USR1 $run; }
watch() {   # a signal ends `wait`, not what is waited for; after one, nothing more is started
  if [ "$stopped" ]; then status=@resume; return; fi
  "$@" & run=$!
  [ "$stopped" ] && kill -USR1 $run
  while kill -0 $run 2>/dev/null; do wait $run; done
  wait $run; status=$?; run=
  [ $status -ge 0 ] || status=@resume   # bash forgets it where a signal comes just as the run ends
}

unset SLURM_EXPORT_ENV   # it keeps from srun's ranks what is set here, where jobs begin with no environment
export OMP_NUM_THREADS=@threads   # of a rank: libraries beside torch start one for each core else
@env
@body

@{requeue}exit $status
