"""Command-line programs: flags are parsed here and nowhere else."""
