"""The child process's own life, and what it asks llama.cpp for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types

import pytest

from antiphon import local_child
from antiphon.local_child import ChildConfig

pytestmark = pytest.mark.timeout(30)

# Runs the real module with a stand-in for the compiled one, which must not be loaded in a fast test.
CHILD = """
import sys, types
stub = types.ModuleType("xllamacpp")
stub.CommonParams = lambda: types.SimpleNamespace(model=types.SimpleNamespace(), cpuparams=types.SimpleNamespace())
stub.Server = lambda params: print("up", params.port, flush=True) or object()
sys.modules["xllamacpp"] = stub
import antiphon.local_child
{setup}
antiphon.local_child.main()
"""


def spawn(setup=""):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD.format(setup=setup)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def line(parent=None, **changes):
    config = {"model": "m", "alias": "a", "port": 5, "api_key": "k", "slots": 4, "window": 100}
    return json.dumps({**config, "parent": parent or os.getpid(), **changes}).encode() + b"\n"


def test_it_ends_when_its_parents_pipe_ends():
    with spawn() as child:
        child.stdin.write(line())
        child.stdin.flush()
        assert child.stdout.readline() == b"up 5\n"
        child.stdin.close()
        assert child.wait() == 0


def test_it_ends_when_the_parent_is_gone_before_the_first_line():
    with spawn() as child:
        child.stdin.close()
        assert child.wait() == 0


def test_it_ends_when_its_parent_is_another_process():
    with spawn() as child:
        out, _ = child.communicate(line(parent=1))
        assert (child.returncode, out) == (0, b"")


def test_it_ignores_sigint_and_obeys_sigterm():
    with spawn() as child:
        child.stdin.write(line())
        child.stdin.flush()
        child.stdout.readline()
        child.send_signal(2)
        child.send_signal(15)
        assert child.wait() == -15


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux")
def test_it_is_killed_with_its_parent_even_if_the_pipe_stays_open():
    # The grandparent (this test) keeps the pipe's writing end, so only the kernel can tell the child.
    reader, writer = os.pipe()
    middle = (
        "import os, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdin=int(sys.argv[2]));"
        "print(child.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", middle, CHILD.format(setup=""), str(reader)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[reader],
    ) as parent:
        os.close(reader)
        assert int(parent.stdout.readline()) != parent.pid
        os.write(writer, line(parent=parent.pid))
        assert parent.stdout.readline() == b"up 5\n"
        parent.kill()
        # The child shares the parent's output: its end comes when both are gone.
        assert parent.stdout.read() == b""
    os.close(writer)


def test_what_llama_cpp_is_asked_for(monkeypatch):
    given = []
    stub = types.ModuleType("xllamacpp")
    stub.CommonParams = lambda: types.SimpleNamespace(
        model=types.SimpleNamespace(), cpuparams=types.SimpleNamespace()
    )
    stub.Server = given.append
    monkeypatch.setitem(sys.modules, "xllamacpp", stub)
    local_child._serve(ChildConfig(model="m", alias="a", port=5, api_key="k", slots=4, window=4096, parent=1))
    (params,) = given
    assert params.n_ctx == 4 * 4096
    assert params.api_keys == ["k"]
    assert params.reuse_port
    assert not params.ui
    assert params.cpuparams.poll == 0
    assert params.cpuparams.n_threads == len(os.sched_getaffinity(0))
