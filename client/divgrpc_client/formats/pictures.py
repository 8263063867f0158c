"""Reads pictures of points, scaled down to thumbnails.

No file outside the folder that the caller names is opened, whatever the ids and attributes of
points are.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from divgrpc.errors import InvalidArgumentError
from divgrpc.types.records import AttributeValue
from divgrpc_client.formats.files import read_column
from divgrpc_client.formats.titles import Id

_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".webp", ".gif")
# Decoders of other formats, some of which start programs, are never used.
_FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF")
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
_KINDS: Final = (
    "a folder of <id>.png, .jpg, .webp or .gif, a pattern such as pictures/{id}.jpg, or an .npy of "
    "(n, height, width) or (n, height, width, 3), of uint8 or shares 0 to 1"
)


class Pictures(Protocol):
    """Pictures of points.

    attributes: names of the attributes that say which picture is whose.
    """

    attributes: frozenset[str]

    def thumbnail(
        self, point: Id, values: Mapping[str, AttributeValue], pixels: int
    ) -> Image.Image | None:
        """Return the picture of a point, at most `pixels` wide and high; None if there is none.

        values: the attributes of the point.

        Raises `InvalidArgumentError` if the file of the picture is none.
        """


def read_pictures(path: Path) -> Pictures:
    """Return the pictures in a folder, in the files of a pattern, or in an array.

    A folder has files <id>.png, .jpg, .jpeg, .webp or .gif. A pattern is the path of a file with
    {id} or the names of attributes in braces, such as photos/{brand}/{id}.jpg. An .npy has the
    shape (n, height, width) or (n, height, width, 3), and its first index is the id. Its values
    are uint8, or floats from 0 to 1.

    Raises `InvalidArgumentError` with the field thumbnails.
    """
    if path.is_dir():
        return PictureFiles(path, [f"{{id}}{suffix}" for suffix in _SUFFIXES])
    if _PLACEHOLDER.search(str(path)):
        return _of_pattern(path)
    array = read_column(str(path), path) if path.suffix == ".npy" else np.empty(0)
    has_shape = array.ndim in (3, 4) and array.shape[3:] in ((), (3,))
    if not has_shape or array.dtype.kind not in "uf":
        raise InvalidArgumentError("thumbnails", f"{path} must be {_KINDS}")
    return PictureArray(array)


def _of_pattern(path: Path) -> "PictureFiles":
    """Return the files of a pattern; their folder ends before the first placeholder."""
    first = next(n for n, part in enumerate(path.parts) if _PLACEHOLDER.search(part))
    folder = Path(*path.parts[:first])
    if not folder.is_dir():
        raise InvalidArgumentError("thumbnails", f"{path}: there is no folder {folder}")
    return PictureFiles(folder, [str(Path(*path.parts[first:]))])


class PictureFiles:
    """Pictures in files of one folder, whose names have ids or attributes in them.

    folder: no file outside of it is opened, not even through a symbolic link.
    patterns: paths of files within the folder, with names in braces; the first file that exists is
        the picture.
    """

    def __init__(self, folder: Path, patterns: list[str]) -> None:
        self._folder, self._patterns = os.path.realpath(folder), patterns
        names = {name for pattern in patterns for name in _PLACEHOLDER.findall(pattern)}
        self.attributes = frozenset(names - {"id"})

    def thumbnail(
        self, point: Id, values: Mapping[str, AttributeValue], pixels: int
    ) -> Image.Image | None:
        """Return the picture of a point; see `Pictures`."""
        path = self._path({**values, "id": point})
        if path is None:
            return None
        try:
            with Image.open(path, formats=_FORMATS) as image:
                image.draft("RGB", (pixels, pixels))
                # Cameras store the orientation beside the pixels.
                upright = ImageOps.exif_transpose(image)
                mode = "RGBA" if upright.has_transparency_data else "RGB"
                return _small(upright.convert(mode), pixels)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            message = f"{path} is no picture: {error}"
            raise InvalidArgumentError("thumbnails", message) from None

    def _path(self, values: Mapping[str, Any]) -> str | None:
        """Return the file of a point with these values; None if no file is in the folder."""
        if any(values.get(name) is None for name in self.attributes):
            return None
        for pattern in self._patterns:
            name = _PLACEHOLDER.sub(lambda match: str(values[match[1]]), pattern)
            path = os.path.join(self._folder, name)
            # `isfile` is false, and raises nothing, for names that no file can have.
            if os.path.isfile(path):
                real = os.path.realpath(path)
                if os.path.commonpath([real, self._folder]) == self._folder:
                    return real
        return None


class PictureArray:
    """Pictures in an array, (n, height, width) or (n, height, width, 3), whose index is the id."""

    attributes: frozenset[str] = frozenset()

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array

    def thumbnail(
        self,
        point: Id,
        values: Mapping[str, AttributeValue],  # noqa: ARG002  # no attribute says which
        pixels: int,
    ) -> Image.Image | None:
        """Return the picture of a point; see `Pictures`."""
        if isinstance(point, str) or not 0 <= point < len(self._array):
            return None
        shades = self._array[point]
        if shades.dtype != np.uint8:
            shades = np.rint(255 * np.clip(shades, 0, 1)).astype(np.uint8)
        return _small(Image.fromarray(shades), pixels)


def _small(image: Image.Image, pixels: int) -> Image.Image:
    image.thumbnail((pixels, pixels))
    return image
