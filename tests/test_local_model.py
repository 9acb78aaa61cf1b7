"""Fetching and keeping the model file, with a small wheel and a fake pip instead of the network."""

from __future__ import annotations

import hashlib
import stat
import subprocess
import sys
import textwrap
import threading
import zipfile

import msgspec
import pytest

from antiphon import local_model
from antiphon.local_model import SMOLLM2, LocalModelError, Model, cache_folder, cached_model, fetch_model

CONTENT = b"GGUF" + bytes(range(256)) * 40
SHA = hashlib.sha256(CONTENT).hexdigest()

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny/m.gguf", CONTENT)
        archive.writestr("tiny/__init__.py", "")
    return path


@pytest.fixture
def model(wheel):
    return Model(
        name="Tiny",
        requirement="tiny==1",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_size=wheel.stat().st_size,
        member="tiny/m.gguf",
        sha256=SHA,
        size=len(CONTENT),
    )


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache" / "deep"
    monkeypatch.setenv("ANTIPHON_CACHE", str(folder))
    return folder


@pytest.fixture
def pip(tmp_path, monkeypatch, wheel):
    """A stand-in for the interpreter: notes how pip was called and copies the wheel to --dest."""
    calls = tmp_path / "calls"
    script = tmp_path / "python"
    script.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        import os, pathlib, shutil, sys
        requirements = pathlib.Path(sys.argv[sys.argv.index("--requirement") + 1]).read_text()
        with open({str(calls)!r}, "a") as file:
            file.write(" ".join(sys.argv[1:]) + " | " + requirements)
        behave = pathlib.Path({str(tmp_path / "behave")!r})
        if behave.exists():
            sys.exit(behave.read_text())
        shutil.copy({str(wheel)!r}, sys.argv[sys.argv.index("--dest") + 1])
        """)
    )
    script.chmod(0o755)
    monkeypatch.setattr(local_model.sys, "executable", str(script))

    class Pip:
        def calls(self):
            return calls.read_text().splitlines() if calls.exists() else []

        def fail(self, words):
            (tmp_path / "behave").write_text(words)

    return Pip()


def test_it_is_fetched_once_alone_and_with_its_hash(model, pip, cache):
    path = fetch_model(progress=False, model=model)
    assert path == cache / "m.gguf"
    assert path.read_bytes() == CONTENT
    (call,) = pip.calls()
    assert "-m pip" in call
    assert "--no-deps --only-binary :all:" in call
    assert "--require-hashes" in call
    assert call.endswith(f"tiny==1 --hash=sha256:{model.wheel_sha256}")
    assert fetch_model(progress=False, model=model) == path
    assert cached_model(model) == path
    assert len(pip.calls()) == 1
    assert sorted(entry.name for entry in cache.iterdir()) == ["fetch.lock", "fetch.log", "m.gguf"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o400


@pytest.mark.parametrize("broken", [b"", CONTENT[:-1], CONTENT[:-1] + b"X"], ids=["empty", "cut", "one byte"])
def test_a_broken_file_is_fetched_anew(model, pip, cache, broken):
    cache.mkdir(parents=True)
    (cache / "m.gguf").write_bytes(broken)
    assert cached_model(model) is None
    assert fetch_model(progress=False, model=model).read_bytes() == CONTENT
    assert len(pip.calls()) == 1


def test_what_a_killed_fetch_left_is_removed(model, pip, cache):
    (cache / "fetch-dead.tmp").mkdir(parents=True)
    (cache / "fetch-dead.tmp" / "half").write_bytes(b"x")
    fetch_model(progress=False, model=model)
    assert not list(cache.glob("fetch-*.tmp"))


def test_two_at_once_fetch_once(model, pip):
    paths = []
    threads = [
        threading.Thread(target=lambda: paths.append(fetch_model(progress=False, model=model)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1
    assert len(paths) == 4
    assert len(pip.calls()) == 1


def test_the_bar_goes_to_stderr(model, pip, capfd):
    fetch_model(model=model)
    out, err = capfd.readouterr()
    assert out == ""
    assert "model Tiny" in err


def test_no_network(model, pip, cache):
    pip.fail("ERROR: No matching distribution found for tiny==1")
    with pytest.raises(LocalModelError) as caught:
        fetch_model(progress=False, model=model)
    text = str(caught.value)
    assert "\n" not in text
    assert str(cache / "fetch.log") in text
    assert "--upstream" in text
    assert "No matching distribution" in (cache / "fetch.log").read_text()
    assert not list(cache.glob("fetch-*.tmp"))


def test_no_pip(model, pip):
    pip.fail("/usr/bin/python3: No module named pip")
    with pytest.raises(LocalModelError, match="ensurepip"):
        fetch_model(progress=False, model=model)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"sha256": "0" * 64}, "wrong checksum"), ({"member": "tiny/absent.gguf"}, "does not hold")],
)
def test_a_wheel_with_the_wrong_thing_inside(model, pip, cache, change, words):
    wrong = msgspec.structs.replace(model, **change)
    with pytest.raises(LocalModelError, match=words):
        fetch_model(progress=False, model=wrong)
    assert not list(cache.glob("*.gguf"))


def test_a_folder_that_cannot_be_made(model, pip, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path / "file"))
    with pytest.raises(LocalModelError, match="ANTIPHON_CACHE"):
        fetch_model(progress=False, model=model)


def test_an_interrupt_ends_pip(model, monkeypatch, cache):
    children = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *_args, **options):
            children.append(self)
            super().__init__([sys.executable, "-c", "import signal; signal.pause()"], **options)

        def wait(self, timeout=None):
            if not self.__dict__.setdefault("interrupted", False):
                self.interrupted = True
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_model(progress=False, model=model)
    (child,) = children
    assert child.returncode is not None
    assert not list(cache.glob("fetch-*.tmp"))


def test_the_folder_is_the_users_cache_unless_named(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache" / "deep"
    monkeypatch.delenv("ANTIPHON_CACHE")
    assert cache_folder().name == "antiphon"


def test_the_pinned_model_is_complete():
    assert SMOLLM2.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert all(len(bytes.fromhex(digest)) == 32 for digest in (SMOLLM2.wheel_sha256, SMOLLM2.sha256))
