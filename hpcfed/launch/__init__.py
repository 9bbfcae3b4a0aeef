"""Starting and planning of runs: Slurm, sweeps, doctor, plan, and the commands of `hpcfed`."""
