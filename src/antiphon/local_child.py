"""What runs in the embedded llama.cpp's process: `python -m antiphon.local_child`.

Owns the process's own life (it must not outlive its parent, and is not the terminal's to interrupt) and
the parameters that llama.cpp is started with. Must not know anything of the gateway: everything comes as
one line of JSON on standard input, which then stays open. Its end of file means that the parent is gone.

    {"model": "/cache/m.gguf", "alias": "smollm2", "port": 40001, "api_key": "...",
     "slots": 4, "window": 4096, "parent": 1234}
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

import msgspec

_PR_SET_PDEATHSIG = 1
_STDIN = 0
_BATCH = 128
_PROMPT_CACHE_MIB = 128
_NICE = 5


class ChildConfig(msgspec.Struct, frozen=True):
    """What the child is told. `window` is one slot's context in tokens, `parent` the parent's process id.

    The key is here and not on the command line, where every user of the machine could read it.
    """

    model: str
    alias: str
    port: int
    api_key: str
    slots: int
    window: int
    parent: int


def main() -> None:
    """Serve until the parent goes away or SIGTERM comes (its default action: nothing needs saving)."""
    # Ctrl-C is the parent's decision. The child has its own session too; this covers `kill -INT`.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = msgspec.json.decode(_read_line(), type=ChildConfig)
    die_with_parent(config.parent)
    # On a small machine all cores do inference: the gateway, which has little to do, goes first.
    os.nice(_NICE)
    server = _serve(config)
    del config
    threading.Event().wait()
    del server


def die_with_parent(parent: int) -> None:
    """End this process when process `parent` ends, however it ends."""
    if sys.platform == "linux":
        # The kernel's own way. It cannot be missed, even while llama.cpp keeps every thread busy.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent died before the line above: no signal will come any more.
        os._exit(0)
    threading.Thread(target=_exit_at_eof, name="parent-watch", daemon=True).start()


def _exit_at_eof() -> None:
    while os.read(_STDIN, 4096):
        pass
    os._exit(0)


def _read_line() -> bytes:
    # Not through sys.stdin: a buffered reader blocked in a daemon thread aborts the interpreter at exit.
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(_STDIN, 4096)
        if not data:
            os._exit(0)
        line += data
    return line


def _serve(config: ChildConfig) -> object:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = config.model
    params.model_alias = {config.alias}
    # The parent keeps this port bound (without listening), so that no one else gets it between restarts.
    params.port = config.port
    params.reuse_port = True
    # Any web page can reach a loopback port, and llama.cpp lets every origin read by default.
    params.api_keys = [config.api_key]
    params.cors_origins = "http://127.0.0.1"
    params.cors_origins_explicit = True
    params.ui = False
    params.use_jinja = True
    params.endpoint_slots = True
    params.n_parallel = config.slots
    params.n_ctx = config.slots * config.window
    params.cpuparams.n_threads = _cores()
    # Waiting threads sleep and do not spin: alone it is as fast, and two servers on the same two cores
    # give 10 to 50 tokens/s each where spinning ones were seen to fall to 1.
    params.cpuparams.poll = 0
    # llama.cpp notices that a client left when it writes to it, in a prefill once per batch if the request
    # asks for `return_progress` (else not before the first token). Measured on two cores, prompts of 3,000
    # tokens: with its default of 2048 an abandoned prefill runs on for 11 to 14 s, with 128 for 0.2 to 0.8 s,
    # at the same speed of about 240 tokens/s.
    params.n_batch = _BATCH
    params.n_ubatch = _BATCH
    # Its default keeps up to 8 GiB of old prompts.
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    return xllamacpp.Server(params)


def _cores() -> int:
    """The cores that this process may use: llama.cpp counts the machine's, which in a container are more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


if __name__ == "__main__":
    main()
