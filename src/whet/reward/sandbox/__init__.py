"""Runs code nobody has read: separate processes, everything the kernel offers to confine them, warm workers.

`Sandbox.run` takes a batch of jobs (`ProgramJob`, `UnitTestJob`) and gives their results. A `SandboxSession` is a
process that takes calls one by one and keeps its state. `active_protections` tries
every protection on this machine and says which hold. A machine that isolates too little runs no job
(`require_isolation`).
"""
