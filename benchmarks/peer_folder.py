"""vLLM and TRL as a folder of packages for a GPU machine that has torch and transformers but no network.

    python benchmarks/peer_folder.py peers/site-packages                           # on a machine with pip
    python benchmarks/gpu_duel.py --peer-path peers/site-packages --parts rollout  # on the GPU machine

The folder holds what plain bf16 models need on one Hopper GPU: no flash-attention 2, no mixture-of-experts kernels, no
code for other GPUs, stand-ins for packages that only constrained and speculative decoding use. whet's own packages lie
beside it. Its name must be site-packages: dill, which TRL's datasets use, takes modules that lie elsewhere for a user's
own and fails on them.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

PACKAGES = """
vllm==0.24.0 trl==1.16.0 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 xxhash==4.1.0 pandas==3.1.1 pyarrow==26.0.1
python-dateutil==4.0.0 compressed-tensors==0.17.0 depyf==0.20.0 diskcache==5.6.3 lark==1.2.2 lm-format-enforcer==0.11.3
llguidance==1.7.6 aiohttp==3.14.5 anthropic==2.8.0 jsonschema==4.26.0 model-hosting-container-standards==0.1.16
openai==3.49.0 openai-harmony==0.0.8 opentelemetry-api==1.45.2 opentelemetry-sdk==1.45.2
opentelemetry-semantic-conventions==0.66b2 opentelemetry-semantic-conventions-ai==0.5.1 pillow==13.0.0
prometheus_client==0.26.0 prometheus-fastapi-instrumentator==8.1.0 protobuf==7.36.2 pyzmq==27.3.0 six==1.17.0
starlette==1.10.0 blake3==1.0.11 cachetools==8.0.0 cbor2==6.2.1 cloudpickle==3.1.2 einops==0.8.2 ijson==3.6.0 mcp==2.3.0
mcp-types==2.3.0 msgspec==0.22.0 partial-json-parser==0.2.1.1.post7 py-cpuinfo==9.0.0 pybase64==1.5.1
python-json-logger==4.2.0 setproctitle==1.3.8 watchfiles==1.3.0 aiohappyeyeballs==2.7.1 aiosignal==1.4.0 attrs==26.1.0
docstring_parser==0.18.0 frozenlist==1.8.0 httpx2==2.16.0 httpcore2==2.16.0 interegular==0.3.3 jiter==0.19.0
jsonschema-specifications==2025.9.1 multidict==7.2.1 propcache==0.5.4 python-multipart==0.0.33 referencing==0.37.0
rpds-py==2026.9.1 sniffio==1.3.1 sse-starlette==3.7.0 uvicorn==0.54.0 uvloop==0.23.0 yarl==1.25.1 astor==0.8.1
fastapi==0.136.3 jmespath==1.1.0 loguru==0.7.3 nvidia-ml-py==13.615.71 pyelftools==0.33 tabulate==0.10.0
httptools==0.9.0 python-dotenv==1.2.4 truststore==0.10.5 websockets==17.4 agent-detector==2.0.0
"""
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (31, 28, 27, 26, 24, 17)] + ["manylinux2014_x86_64"]
KERNELS = "vllm/_C_stable_libtorch.abi3.so"
# patterns of files in the wheels; a star also stands for slashes
LEFT_OUT = """
vllm/vllm-rs vllm/_rust_* vllm/vllm_flash_attn/_vllm_fa2_C* vllm/_moe_C* vllm/_flashmla* vllm/_qutlass*
vllm/third_party/fmha_sm100/* vllm/third_party/deep_gemm/*.so vllm/third_party/deep_gemm/include/* vllm/benchmarks/*
vllm/*.js *.pyi *.hpp *.cuh pandas/tests/* pyarrow/tests/* pyarrow/include/* pyarrow/src/* pyarrow/libarrow_flight*
pyarrow/_flight* pyarrow/libarrow_python_flight* pyarrow/libarrow_s3* pyarrow/_s3fs* pyarrow/_substrait* pyarrow/_orc*
pyarrow/_dataset_orc* pyarrow/_azurefs* pyarrow/_gcsfs* pyarrow/_dataset_parquet_encryption*
pyarrow/libarrow_python_parquet_encryption* pyarrow/*.px? pyarrow/*.pyx pyarrow/_pyarrow_cpp_tests*
pyarrow/libarrow_python.so pyarrow/libarrow_python.so.2600.*
"""
STAND_INS = {
    "xgrammar": """
class _Meta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent


class _Absent(metaclass=_Meta):
    def __init__(self, *given, **named):
        raise RuntimeError("xgrammar is a stand-in here")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent
""",
    "numba": """
def _plain(*given, **named):
    if len(given) == 1 and callable(given[0]) and not named:
        return given[0]
    return lambda function: function


jit = njit = vectorize = _plain
prange = range


def get_num_threads():
    return 1


def set_num_threads(number):
    pass
""",
}
CUBIN, BUNDLE = 2, 0xBA55ED50


def unpack(folder: Path, python: str) -> None:
    """The wheels of every package, without what is left out."""
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", python, *(word for platform in PLATFORMS for word in ("--platform", platform))]
        subprocess.run([*command, "--dest", work, *PACKAGES.split()], check=True)
        patterns = LEFT_OUT.split()
        for wheel in sorted(Path(work).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                names = archive.namelist()
                archive.extractall(
                    folder, [name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)]
                )


def bundles(data: bytearray) -> Iterator[list[tuple[int, int, int, int]]]:
    """Each bundle of GPU code in an ELF file: start, size, kind and GPU of every image in it."""
    table = struct.unpack_from("<Q", data, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", data, table + number * size) for number in range(count)]
    labels = sections[names][4]
    (at, end), *_ = (
        (section[4], section[4] + section[5])
        for section in sections
        if data.startswith(b".nv_fatbin\0", labels + section[0])
    )
    while at < end - 16:
        magic, _, head, length = struct.unpack_from("<IHHQ", data, at)
        if magic != BUNDLE:
            at += 8
            continue
        entries, offset = [], at + head
        at = offset + length
        while offset < at:
            kind, _, head, length = struct.unpack_from("<HHIQ", data, offset)
            entries.append((offset + head, length, kind, struct.unpack_from("<I", data, offset + 28)[0]))
            offset += head + length
        yield entries


def blank_other_gpus(file: Path, gpu: int, largest: int = 60_000) -> None:
    """Zeros instead of code for other GPUs, which compress to nothing.

    Bundles without code for this GPU keep what its driver can translate, where that is small: the large ones hold
    quantised products.
    """
    data = bytearray(file.read_bytes())
    for bundle in bundles(data):
        has_own = any(kind == CUBIN and architecture == gpu for _, _, kind, architecture in bundle)
        is_small = sum(size for _, size, _, _ in bundle) <= largest
        for start, size, kind, architecture in bundle:
            is_own = kind == CUBIN and architecture == gpu
            if not (is_own if has_own else is_small and architecture <= gpu):
                data[start : start + size] = bytes(size)
    file.write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="of the GPU machine")
    parser.add_argument("--gpu", type=int, default=90, help="its compute capability without the dot")
    chosen = parser.parse_args()
    if chosen.folder.name != "site-packages":
        raise SystemExit(f"{chosen.folder}: the folder must be called site-packages, or TRL's datasets do not work")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    unpack(chosen.folder, chosen.python)
    blank_other_gpus(chosen.folder / KERNELS, chosen.gpu)
    for name, text in STAND_INS.items():
        (chosen.folder / name).mkdir(exist_ok=True)
        (chosen.folder / name / "__init__.py").write_text(
            f'"""A stand-in for {name}."""\n\n__version__ = "0"\n\n{text}'
        )


if __name__ == "__main__":
    main()
