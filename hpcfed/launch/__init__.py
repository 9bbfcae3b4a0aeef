"""What starts and judges runs: Slurm, sweeps, doctor, plan, and the commands of `hpcfed`."""
