"""The wheel: everything that the package reads is in it, and it trains in an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def done(*command: str | Path, **options: object) -> str:
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, env=bare, **options)  # type: ignore[call-overload]
    assert result.returncode == 0, result.stdout + result.stderr
    return str(result.stdout)


@pytest.mark.slow
def test_the_wheel_has_every_file_and_runs_the_demo(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "README.md")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    done(*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path / "dist", source)
    (wheel,) = (tmp_path / "dist").glob("whet-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("whet/")}
    written = {path.relative_to(source / "src").as_posix() for path in (source / "src").rglob("*") if path.is_file()}
    assert {name for name in written if name.startswith("whet/")} == packed

    environment = tmp_path / "environment"
    done(sys.executable, "-m", "venv", "--without-pip", environment)
    (site,) = environment.glob("lib/python3*/site-packages")
    done(*pip, "install", "-q", "--no-deps", "--target", site, wheel)
    # torch and the other dependencies are those of this environment; a line in a .pth runs no .pth of that folder
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = environment / "bin" / "python"
    where = done(python, "-c", "import whet; print(whet.__file__)", cwd=tmp_path).strip()
    assert where == str(site / "whet" / "__init__.py")
    printed = done(python, "-m", "whet", "train", "grpo", "--steps", "2", "--folder", "run", cwd=tmp_path)
    assert "finished" in printed and (tmp_path / "run" / "report.html").is_file()
