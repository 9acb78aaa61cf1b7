"""Every rule of a Messages event stream, with what clients do when it is broken.

Owns the words of the rules; `grammar`, `frames` and `message` find the violations. The clients' behaviour
was observed with the official SDKs (Python 0.121 and 2.14, TypeScript 0.98 and 1.14) and Claude Code.

    RULES["end.missing"].clients   -> "Python returns the partial message as a success; ..."
"""

from __future__ import annotations

from msgspec import Struct


class Rule(Struct, frozen=True):
    """`says` is the rule, `clients` what happens when it is broken.

    `survivable`: no known client minds. Such a fault counts where the envelope itself is judged, and
    must not hide a worse one elsewhere.
    """

    says: str
    clients: str
    survivable: bool = False


class Violation(Struct, frozen=True):
    """One broken rule. `at` is the number of the event, the first is 1; None is the end of the stream."""

    rule: str
    at: int | None
    text: str

    @property
    def survivable(self) -> bool:
        """See `Rule.survivable`."""
        return RULES[self.rule].survivable

    @property
    def clients(self) -> str:
        """What clients do with it."""
        return RULES[self.rule].clients

    def __str__(self) -> str:
        return f"{'the end' if self.at is None else f'event {self.at}'}: {self.text}"


_LOST = "Python raises IndexError, TypeScript loses the text in silence."
_IGNORED = "Both SDKs ignore the frame; if all are like that the stream counts as empty."

RULES: dict[str, Rule] = {
    # --- the frames ---
    "frame.bom": Rule(
        "No byte order mark.", "Python loses the first event and fails; TypeScript strips the mark."
    ),
    "frame.utf8": Rule("The body is UTF-8.", "Clients show replacement characters, or fail to decode."),
    "frame.no_event": Rule("Every frame has an `event:` line.", _IGNORED),
    "frame.name": Rule(
        "The `event:` line and the data's `type` agree.",
        "Clients that choose by the line and clients that choose by `type` read different streams.",
    ),
    "frame.json": Rule(
        "The data of every frame is JSON.",
        "Both current SDKs raise a decoding error under a named event; older ones skip unknown names.",
    ),
    "frame.object": Rule("The data of every frame is an object.", "Both SDKs raise on its missing fields."),
    "frame.done": Rule(
        "There is no [DONE]: message_stop ends the stream.",
        "Under an `event:` line Python 2.x raises JSONDecodeError and TypeScript 1.x an error; without one"
        " it is ignored.",
    ),
    "frame.field": Rule(
        "Frames have `event:` and `data:` only.", "SDKs skip `id:` and `retry:`; others reconnect."
    ),
    "frame.unfinished": Rule(
        "A blank line follows the last frame too.",
        "TypeScript drops the last event and raises; Python accepts it.",
    ),
    # --- the order ---
    "event.object": Rule("An event is a JSON object.", "Both SDKs raise on its missing fields."),
    "event.unknown": Rule(
        "An event's type is one of the eight.",
        "Current SDKs hand it to the program, which may not know it; older ones skip it.",
    ),
    "order.start": Rule(
        "message_start is first.",
        "Python raises (IndexError or RuntimeError), TypeScript says 'Unexpected event order'; only a ping"
        " or an error there is survived.",
    ),
    "order.second_start": Rule(
        "There is one message_start.", "TypeScript raises; Python drops it or corrupts the message."
    ),
    "order.after_finish": Rule(
        "After message_delta only ping, message_stop or error follow.",
        "A second message_delta overwrites stop_reason, with null if it has none; blocks come after the turn"
        " was already decided.",
    ),
    "order.no_message_delta": Rule(
        "message_delta comes before message_stop.",
        "Both SDKs return a message with stop_reason null: neither done nor tool use.",
    ),
    "order.after_end": Rule(
        "Nothing follows message_stop or error.",
        "Python appends late blocks to the finished message; TypeScript ignores them.",
    ),
    "end.missing": Rule(
        "message_stop or error ends the stream.",
        "Python returns the partial message as a success; TypeScript raises. Claude Code takes a cut answer"
        " for a finished one if a block was closed before.",
    ),
    # --- message_start ---
    "start.envelope": Rule(
        "message_start has an empty assistant message with stop_reason and stop_sequence null.",
        "Without `content` or `usage` both SDKs raise; other values stand in the message for ever.",
    ),
    "start.identity": Rule(
        "The message has an id and a model.",
        "Claude Code merges turns that share an id; logs and prices go by the model.",
    ),
    "start.id_prefix": Rule("Message ids start with msg_.", "No known client minds.", survivable=True),
    "start.usage": Rule(
        "message_start counts input_tokens and output_tokens.",
        "Without `usage` both SDKs raise; without counts the context meter of Claude Code does not move.",
    ),
    "ping.fields": Rule("A ping has only its type.", "Ignored by the SDKs."),
    # --- blocks ---
    "block.overlap": Rule(
        "One block is open at a time.",
        "SDK stream events look at the last block, so text and tool input go to the wrong one;"
        " Claude Code says 'Content block not found'.",
    ),
    "block.index": Rule("Indices count 0, 1, 2 without gaps.", _LOST),
    "block.type": Rule(
        "A block is text, thinking, redacted_thinking or tool_use.",
        "SDKs tolerate unknown blocks; programs that switch on the type drop their content.",
    ),
    "block.start": Rule(
        "A block starts complete and empty.",
        "Python raises TypeError at the first delta; TypeScript prefixes 'undefined' to thinking; a filled"
        " start is counted twice.",
    ),
    "block.signature": Rule(
        "A thinking block starts with signature.", "No known client minds.", survivable=True
    ),
    "block.stop": Rule(
        "A block is stopped once, while it is open.",
        f"For a block that never started: {_LOST} A tool_use that is stopped is run.",
    ),
    "block.empty": Rule(
        "Text and thinking blocks are not empty.",
        "The SDKs keep the empty block, and the real API refuses it in the next request.",
    ),
    "tool.id": Rule(
        "Tool ids are of [A-Za-z0-9_-].", "The real API refuses the same history; the result finds no call."
    ),
    "tool.id_twice": Rule(
        "Tool ids are unique in a message.",
        "Claude Code runs both calls and keeps one, so a result is lost.",
    ),
    "tool.name": Rule(
        "Tool names are 1 to 128 of [A-Za-z0-9_-].", "The client finds no such tool; nothing is run."
    ),
    "delta.block": Rule("A delta is for the open block.", _LOST),
    "delta.kind": Rule(
        "A delta fits its block.",
        "Claude Code stops with 'Content block is not a ... block'; the SDKs drop the delta.",
    ),
    "delta.value": Rule("A delta's text is a string.", "Python raises TypeError; TypeScript appends 'null'."),
    "delta.empty": Rule(
        "Text and thinking deltas are not empty.", "SDKs append nothing; some UIs open a bubble."
    ),
    "delta.after_signature": Rule(
        "signature_delta is the last delta of its block.",
        "The thinking that follows is not covered by the signature and is refused when it comes back.",
    ),
    # --- the finish ---
    "finish.open_block": Rule(
        "All blocks are stopped before message_delta.",
        "The SDKs' 'block finished' callbacks never fire, so a tool may not be run.",
    ),
    "finish.stop_reason": Rule(
        "stop_reason is one of the protocol's.",
        "SDKs pass it on; programs that wait for end_turn or tool_use stall.",
    ),
    "finish.no_stop_sequence": Rule(
        "message_delta has stop_sequence, null mostly.", "No known client minds.", survivable=True
    ),
    "finish.stop_sequence": Rule(
        "stop_sequence is a string exactly when stop_reason is stop_sequence.",
        "Programs that ask which string matched get the wrong answer.",
    ),
    "finish.tools": Rule(
        "stop_reason is tool_use if there is a tool_use block, and only then.",
        "With end_turn clients do not run the tool; with tool_use and no call they wait for nothing.",
    ),
    "finish.usage": Rule(
        "message_delta has usage.output_tokens.",
        "Without `usage` Python raises AttributeError, TypeScript too.",
    ),
    "usage.count": Rule("Usage values are whole numbers, 0 or more.", "Sums become NaN or raise."),
    "error.type": Rule(
        "error.type is one of the protocol's.",
        "Clients cannot tell whether to wait, to compact or to give up.",
    ),
    "error.message": Rule("error.message says something.", "The user sees an empty error."),
    # --- a whole message ---
    "message.shape": Rule(
        "An answer is one Message or one error object.",
        "The SDKs do not check: the program meets None where it wants a value.",
    ),
    "tool.input": Rule(
        "tool_use.input is an object.", "The client refuses the call, or runs it with an empty input."
    ),
}
