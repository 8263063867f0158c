"""Result lists as a picture: thumbnails in rows, plain above diverse, the wrong ones boxed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

THUMB: Final = 72
GAP: Final = 10
MARGIN: Final = 44
LABEL_WIDTH: Final = 216
STRIP_HEIGHT: Final = THUMB + 16
BLOCK_GAP: Final = 30
HEADING_HEIGHT: Final = 40
TITLE_HEIGHT: Final = 104

PAPER: Final = (255, 255, 255)
INK: Final = (28, 32, 40)
FAINT: Final = (122, 128, 140)
LINE: Final = (222, 225, 230)
RED: Final = (214, 40, 40)


@dataclass(frozen=True, slots=True)
class Strip:
    """One result list: its name, a line about it, its images and which of them are wrong.

    `images` (k, height, width) hold ink from 0 to 1; `wrong` (k,) is bool.
    """

    name: str
    caption: str
    images: npt.NDArray[np.floating]
    wrong: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Block:
    """The result lists of one query."""

    heading: str
    strips: Sequence[Strip]


def write_contact_sheet(path: Path, title: str, subtitle: str, blocks: Sequence[Block]) -> None:
    """Draw the blocks one below another and write them as a PNG; makes the folder."""
    longest = max(len(strip.images) for block in blocks for strip in block.strips)
    width = 2 * MARGIN + LABEL_WIDTH + longest * (THUMB + GAP) - GAP
    height = TITLE_HEIGHT + MARGIN + sum(_block_height(block) for block in blocks) - BLOCK_GAP
    sheet = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, 34), title, INK, _font(26))
    pen.text((MARGIN, 70), subtitle, FAINT, _font(15))
    top = TITLE_HEIGHT
    for block in blocks:
        _draw_block(sheet, pen, top, block)
        top += _block_height(block)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)


def _block_height(block: Block) -> int:
    return HEADING_HEIGHT + len(block.strips) * STRIP_HEIGHT + BLOCK_GAP


def _draw_block(sheet: Image.Image, pen: ImageDraw.ImageDraw, top: int, block: Block) -> None:
    pen.line((MARGIN, top, sheet.width - MARGIN, top), LINE, 1)
    pen.text((MARGIN, top + 10), block.heading, INK, _font(17))
    for row, strip in enumerate(block.strips):
        _draw_strip(sheet, pen, top + HEADING_HEIGHT + row * STRIP_HEIGHT, strip)


def _draw_strip(sheet: Image.Image, pen: ImageDraw.ImageDraw, top: int, strip: Strip) -> None:
    middle = top + THUMB // 2
    pen.text((MARGIN, middle - 22), strip.name, INK, _font(16))
    pen.text((MARGIN, middle + 2), strip.caption, FAINT, _font(13))
    for column, (image, wrong) in enumerate(zip(strip.images, strip.wrong, strict=True)):
        left = MARGIN + LABEL_WIDTH + column * (THUMB + GAP)
        sheet.paste(_thumbnail(image), (left, top))
        box = (left, top, left + THUMB - 1, top + THUMB - 1)
        pen.rectangle(box, outline=LINE)
        if wrong:
            outer = (box[0] - 3, box[1] - 3, box[2] + 3, box[3] + 3)
            pen.rectangle(outer, outline=RED, width=4)


def _thumbnail(ink: npt.NDArray[np.floating]) -> Image.Image:
    # A margin, since digits fill their images to the edge.
    shades = np.rint(255 * (1 - np.pad(np.clip(ink, 0, 1), 1))).astype(np.uint8)
    return Image.fromarray(shades).resize((THUMB, THUMB), Image.Resampling.BICUBIC).convert("RGB")


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
