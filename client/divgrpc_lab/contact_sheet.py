"""Draws result lists as an image with rows of thumbnails, in which wrong results are boxed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

# Lengths in pixels.
THUMB, GAP, MARGIN, LABEL_WIDTH = 72, 10, 44, 216
_STRIP_HEIGHT: Final = THUMB + 16
_HEADING_HEIGHT, _TITLE_HEIGHT, _BLOCK_GAP = 40, 104, 30

_PAPER: Final = (255, 255, 255)
_INK: Final = (28, 32, 40)
_FAINT: Final = (122, 128, 140)
_LINE: Final = (222, 225, 230)
RED: Final = (214, 40, 40)


class Strip(NamedTuple):
    """One result list: its name, a caption, its images, and flags for the wrong ones.

    `images` has the shape (k, height, width) and values from 0 (white) to 1 (black). `wrong` has
    the shape (k,) and is bool.
    """

    name: str
    caption: str
    images: npt.NDArray[np.floating]
    wrong: npt.NDArray[np.bool_]


class Block(NamedTuple):
    """The result lists of one query."""

    heading: str
    strips: Sequence[Strip]

    @property
    def height(self) -> int:
        """Height in pixels, including the gap below the block."""
        return _HEADING_HEIGHT + len(self.strips) * _STRIP_HEIGHT + _BLOCK_GAP


def write_contact_sheet(path: Path, title: str, subtitle: str, blocks: Sequence[Block]) -> None:
    """Draw the blocks below each other, write them as a PNG and create its folder if necessary."""
    longest = max(len(strip.images) for block in blocks for strip in block.strips)
    width = 2 * MARGIN + LABEL_WIDTH + longest * (THUMB + GAP) - GAP
    height = _TITLE_HEIGHT + MARGIN + sum(block.height for block in blocks) - _BLOCK_GAP
    sheet = Image.new("RGB", (width, height), _PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, 34), title, _INK, ImageFont.load_default(26))
    pen.text((MARGIN, 70), subtitle, _FAINT, ImageFont.load_default(15))
    top = _TITLE_HEIGHT
    for block in blocks:
        pen.line((MARGIN, top, width - MARGIN, top), _LINE, 1)
        pen.text((MARGIN, top + 10), block.heading, _INK, ImageFont.load_default(17))
        for row, strip in enumerate(block.strips):
            _draw_strip(sheet, pen, top + _HEADING_HEIGHT + row * _STRIP_HEIGHT, strip)
        top += block.height
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)


def _draw_strip(sheet: Image.Image, pen: ImageDraw.ImageDraw, top: int, strip: Strip) -> None:
    middle = top + THUMB // 2
    pen.text((MARGIN, middle - 22), strip.name, _INK, ImageFont.load_default(16))
    pen.text((MARGIN, middle + 2), strip.caption, _FAINT, ImageFont.load_default(13))
    for column, (image, wrong) in enumerate(zip(strip.images, strip.wrong, strict=True)):
        x = MARGIN + LABEL_WIDTH + column * (THUMB + GAP)
        sheet.paste(_thumbnail(image), (x, top))
        right, bottom = x + THUMB - 1, top + THUMB - 1
        pen.rectangle((x, top, right, bottom), outline=_LINE)
        if wrong:
            pen.rectangle((x - 3, top - 3, right + 3, bottom + 3), outline=RED, width=4)


def _thumbnail(ink: npt.NDArray[np.floating]) -> Image.Image:
    # Pad the image, because digits fill it to the edge.
    shades = np.rint(255 * (1 - np.pad(np.clip(ink, 0, 1), 1))).astype(np.uint8)
    return Image.fromarray(shades).resize((THUMB, THUMB), Image.Resampling.BICUBIC).convert("RGB")
