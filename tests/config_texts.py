"""Files of settings for tests: the pieces that they are made of, and what loading them comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antiphon.config import ConfigError
from antiphon.config_file import Loaded, load

UPSTREAM = '[[upstreams]]\nname = "gpu1"\nbase_url = "http://127.0.0.1:8000/v1"\n'  # three lines
MODEL = '[[models]]\nname = "m"\nupstream = "gpu1"\n'  # three lines


def loaded(text: str, environ: dict[str, str] | None = None, flags: Any = None) -> Loaded:
    """The settings of a file a.toml in the working folder."""
    Path("a.toml").write_text(text, encoding="utf-8")
    return load(Path("a.toml"), environ or {}, flags)


def refused(text: str, environ: dict[str, str] | None = None, flags: Any = None) -> list[str]:
    """What is wrong with it."""
    with pytest.raises(ConfigError) as error:
        loaded(text, environ, flags)
    return list(error.value.errors)
