"""The conformance doctor: `antiphon check gateway`, `check upstream` and `check stream`.

It judges from outside, over sockets and captured bytes, and must not import the translation that it
judges: what a stream may look like is written here a second time, from the protocol. Only facts
about servers (`core.dialects.quirks`) and the reading of complaints (`core.complaint`, `core.overflow`)
are shared, because they are what its findings are about.

    antiphon check stream capture.sse
"""
