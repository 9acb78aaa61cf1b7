"""Decoders, without a network: every cut, members, bounds."""

from __future__ import annotations

import gzip
import zlib

import pytest

from antiphon.server import upstream_encoding
from antiphon.server.upstream_encoding import STEP, EncodingError, Inflater, decoder_for

TEXT = b"data: one\n\ndata: two\n\n" * 20


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def decoded(encoding: str, *pieces: bytes) -> bytes:
    decoder = decoder_for(encoding)
    assert decoder is not None
    text = b"".join(part for piece in pieces for part in decoder.decode(piece))
    decoder.close()
    return text


@pytest.mark.parametrize("value", ["", " ", "identity", "Identity"])
def test_nothing_to_undo(value: str) -> None:
    assert decoder_for(value) is None


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("gzip", gzip.compress(TEXT)),
        ("gzip", gzip.compress(TEXT[:50]) + gzip.compress(b"") + gzip.compress(TEXT[50:])),
        (" X-GZIP ", gzip.compress(TEXT)),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", zlib.compress(TEXT, level=0)),
        ("deflate", raw_deflate(TEXT)),
    ],
    ids=["gzip", "members", "x-gzip", "zlib", "stored", "raw"],
)
def test_every_cut_gives_the_same_text(encoding: str, packed: bytes) -> None:
    for cut in range(len(packed) + 1):
        assert decoded(encoding, packed[:cut], packed[cut:]) == TEXT
    assert decoded(encoding, *(packed[i : i + 1] for i in range(len(packed)))) == TEXT


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_stream_that_is_cut_anywhere_is_an_error(encoding: str) -> None:
    packed = gzip.compress(TEXT) if encoding == "gzip" else zlib.compress(TEXT)
    for cut in range(1, len(packed)):
        with pytest.raises(EncodingError):
            decoded(encoding, packed[:cut])


def test_an_empty_body_is_the_same_in_every_encoding() -> None:
    for encoding in ("gzip", "deflate", "br"):
        assert decoded(encoding) == b""


def test_nothing_is_held_back_that_zlib_could_give() -> None:
    # Long repeats: at some cut zlib has used all its input and still has more output than one step.
    packed = gzip.compress(bytes(STEP + 2000))
    for cut in range(len(packed)):
        known = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(packed[:cut])
        assert b"".join(Inflater(gzip=True).decode(packed[:cut])) == known


def test_a_flushed_piece_comes_out_whole() -> None:
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    decoder = Inflater(gzip=True)
    # Sizes around one step: what zlib holds back when a step is exactly full must come out too.
    for size in (1, STEP - 1, STEP, STEP + 1, 3 * STEP):
        piece = packer.compress(bytes(size)) + packer.flush(zlib.Z_SYNC_FLUSH)
        parts = list(decoder.decode(piece))
        assert sum(map(len, parts)) == size
        assert max(map(len, parts)) <= STEP


def test_one_read_may_expand_only_so_far_but_any_number_of_reads_may(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 4 * STEP
    monkeypatch.setattr(upstream_encoding, "MAX_FROM_ONE_READ", most)
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    decoder = Inflater(gzip=True)
    for _ in range(3):
        decoder.begin_read()
        piece = packer.compress(bytes(most)) + packer.flush(zlib.Z_SYNC_FLUSH)
        assert sum(map(len, decoder.decode(piece))) == most
    decoder.begin_read()
    piece = packer.compress(bytes(most + 1)) + packer.flush(zlib.Z_SYNC_FLUSH)
    produced = 0
    with pytest.raises(EncodingError, match="expands"):
        for part in decoder.decode(piece):
            produced += len(part)
    assert produced <= most


def test_many_members_in_one_read() -> None:
    packed = b"".join(gzip.compress(b"%d," % n) for n in range(2000))
    assert decoded("gzip", packed) == b"".join(b"%d," % n for n in range(2000))
