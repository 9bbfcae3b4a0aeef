if [ "$again" ] && [ $status != @done ] && [ $status != @wrong ]; then
  if [ "${SLURM_RESTART_COUNT:-0}" -lt @restarts ]; then scontrol requeue @job
  else echo "hpcfed: run.max_restarts = @restarts: not queued again; sbatch continues it" >&2; fi
fi
