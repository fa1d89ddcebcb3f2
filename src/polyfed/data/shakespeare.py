"""Tiny Shakespeare (Karpathy 2015): 40,000 lines of the plays; every speaker is a user, as in LEAF's Shakespeare."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyfed.core.errors import BadInput
from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.store import File, Source, stored, unpacked

_TEXT = File(
    "tinyshakespeare.txt",
    ("tinyshakespeare.txt.gz",),
    url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    checksum="sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
)
SHAKESPEARE = Source("shakespeare", "shakespeare", (_TEXT,))
LENGTH = 80  # characters to predict the next one from

Symbols = NDArray[np.uint8]


@stored("shakespeare", SHAKESPEARE)
def shakespeare(
    *, speakers: Annotated[int, Field(ge=1)] | None = None, stride: Annotated[int, Field(ge=1)] = 1
) -> Dataset:
    """The next character after 80, as symbol numbers; objective 'character'; key 'speaker', all or the wordiest few.

    What a speaker says is one text, over all plays. Its first 80 % are for the client, the rest is the server's test
    data, so that no example overlaps another split; a speaker too short for one example is left out.

    Args:
        speakers: how many, those who say the most; all if not given.
        stride: characters between the beginnings of two examples; 1 for one at every character.
    """
    content = np.frombuffer(unpacked(SHAKESPEARE.paths()[0]), np.uint8)
    number = (np.cumsum(np.bincount(content, minlength=256) > 0) - 1).astype(np.uint8)  # of each symbol that occurs
    texts = [number[np.frombuffer(text, np.uint8)] for text in _texts(content.tobytes(), speakers)]
    ends = [len(text) * 4 // 5 for text in texts]
    train = [_examples(text[:end], stride) for text, end in zip(texts, ends, strict=True)]
    test = [_examples(text[end:], stride) for text, end in zip(texts, ends, strict=True)]
    examples = np.concatenate(train + test)
    following = examples[:, -1].astype(np.int64)
    return Dataset(
        x=examples[:, :-1],
        targets={"character": following},
        objectives=(Objective("character", "cross-entropy"),),
        train=sum(map(len, train)),
        labels=following,
        keys={"speaker": np.repeat(np.tile(np.arange(len(texts)), 2), [len(part) for part in train + test])},
    )


def _texts(content: bytes, speakers: int | None) -> list[bytes]:
    """What each speaker says, in the order of their first words; speeches are parted by an empty line."""
    said: dict[bytes, list[bytes]] = {}
    for speech in content.split(b"\n\n"):
        name, _, words = speech.strip(b"\n").partition(b"\n")
        said.setdefault(name, []).append(words)
    texts = [text for text in (b"\n".join(speeches) for speeches in said.values()) if len(text) * 4 // 5 > LENGTH]
    if (speakers or 1) > len(texts):
        raise BadInput(f"data.speakers should be at most the {len(texts)} who say enough. Found {speakers or 'all'}.")
    least = sorted(map(len, texts), reverse=True)[(speakers or len(texts)) - 1]
    return [text for text in texts if len(text) >= least][:speakers]


def _examples(text: Symbols, stride: int) -> Symbols:
    """80 characters and the next, from every stride-th place of a text."""
    if len(text) <= LENGTH:
        return np.empty((0, LENGTH + 1), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(text, LENGTH + 1)[::stride]
