"""CelebA (Liu et al. 2015): 202,599 faces with forty binary attributes; and FedCMOO's five groups of eight."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyfed.core.errors import BadInput
from polyfed.core.problem import Objective
from polyfed.data import Dataset
from polyfed.data.prepare import scaled
from polyfed.data.store import File, Source, cached, reading, stored

CELEBA = Source(
    "celeba",
    "celeba",
    (
        File("img_align_celeba.zip", ("img_align_celeba",)),
        File("list_attr_celeba.txt"),
        File("list_eval_partition.txt"),
    ),
    "get img_align_celeba.zip, list_attr_celeba.txt and list_eval_partition.txt from "
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, whose terms a person has to accept, and put them",
)
# The five groups of FedCMOO's appendix D.1.
GROUPS = (
    "5_o_Clock_Shadow Blond_Hair Bags_Under_Eyes Eyeglasses Mustache Wavy_Hair Oval_Face Rosy_Cheeks",
    "Arched_Eyebrows Black_Hair Big_Nose Blurry Goatee Straight_Hair Pale_Skin Wearing_Earrings",
    "Attractive Brown_Hair Bushy_Eyebrows Double_Chin Mouth_Slightly_Open Receding_Hairline Wearing_Hat Young",
    "Bald Big_Lips Chubby Heavy_Makeup High_Cheekbones Male Sideburns Smiling",
    "Bangs Gray_Hair Narrow_Eyes No_Beard Pointy_Nose Wearing_Lipstick Wearing_Necklace Wearing_Necktie",
)
BALANCED = ("Attractive", "Male", "Mouth_Slightly_Open")  # together the label that partitions go by
SCALE = partial(scaled, mean=(0.5063, 0.4258, 0.3832), std=(0.3105, 0.2903, 0.2897))

Size = Annotated[int, Field(ge=8, le=218)]
Attributes = dict[str, NDArray[np.uint8]]


@stored("celeba", CELEBA)
def celeba(*, size: Size = 32) -> Dataset:
    """Faces with 40 binary attributes, an objective each; images are scaled to size x size.

    Args:
        size: pixels along each side of an image; the publisher's are 178 x 218.
    """
    x, attributes, train = _faces(size)
    return _dataset(x, attributes, attributes, train)


@stored("celeba-5", CELEBA)
def celeba_5(*, size: Size = 32) -> Dataset:
    """Faces with five objectives, each a group of eight binary attributes; images are scaled to size x size.

    Args:
        size: pixels along each side of an image; the publisher's are 178 x 218.
    """
    x, attributes, train = _faces(size)
    groups = [[attributes[name] for name in group.split()] for group in GROUPS]
    return _dataset(x, {f"group-{g + 1}": np.stack(group, 1) for g, group in enumerate(groups)}, attributes, train)


def _dataset(x: NDArray[np.uint8], targets: Attributes, attributes: Attributes, train: int) -> Dataset:
    attractive, male, open_mouth = (attributes[name].astype(np.int64) for name in BALANCED)
    objectives = tuple(Objective(name, "binary") for name in targets)
    labels = 4 * attractive + 2 * male + open_mouth
    return Dataset(x, targets, objectives, train, labels=labels, prepare=SCALE)


def _faces(size: int) -> tuple[NDArray[np.uint8], Attributes, int]:
    """Images and attributes, first the official training split, then the test split; validation images are left out."""
    pictures, of_attributes, of_splits = CELEBA.paths()
    split = dict(_words(of_splits))
    _, names, *rows = _words(of_attributes)  # how many, what they are called, then a row for each picture
    train, test = ([row for row in rows if split.get(row[0]) == wanted] for wanted in ("0", "2"))
    with reading(of_attributes):
        table = np.array([row[1:] for row in train + test], dtype=np.int8).T > 0
        attributes = {name: column.astype(np.uint8) for name, column in zip(names, table, strict=True)}
    build = partial(_build, pictures, [row[0] for row in train + test], size)
    x = cached(build, "celeba", (of_attributes, of_splits), version=1, size=size)["x"]
    return x, attributes, len(train)


def _words(path: Path) -> list[list[str]]:
    with reading(path):
        return [line.split() for line in path.read_text(encoding="utf-8").splitlines()]


def _build(pictures: Path, names: list[str], size: int, folder: Path) -> None:
    try:
        from PIL import Image
    except ImportError:
        raise BadInput("Reading CelebA's images needs Pillow: pip install pillow.") from None
    x = np.lib.format.open_memmap(folder / "x.npy", mode="w+", dtype=np.uint8, shape=(len(names), 3, size, size))
    with _opener(pictures) as read:
        for i, name in enumerate(names):
            with reading(pictures), Image.open(io.BytesIO(read(name))) as image:
                small = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            x[i] = np.asarray(small).transpose(2, 0, 1)
    x.flush()


@contextmanager
def _opener(pictures: Path) -> Iterator[Callable[[str], bytes]]:
    """A function from a picture's name to its bytes, out of the archive or the folder."""
    if pictures.is_dir():
        yield lambda name: (pictures / name).read_bytes()
        return
    with reading(pictures), zipfile.ZipFile(pictures) as z:
        yield lambda name: z.read(f"img_align_celeba/{name}")
