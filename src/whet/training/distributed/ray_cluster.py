"""Ray, and nothing but Ray: a cluster to run on, workers as actors, the object store."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import pickle
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from os import _exit  # kept from here on: while a reward is called, `os._exit` is refused to everybody
from typing import Any, cast

from whet.registry import file_of_module, import_file
from whet.threads import Thread
from whet.training.distributed.rank_group import package_versions
from whet.training.distributed.workers import WorkerLost
from whet.types import RunFailed, WhetError

logger = logging.getLogger(__name__)

INSTALL = "pip install 'whet[ray]'"
REACH_SECONDS = 5.0
PROBE_SECONDS = 60.0  # for the first process on a machine to start and answer
# a Ray head speaks gRPC, which is HTTP/2: each side's first frame is of the type SETTINGS (RFC 9113, 3.4 and 6.5)
HTTP2_SETTINGS = b"\x04"
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00" + HTTP2_SETTINGS + b"\x00\x00\x00\x00\x00"
LEAST_STORE = 78 * 2**20  # bytes: less is refused by Ray
OWN_STORE = 512 * 2**20  # bytes of the store of a cluster that the run starts
WATCH_SECONDS = 0.2
MOST_PER_CORE = 4  # processes of a cluster that the run starts: each wants a core, and half a GB at once
ALWAYS_STARTED = 8  # so many processes even where there are few cores
OUT_OF_MEMORY = "it held more than its memory limit"


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise WhetError(f"scale needs Ray, which is not installed; {INSTALL}") from error
    return ray


class RayCall:
    """A call of a worker's method that runs on the cluster."""

    def __init__(self, cluster: RayCluster, worker: RayWorker, reference: Any) -> None:
        self._cluster, self._worker, self.reference = cluster, worker, reference

    def result(self) -> Any:
        ray = _ray()
        errors = ray.exceptions
        try:
            value = ray.get(self.reference)
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, BaseException) else error
            if isinstance(cause, WhetError):
                raise cause from None
            if isinstance(cause, MemoryError) and OUT_OF_MEMORY in str(cause):
                raise WorkerLost(str(cause)) from None
            raise WorkerLost(f"{type(cause).__name__}: {_last_line(cause)}") from error
        except (errors.ObjectStoreFullError, errors.OutOfDiskError) as error:
            raise RunFailed(_full_store(error)) from error
        except errors.OutOfMemoryError as error:
            raise WorkerLost(f"Ray ended it, because its machine ran out of memory: {_last_line(error)}") from error
        except errors.RayError as error:
            raise WorkerLost(_death(error)) from error
        if isinstance(value, _Begun):
            self._worker.place, self._worker.process = value.place, value.process
            return "begun"
        return value


class RayWorker:
    """An actor. It is made when `begin` is called: what goes wrong then is told like any other error."""

    def __init__(self, cluster: RayCluster, name: str, actor: Any) -> None:
        self._cluster, self._name, self._actor = cluster, name, actor
        self.place = "a machine that is not known yet"
        self.process = ("", 0)  # the node's id, and the process there

    @property
    def name(self) -> str:
        return self._name

    def call(self, method: str, *arguments: Any) -> RayCall:
        return RayCall(self._cluster, self, self._actor.call.remote(method, *arguments))

    def line(self, method: str) -> Callable[[Any], None]:
        return functools.partial(_send, self._actor, method)

    def signal(self, number: int) -> None:
        node, process = self.process
        if node:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            on_it = NodeAffinitySchedulingStrategy(node, soft=False)
            _ray().remote(num_cpus=0)(os.kill).options(scheduling_strategy=on_it).remote(process, number)

    def end(self) -> None:
        self._cluster.forget(self)
        with contextlib.suppress(Exception):
            _ray().kill(self._actor, no_restart=True)


def _send(actor: Any, method: str, argument: Any) -> None:
    actor.call.remote(method, argument)


class _Begun:
    def __init__(self, node: str, process: tuple[str, int]) -> None:
        self.place, self.process = node, process


class _WorkerHost:
    """What runs in a worker's process."""

    def __init__(self, make: Callable[[], Any] | bytes, files: Sequence[str], folder: str, memory: int) -> None:
        """`make` is packed where it comes from `files`, which are imported here first."""
        self._make, self._files, self._memory, self._held = make, files, memory, None
        with contextlib.suppress(OSError):
            os.chdir(folder)  # files are named as the run's process sees them
        if memory:
            Thread(target=_watch_memory, args=(memory,), daemon=True).start()

    def call(self, method: str, *arguments: Any) -> Any:
        if method == "begin":
            self._held = self._unpacked()()
            node = _ray().get_runtime_context().get_node_id()
            return _Begun(f"{platform.node()}/{node[:6]} (process {os.getpid()})", (node, os.getpid()))
        return getattr(self._held, method)(*arguments)

    def _unpacked(self) -> Callable[[], Any]:
        if not isinstance(self._make, bytes):
            return self._make
        from ray import cloudpickle

        for file in self._files:
            import_file(file)
        return cast("Callable[[], Any]", cloudpickle.loads(self._make))


def resident_bytes() -> int:
    """What this process holds in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _watch_memory(limit: int) -> None:
    while True:
        time.sleep(WATCH_SECONDS)
        if resident_bytes() > limit:
            _exit(1)


class RayCluster:
    """A `whet.training.distributed.workers.WorkerPool`."""

    def __init__(self, *, is_own: bool, folder: str | None = None) -> None:
        self._is_own, self._folder = is_own, folder
        self._workers: list[RayWorker] = []
        self._is_open = True

    def start(
        self, name: str, make: Callable[[], Any], *, cpus: float = 1.0, gpus: float = 0.0, memory: int = 0
    ) -> RayWorker:
        ray = _ray()
        files = _send_by_value(make)
        options: dict[str, Any] = {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
        }
        host = ray.remote(_WorkerHost).options(**options)
        try:
            actor = host.remote(ray.cloudpickle.dumps(make) if files else make, files, os.getcwd(), memory)
        except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
            raise WhetError(
                f"{name} cannot be sent to another process ({_last_line(error)}); give it by the name of a file"
            ) from error
        worker = RayWorker(self, name, actor)
        self._workers.append(worker)
        return worker

    def forget(self, worker: RayWorker) -> None:
        """Drop a worker from those that are ended with the cluster."""
        self._workers = [other for other in self._workers if other is not worker]

    def store(self, value: Any) -> Any:
        ray = _ray()
        try:
            return ray.put(value)
        except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
            raise RunFailed(_full_store(error)) from error

    def finished(self, calls: Sequence[Any], seconds: float) -> list[Any]:
        by_reference = {call.reference: call for call in calls}
        if not by_reference:
            return []
        done, _ = _ray().wait(list(by_reference), num_returns=1, timeout=seconds, fetch_local=False)
        more, _ = _ray().wait(list(by_reference), num_returns=len(by_reference), timeout=0, fetch_local=False)
        return [by_reference[reference] for reference in dict.fromkeys([*done, *more])]

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        for worker in list(self._workers):
            worker.end()
        if self._is_own:
            _ray().shutdown()
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)


def open_cluster(address: str, *, cpus: int, gpus: float = 0.0) -> RayCluster:
    """A cluster with room for so many processes, checked before anything is started there.

    An empty address starts one on this machine, for this process alone.
    """
    ray = _ray()
    if ray.is_initialized():  # a rank that Ray has started, or a program that uses Ray itself
        cluster = RayCluster(is_own=False)
    elif not address:
        require_cores(os.cpu_count() or 1, cpus)
        cluster = _own_cluster(cpus)
    else:
        cluster = _connected(address)
    try:
        require_room(ray.cluster_resources(), cpus, gpus, address)
        if len(alive := [node for node in ray.nodes() if node["Alive"]]) > 1:
            require_same_versions(_versions_by_node(alive))
    except BaseException:
        cluster.close()
        raise
    return cluster


def _send_by_value(value: Any) -> list[str]:
    """The files that a value's functions were imported from by path, which are imported again where they are called.

    Their state stays here: what a reward has cached or leaked does not travel. Functions of other modules that no
    machine can import by their name travel as code.
    """
    from ray import cloudpickle

    files: list[str] = []
    for module in _modules_of(value):
        file = file_of_module(module.__name__)
        if file is not None:
            files.append(file)
        elif module.__name__ != "__main__" and not _is_importable(module.__name__):
            cloudpickle.register_pickle_by_value(module)
    return list(dict.fromkeys(files))


def _is_importable(name: str) -> bool:
    if not all(part.isidentifier() for part in name.split(".")):
        return False  # a file that was given by its path: no other process knows it by this name
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _modules_of(value: Any, depth: int = 6) -> Iterator[Any]:
    """The modules that functions and classes inside of a value come from."""
    module = sys.modules.get(getattr(value, "__module__", None) or type(value).__module__)
    if module is not None:
        yield module
    if depth:
        inner: list[Any] = []
        if isinstance(value, functools.partial):
            inner = [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, Mapping):
            inner = list(value.values())
        elif isinstance(value, list | tuple):
            inner = list(value)[:64]
        elif is_dataclass(value) and not isinstance(value, type):
            inner = [getattr(value, field.name, None) for field in fields(value)]
        for part in inner:
            yield from _modules_of(part, depth - 1)


def _settings() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is reported to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


def _quiet() -> None:
    """Ray prints deaths of workers by itself, over the console: the run tells them in its own lines."""
    with contextlib.suppress(ImportError, AttributeError):
        from ray._private import worker

        worker.print_to_stdstream = lambda *_, **__: None


def _own_cluster(cpus: int) -> RayCluster:
    _settings()
    folder = tempfile.mkdtemp(prefix="whet-ray-")
    _quiet()
    _ray().init(
        num_cpus=cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=OWN_STORE,
        _temp_dir=folder,
    )
    return RayCluster(is_own=True, folder=folder)


def _connected(address: str) -> RayCluster:
    _settings()
    ray = _ray()
    if "://" in address:
        raise WhetError(f"scale.address={address}: give auto, or host:port of the head (as in `ray start --address`)")
    if address != "auto":
        _require_reachable(address)
    _quiet()
    try:
        with _native_warnings_held():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise WhetError(
            f"scale.address={address}: no Ray cluster answers ({_last_line(error).split('. ')[0]}); start one with "
            "`ray start --head`, or drop scale.address"
        ) from error
    except RuntimeError as error:
        if "ersion mismatch" not in str(error):
            raise
        reason = " ".join(str(error).split())
        raise WhetError(
            f"scale.address={address}: its Ray or Python is another one than here ({reason}); install the same versions"
        ) from error
    return RayCluster(is_own=True)


@contextlib.contextmanager
def _native_warnings_held() -> Iterator[None]:
    """What C code prints meanwhile, shown only where something unexpected is raised.

    Ray's client warns on standard error for each attempt at a cluster that does not answer: some twenty lines before
    the one that says what is wrong.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        unexpected = False
        try:
            yield
        except (ConnectionError, RuntimeError):
            raise
        except BaseException:
            unexpected = True
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            if unexpected:
                file.seek(0)
                os.write(2, file.read())


def _require_reachable(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise WhetError(f"scale.address={address}: expected auto, or host:port such as localhost:6379")
    try:
        with socket.create_connection((host, int(port)), timeout=REACH_SECONDS) as connection:
            connection.sendall(HTTP2_GREETING)
            answer = connection.recv(9)
    except TimeoutError:
        answer = b""
    except (OSError, OverflowError) as error:
        raise WhetError(
            f"scale.address={address}: no Ray cluster answers there ({error}); start one with `ray start --head "
            f"--port={port}`, correct the address, or drop scale.address"
        ) from error
    if answer[3:4] != HTTP2_SETTINGS:  # Ray itself would try for minutes
        raise WhetError(
            f"scale.address={address}: what listens there is no Ray head; give the address that `ray start --head` "
            "prints, or drop scale.address"
        )


def require_room(resources: Mapping[str, float], cpus: int, gpus: float, address: str) -> None:
    """Refuse a cluster that can never hold so many processes: Ray would wait for ever."""
    where = f"the Ray cluster at {address}" if address else "this machine"
    for name, wanted, keys in (
        ("CPU", float(cpus), "scale.engines, scale.reward_workers and scale.workers"),
        ("GPU", gpus, "scale.engines and scale.workers"),
    ):
        has = resources.get(name, 0.0)
        if wanted > has:
            raise WhetError(
                f"{where} has {has:g} {name}s and the run needs {wanted:g}, one for each process; lower {keys}, or add "
                "machines"
            )


def require_cores(cores: int, processes: int) -> None:
    """Refuse to start far more processes on this machine than it has cores: they would only wait for each other."""
    most = max(ALWAYS_STARTED, MOST_PER_CORE * cores)
    if processes > most:
        raise WhetError(
            f"this machine has {cores} cores and the run would start {processes} processes on it, more than {most}; "
            "lower scale.engines, scale.reward_workers and scale.workers, or give scale.address of a Ray cluster with "
            "more machines"
        )


def require_same_versions(by_node: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse machines whose packages differ from those here: they would train something else, or break later."""
    own = package_versions()
    for node, versions in by_node.items():
        different = [
            f"{name} {versions.get(name)} (here {own[name]})" for name in own if versions.get(name) != own[name]
        ]
        if different:
            raise WhetError(
                f"the machine {node} has {', '.join(different)}; install the same versions on every machine"
            )


def _versions_by_node(nodes: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    ray = _ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = {}
    for node in nodes:
        on_it = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        task = ray.remote(num_cpus=0, max_retries=0)(package_versions).options(scheduling_strategy=on_it)
        asked[task.remote()] = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
    versions = {}
    for reference, name in asked.items():
        try:
            versions[name] = ray.get(reference, timeout=PROBE_SECONDS)
        except ray.exceptions.RayError as error:
            raise WhetError(
                f"the machine {name} of the Ray cluster does not run whet ({_last_line(error)}); install the same "
                "packages there, or take it out of the cluster"
            ) from error
    return versions


@contextlib.contextmanager
def demo_cluster(nodes: int, cpus: int, port: int = 0) -> Iterator[tuple[str, Any]]:
    """Several Ray nodes on this machine, each as good as a machine of its own: (address, cluster)."""
    _settings()
    _ray()
    from ray.cluster_utils import Cluster

    if port and not _is_free(port):
        raise WhetError(f"port {port} is in use on this machine; give another --port, or 0 for a free one")
    folder = tempfile.mkdtemp(prefix="whet-ray-")
    os.mkdir(os.path.join(folder, "ray"))
    before = os.environ.get("RAY_TMPDIR")
    os.environ["RAY_TMPDIR"] = folder  # its address is noted there: `auto` of others must not find it
    quiet: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OWN_STORE // 2}
    cluster: Any = Cluster()
    try:
        cluster.add_node(num_cpus=cpus, gcs_server_port=port or _free_port(), **quiet)
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=cpus, **quiet)
        cluster.mark = folder
        yield cluster.address, cluster
    finally:
        cluster.shutdown()
        if before is None:
            os.environ.pop("RAY_TMPDIR", None)
        else:
            os.environ["RAY_TMPDIR"] = before
        shutil.rmtree(folder, ignore_errors=True)


def processes_in(mark: str) -> list[str]:
    """Command lines of the processes of a `demo_cluster`, which all have its mark in their environment."""
    commands = []
    for folder in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if folder.isdigit() and int(folder) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{folder}/environ", "rb") as environment:
                if f"RAY_TMPDIR={mark}\0".encode() in environment.read():
                    with open(f"/proc/{folder}/cmdline", "rb") as command:
                        commands.append(command.read().replace(b"\0", b" ").decode(errors="replace"))
    return commands


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _full_store(error: BaseException) -> str:
    return (
        f"Ray's object store is full, and so is the disk it spills to ({_last_line(error)}); free disk space in Ray's "
        "temporary folder, or start the cluster with a larger --object-store-memory, then resume the run"
    )


def _death(error: BaseException) -> str:
    """Why an actor is gone, without Ray's advice."""
    text = " ".join(str(error).split())
    for mark in ("Worker exit detail: ", "The actor is dead because "):
        _, matched, rest = text.partition(mark)
        if matched:
            return f"its process ended: {rest.split('. Some common causes')[0].split(' Some common causes')[0]}"
    return f"{type(error).__name__}: {text[:200]}"


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
