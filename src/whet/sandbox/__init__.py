"""Runs code nobody has read: separate processes, everything the kernel offers to confine them, warm workers.

`Sandbox.run` takes a batch of jobs (`Program`, `Exam`) and gives their outcomes. `active_protections` tries every
protection on this machine and says which hold.
"""

from whet.sandbox.job import Exam, Job, Outcome, Program
from whet.sandbox.limits import Limits
from whet.sandbox.pool import Sandbox, shared_sandbox
from whet.sandbox.protections import Protections, active_protections

__all__ = [
    "Exam",
    "Job",
    "Limits",
    "Outcome",
    "Program",
    "Protections",
    "Sandbox",
    "active_protections",
    "shared_sandbox",
]
