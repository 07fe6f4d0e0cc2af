"""Peers, each in a folder and a process of its own, so that versions never mix with whet's or with each other's.

A folder is made once by pip, without dependencies: torch, transformers and the like are those of this interpreter,
and the few packages a peer imports besides are pinned here. `WHET_PEERS` says where the folders are kept.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

HERE = Path(__file__).parent
DATASETS = (
    *("datasets==5.2.0", "dill==0.4.1", "multiprocess==0.70.19", "xxhash==4.1.0"),
    *("pandas==3.1.1", "python-dateutil==4.0.0", "six==1.17.0"),
)
RAY = (
    *("ray==2.60.0", "protobuf==7.36.2", "msgpack==1.2.4", "cloudpickle==3.1.2"),
    *("jsonschema==4.26.0", "jsonschema-specifications==2025.9.1", "referencing==0.37.0", "rpds-py==2026.9.1"),
    "attrs==26.1.0",
)
VERL = (
    *("tensordict==0.10.0", "pyvers==0.2.3", "orjson==3.13.0"),
    *("omegaconf==2.4.0", "codetiming==1.4.0", "pillow==13.0.0"),
)
LM_EVAL = (
    *("antlr4-python3-runtime==4.11.1", "sacrebleu==2.6.0", "portalocker==4.4.2", "tabulate==0.10.0"),
    *("colorama==0.4.6", "lxml==6.1.3", "word2number==1.1", "more-itertools==11.2.1"),
)


@dataclass(frozen=True)
class Package:
    """A peer as it is installed, and the script that answers for it."""

    name: str
    version: str
    script: str
    beside: tuple[str, ...]  # what it imports and this interpreter does not have, pinned

    def requirements(self):
        return [f"{self.name}=={self.version}", *self.beside]

    def folder(self):
        cache = os.environ.get("WHET_PEERS") or Path.home() / ".cache" / "whet-peers"
        return Path(cache) / f"{self.name}-{self.version}"


PACKAGES = {
    "lm_eval": Package("lm_eval", "0.4.13", "lm_eval_side.py", (*LM_EVAL, *DATASETS)),
    "trl": Package("trl", "1.16.0", "trl_side.py", (*DATASETS, "peft==0.21.2")),
    "trl_ppo": Package("trl", "1.12.0", "trl_ppo_side.py", DATASETS),
    "verl": Package("verl", "0.9.1", "verl_side.py", (*VERL, *RAY, *DATASETS)),
}


class PeerMissing(Exception):
    """The package could not be installed: a reason to skip, in one line."""


def install(package):
    """Make the package's folder unless it is there, whole and for this Python."""
    folder, label = package.folder(), "\n".join(["python{}.{}".format(*sys.version_info), *package.requirements()])
    stamp = folder / "whet-peer.txt"
    if stamp.exists() and stamp.read_text() == label:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as work:
        target = Path(work) / "target"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--retries", "1", "--no-deps", "--target"]
        done = subprocess.run([*command, str(target), *package.requirements()], capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["pip said nothing"]
            complaints = [line for line in lines if line.startswith("ERROR")] or lines
            raise PeerMissing(f"{package.name} {package.version} could not be installed: {complaints[-1]}")
        (target / stamp.name).write_text(label)
        shutil.rmtree(folder, ignore_errors=True)
        target.rename(folder)
    return folder


class Peer:
    """A running peer: `peer(question, name=value, ...)` returns its answer, a dict of tensors and numbers."""

    def __init__(self, package):
        self.package = package
        self.work = tempfile.TemporaryDirectory(prefix=f"whet-peer-{package.name}-")
        self.log = Path(self.work.name) / "log.txt"
        environment = {
            **os.environ,
            "PYTHONPATH": str(install(package)),
            "TRL_EXPERIMENTAL_SILENCE": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / package.script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )
        self._expect("ready")
        self.asked = 0

    def __call__(self, question, **inputs):
        self.asked += 1
        path = Path(self.work.name) / f"{self.asked}.pt"
        torch.save({"question": question, "inputs": inputs}, path)
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        self._expect("answered")
        answer = torch.load(f"{path}.answer")
        if "error" in answer:
            raise RuntimeError(f"{self.package.name} {self.package.version} failed:\n{answer['error']}")
        return answer

    def _expect(self, word):
        heard = self.process.stdout.readline().strip()
        if heard != word:
            tail = "\n".join(self.log.read_text().splitlines()[-20:])
            raise RuntimeError(f"{self.package.name} {self.package.version} stopped answering:\n{tail}")

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()
        self.work.cleanup()
