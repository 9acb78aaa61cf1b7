"""Whether this machine lets a test have two network namespaces, and a way between them."""

from __future__ import annotations

import shutil
import subprocess

PROBE = (
    "ip link add probe0 type veth peer name probe1 && echo 1 > /proc/sys/net/ipv4/conf/probe0/route_localnet"
)


def _reason() -> str | None:
    missing = [program for program in ("unshare", "nsenter", "ip") if shutil.which(program) is None]
    if missing:
        return f"no {', '.join(missing)} here (Debian: util-linux, iproute2)"
    tried = subprocess.run(["unshare", "--net", "sh", "-c", PROBE], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip()}"


REASON = _reason()
