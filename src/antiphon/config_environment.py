"""Names in the environment that look like this program's and are read by nobody: a slip of the pen, mostly.

Owns the list of those that are read although they are no settings, and what is said of the others. It never
looks at a value.

    unknown(os.environ)      # one line for each: what was meant, or in which table of a file it stands
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from antiphon.config_reading import header, nearest
from antiphon.config_tables import IN_ENVIRONMENT, File, environment_name, environment_names, members

PREFIX: Final = environment_name("")

NO_SETTINGS: Final = frozenset({"ANTIPHON_CONFIG", "ANTIPHON_CACHE", "ANTIPHON_SEAL_KEY"})
"""What else is read: the file of settings, the embedded model's folder, the key of seals."""

DEVELOPMENT: Final = frozenset(
    {
        "ANTIPHON_CLAUDE_CODE_MODULES",
        "ANTIPHON_FAULTS",
        "ANTIPHON_FAULT_SEED",
        "ANTIPHON_FUZZ_SECONDS",
        "ANTIPHON_REQUIRE_ALL",
        "ANTIPHON_VLLM_PYTHON",
    }
)
"""What the project's own tests read, and hand on to the gateways that they start."""

# Kubernetes sets these in every container beside a service that is called antiphon.
_SERVICE_LINK: Final = re.compile(
    r"ANTIPHON_(?:SERVICE_(?:HOST|PORT(?:_\w+)?)|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:ADDR|PORT|PROTO))?)"
)


def unknown(environment: Iterable[str], named: Collection[str] = ()) -> list[str]:
    """What is said of each variable that nothing reads. `named`: those that the settings themselves name."""
    known = {*environment_names(), *NO_SETTINGS, *DEVELOPMENT, *named}
    return [
        f"{name}: {_said(name)}"
        for name in sorted(environment)
        if name.startswith(PREFIX) and name not in known and not _SERVICE_LINK.fullmatch(name)
    ]


def _said(name: str) -> str:
    word = name.removeprefix(PREFIX).lower()
    for table in members(File):
        kind = table.table or table.tables
        if table.name not in IN_ENVIRONMENT and kind is not None and word in kind.__struct_fields__:
            place = header((table.name,) if table.tables is None else (table.name, 0))
            return f"is not read: {word} is set in a file, in {place}"
    names = [*environment_names(), *sorted(NO_SETTINGS)]
    near = nearest(word, [each.removeprefix(PREFIX).lower() for each in names])
    return "no setting has this name" + (f"; did you mean {environment_name(near)}?" if near else "")
