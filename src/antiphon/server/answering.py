"""From a plan to the answer that reads what its upstream says.

Owns the choice among core's kinds of answers, and what of the gateway's limits each of them gets.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial

from antiphon.config import Limits
from antiphon.core.answer import Answer
from antiphon.core.passage import Passage
from antiphon.core.relay import Relay
from antiphon.core.seal import Sealer
from antiphon.core.surfaces.openai.request import RelayRequest
from antiphon.core.translation import Translation
from antiphon.server.plan import Plan


class Answering:
    """`sealer` seals state that an upstream wants back."""

    def __init__(self, limits: Limits, sealer: Sealer) -> None:
        self._limits = limits
        self._sealer = sealer

    def answer(self, plan: Plan, request_id: str, message_id: str, counts: Counter[str]) -> Answer:
        """A fresh one. `counts` is told what had to be mended."""
        limits, quirks, request = self._limits, plan.target.quirks, plan.chat
        if isinstance(request, RelayRequest):
            return Relay(request, counts=counts)
        if quirks.speaks == "messages":
            return Passage(
                request,
                model=plan.model,
                message_id=message_id,
                request_id=request_id,
                streaming=plan.streaming,
                entropy=os.urandom,
                counts=counts,
                max_frame=limits.max_frame,
                max_body=limits.max_fold,
                max_held=limits.max_held,
                max_fold=limits.max_fold,
            )
        return Translation(
            request,
            model=plan.model,
            message_id=message_id,
            request_id=request_id,
            streaming=plan.streaming,
            entropy=os.urandom,
            counts=counts,
            think_tags=quirks.think_tags,
            seal=partial(self._sealer.seal, quirks.name, plan.sends),
            max_frame=limits.max_frame,
            max_body=limits.max_fold,
            max_held=limits.max_held,
            max_fold=limits.max_fold,
        )
