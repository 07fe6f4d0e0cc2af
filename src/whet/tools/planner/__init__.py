"""What a run will take before it starts: the memory of every copy, seconds per step, and whole clusters by simulation.

Pure arithmetic on shapes: imports no torch, reads no weights. What it knows of whet's own allocations is
checked against real peaks by `benchmarks/plan_check.py`; rates come from results files (`whet.tools.planner.seconds`).
"""
