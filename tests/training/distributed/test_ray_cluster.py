"""Ray: clusters that cannot be used are told in one line; a run with engines of its own is the run without."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import whet
from whet.training.distributed import ray_cluster
from whet.training.distributed.rank_group import package_versions
from whet.training.distributed.ray_cluster import (
    RayCluster,
    _is_importable,
    demo_cluster,
    open_cluster,
    processes_in,
    require_cores,
    require_room,
    require_same_versions,
)
from whet.types import WhetError

SMALL = {
    "steps": 3,
    "batch": {"prompts_per_step": 8, "group_size": 4},
    "eval": {"prompts": 10, "every": 0},
    "report": {"samples_per_step": 8},
}


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="it reads /proc")
def test_the_processes_of_a_cluster_are_found_by_its_mark(tmp_path: Path) -> None:
    sleeping = subprocess.Popen(["sleep", "60"], env={**os.environ, "RAY_TMPDIR": str(tmp_path)})
    try:
        until = time.monotonic() + 20
        while not (found := processes_in(str(tmp_path))) and time.monotonic() < until:
            time.sleep(0.01)  # it has this process's environment until it has become `sleep`
        assert [command.split() for command in found] == [["sleep", "60"]]
    finally:
        sleeping.kill()
        sleeping.wait()
    assert processes_in(str(tmp_path)) == []


@pytest.mark.parametrize("is_own", [False, True])
def test_only_a_cluster_that_this_process_started_ends_with_it(is_own: bool, tmp_path: Path, monkeypatch) -> None:
    ended = []
    monkeypatch.setattr(ray_cluster, "_ray", lambda: SimpleNamespace(shutdown=lambda: ended.append("ray")))
    cluster = SimpleNamespace(_is_open=True, _is_own=is_own, _folder=str(tmp_path / "ray"), _workers=[])
    (tmp_path / "ray").mkdir()
    for _ in range(2):
        RayCluster.close(cluster)
    assert ended == ["ray"] * is_own and (tmp_path / "ray").exists() != is_own


def weights_digest(run) -> str:
    newest = sorted((run.folder / "checkpoints").iterdir())[-1]
    return hashlib.sha256((newest / "model.safetensors").read_bytes()).hexdigest()


def ray_processes() -> list[str]:
    """Ray's processes that this process has started."""
    own, found = os.getpid(), []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_text().replace("\0", " ")
            environment = (folder / "environ").read_text()
        except OSError:
            continue
        is_ray = "raylet" in command or "gcs_server" in command or command.startswith("ray::")
        if is_ray and f"WHET_TEST={own}\0" in environment:
            found.append(command)
    return found


@pytest.fixture(autouse=True)
def marked(monkeypatch):
    """Every process that a test starts can be told from those of others, and none is left."""
    monkeypatch.setenv("WHET_TEST", str(os.getpid()))
    yield
    until = time.monotonic() + 120  # agents of a node that was killed end when they notice
    while ray_processes() and time.monotonic() < until:
        time.sleep(0.5)
    assert not ray_processes()


def test_only_what_another_process_can_import_is_sent_by_its_name():
    importable = [name for name in ("json", "whet.types", "no_such_module", "/tmp/reward.py") if _is_importable(name)]
    assert importable == ["json", "whet.types"]


def test_an_unreachable_cluster_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(WhetError, match=f"scale.address=127.0.0.1:{port}: no Ray cluster answers there"):
            open_cluster(f"127.0.0.1:{port}", cpus=1)
    for bad in ("nowhere", "host:", ":6379", "host:port"):
        with pytest.raises(WhetError, match="expected auto, or host:port"):
            open_cluster(bad, cpus=1)
    with pytest.raises(WhetError, match="give auto, or host:port of the head"):
        open_cluster("ray://localhost:10001", cpus=1)


def test_another_server_at_that_address_is_one_line(monkeypatch):
    """Ray itself would try for minutes, and warn all the while."""
    monkeypatch.setattr("whet.training.distributed.ray_cluster.REACH_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(WhetError, match="what listens there is no Ray head; give the address"):
            open_cluster(f"127.0.0.1:{silent.getsockname()[1]}", cpus=1)


def test_too_few_processors_and_devices_are_one_line():
    require_room({"CPU": 4.0, "GPU": 1.0}, cpus=4, gpus=1, address="auto")
    with pytest.raises(WhetError, match="the Ray cluster at auto has 4 CPUs and the run needs 5"):
        require_room({"CPU": 4.0}, cpus=5, gpus=0, address="auto")
    with pytest.raises(WhetError, match="has 0 GPUs and the run needs 2"):
        require_room({"CPU": 4.0}, cpus=2, gpus=2, address="auto")


def test_far_more_processes_than_cores_are_one_line():
    require_cores(cores=2, processes=8)
    require_cores(cores=64, processes=256)
    with pytest.raises(WhetError, match="2 cores and the run would start 50 processes on it, more than 8; lower"):
        require_cores(cores=2, processes=50)


def test_machines_with_other_packages_are_one_line():
    own = package_versions()
    assert own["torch"] and own["python"].startswith("3.")
    require_same_versions({"one": own, "two": dict(own)})
    with pytest.raises(WhetError, match=r"the machine two has torch 1.0 \(here .*\); install the same versions"):
        require_same_versions({"one": own, "two": {**own, "torch": "1.0"}})


def test_a_port_in_use_is_one_line():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        with (
            pytest.raises(WhetError, match=f"port {taken.getsockname()[1]} is in use"),
            demo_cluster(1, 1, taken.getsockname()[1]),
        ):
            pass


@pytest.mark.cluster
def test_engines_of_their_own_give_the_weights_of_one_process_bit_for_bit(tmp_path):
    def trained(engines: int) -> str:
        scale = {"engines": engines} if engines else {}
        return weights_digest(
            whet.train(method="grpo", folder=str(tmp_path / str(engines)), scale=scale, console=False, **SMALL)
        )

    alone = trained(0)
    assert trained(1) == alone
    assert trained(2) == alone


@pytest.mark.cluster
def test_a_cluster_that_is_too_small_is_refused_before_a_model_is_read(tmp_path):
    with demo_cluster(1, 1) as (address, _), pytest.raises(WhetError, match="has 1 CPUs and the run needs 2"):
        whet.train(
            method="grpo", model="nowhere", folder=str(tmp_path / "run"), scale={"engines": 2, "address": address}
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.cluster
def test_a_node_with_another_package_is_found(tmp_path):
    fake = tmp_path / "transformers-0.0.1.dist-info"
    fake.mkdir()
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 0.0.1\n")
    with demo_cluster(1, 2) as (address, cluster):
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        cluster.add_node(num_cpus=1, env_vars={"PYTHONPATH": path, **dict(os.environ, PYTHONPATH=path)})
        with pytest.raises(WhetError, match=r"has transformers 0.0.1 \(here .*\); install the same versions"):
            open_cluster(address, cpus=1)
