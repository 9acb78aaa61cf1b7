"""Installs the official Python SDKs, each major of each into an environment of its own under `.sdk/`.

    python tests/clients/install.py        # what is there already is left alone

Owns `.sdk/`: made from `requirements/sdk-MAJOR.txt`, with hashes, and made anew when that lock changes. A
plain number is a major of the Anthropic SDK. One that cannot be installed (no network) is named and left
out: its tests are skipped then. Nothing here is needed to run the gateway.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAJORS = ("0", "1", "2", "openai-1", "openai-2", "openai-3")


def python_of(major: str) -> Path:
    """The interpreter that has this major of the SDK."""
    return ROOT / ".sdk" / major / "bin" / "python"


def installed(major: str) -> bool:
    """Whether `.sdk/` holds what the lock file says."""
    stamp = _stamp(major)
    return stamp.exists() and stamp.read_bytes() == _lock(major).read_bytes()


def install(major: str) -> None:
    """Raises CalledProcessError if pip cannot get or verify a package."""
    folder = ROOT / ".sdk" / major
    shutil.rmtree(folder, ignore_errors=True)
    # One pip serves them all: theirs would only take time to unpack.
    _run("-m", "venv", "--without-pip", str(folder))
    pip = ("-m", "pip", "--disable-pip-version-check", "-qq", "--python", str(python_of(major)))
    _run(*pip, "install", "--require-hashes", "--only-binary", ":all:", "-r", str(_lock(major)))
    shutil.copyfile(_lock(major), _stamp(major))


def called(major: str) -> str:
    """What people call it."""
    maker, _, number = major.rpartition("-")
    return f"{'OpenAI' if maker else 'Anthropic'} SDK {number}.x for Python"


def _lock(major: str) -> Path:
    return ROOT / "requirements" / f"sdk-{major}.txt"


def _stamp(major: str) -> Path:
    return ROOT / ".sdk" / major / "installed-from.txt"


def _run(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True)


def main() -> None:
    for major in MAJORS:
        if installed(major):
            continue
        print(f"antiphon: installing the {called(major)} for the tests (once)", flush=True)
        try:
            install(major)
        except subprocess.CalledProcessError:
            print(f"antiphon: the {called(major)} could not be installed, its tests are left out")


if __name__ == "__main__":
    main()
