"""The embedded llama.cpp's process with its `/metrics`: what it says of its own queue.

python -P metered_llamacpp.py      <- as `python -m antiphon.local_child`
"""

from __future__ import annotations

import xllamacpp

from antiphon import local_child

_CommonParams = xllamacpp.CommonParams


def metered() -> xllamacpp.CommonParams:
    params = _CommonParams()
    params.endpoint_metrics = True
    return params


if __name__ == "__main__":
    xllamacpp.CommonParams = metered
    local_child.main()
