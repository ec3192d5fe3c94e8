"""Launching: a plan of jobs, and adapters that hand it to a machine, a cluster or a cloud."""
