"""Runs code nobody has read: separate processes, everything the kernel offers to confine them, warm workers.

`Sandbox.run` takes a batch of jobs (`ProgramJob`, `UnitTestJob`) and gives their results. A `SandboxSession` is a
process that takes calls one by one and keeps its state. `active_protections` tries
every protection on this machine and says which hold. A machine that isolates too little runs no job
(`require_isolation`).
"""

from whet.reward.sandbox.job import Job, JobResult, Limits, ProgramJob, UnitTestJob
from whet.reward.sandbox.pool import Sandbox, shared_sandbox
from whet.reward.sandbox.protections import Protections, active_protections
from whet.reward.sandbox.requirement import require_isolation
from whet.reward.sandbox.session import CallResult, SandboxSession, SessionOver

__all__ = [
    "UnitTestJob",
    "CallResult",
    "Job",
    "Limits",
    "JobResult",
    "ProgramJob",
    "Protections",
    "Sandbox",
    "SandboxSession",
    "SessionOver",
    "active_protections",
    "require_isolation",
    "shared_sandbox",
]
