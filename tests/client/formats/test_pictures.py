"""Pictures of points, and files that must not be read."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats.pictures import read_pictures


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of pictures beside a picture that is outside of it."""
    folder = tmp_path / "pictures"
    for name in ("5.jpg", "red/7.png", "a.png"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (300, 200)).save(path)
    Image.new("RGB", (30, 20)).save(tmp_path / "secret.png")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "inner.png").symlink_to(folder / "a.png")
    return folder


def test_a_folder_has_pictures_by_id(folder: Path) -> None:
    pictures = read_pictures(folder)
    image = pictures.thumbnail(5, {}, 64)
    assert image is not None
    assert image.size == (64, 43)
    assert pictures.thumbnail("a", {}, 64) is not None
    assert pictures.thumbnail("inner", {}, 64) is not None
    assert pictures.thumbnail(6, {}, 64) is None


@pytest.mark.parametrize(
    "point", ["../secret", "red/../../secret", "link", "a\0", "x" * 300, "", ".", "/etc/passwd"]
)
def test_no_file_outside_the_folder_is_read(folder: Path, point: str) -> None:
    pictures = read_pictures(folder)
    assert pictures.thumbnail(point, {}, 64) is None
    pattern = read_pictures(folder / "{name}.png")
    assert pattern.thumbnail(0, {"name": point}, 64) is None
    absolute = str(folder.parent / "secret")
    assert pictures.thumbnail(absolute, {}, 64) is None
    assert pattern.thumbnail(0, {"name": absolute}, 64) is None


def test_a_pattern_has_ids_and_attributes(folder: Path) -> None:
    pictures = read_pictures(folder / "{colour}" / "{id}.png")
    assert pictures.attributes == {"colour"}
    assert pictures.thumbnail(7, {"colour": "red"}, 64) is not None
    assert pictures.thumbnail(8, {"colour": "red"}, 64) is None
    assert pictures.thumbnail(7, {"colour": None}, 64) is None
    with pytest.raises(InvalidArgumentError, match="no folder"):
        read_pictures(folder / "nowhere" / "{id}.png")


def test_pixels_are_turned_and_keep_their_transparency(tmp_path: Path) -> None:
    """A camera stores how it was held; value 6 means that the picture is to be turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (300, 200)).save(tmp_path / "1.jpg", exif=exif)
    Image.new("RGBA", (10, 10), (0, 0, 0, 0)).save(tmp_path / "2.png")
    pictures = read_pictures(tmp_path)
    turned, clear = pictures.thumbnail(1, {}, 60), pictures.thumbnail(2, {}, 60)
    assert turned is not None
    assert turned.size == (40, 60)
    assert clear is not None
    assert (clear.mode, clear.getpixel((0, 0))) == ("RGBA", (0, 0, 0, 0))


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_text("no picture")
    Image.new("RGB", (10, 10)).save(tmp_path / "2.png", format="TIFF")
    pictures = read_pictures(tmp_path)
    for point in (1, 2):
        with pytest.raises(InvalidArgumentError, match="no picture"):
            pictures.thumbnail(point, {}, 64)


def test_an_array_has_pictures_by_row(tmp_path: Path) -> None:
    path = tmp_path / "pictures.npy"
    for array in (np.zeros((2, 8, 8), np.uint8), np.ones((2, 8, 8)), np.ones((2, 8, 8, 3))):
        np.save(path, array)
        pictures = read_pictures(path)
        image = pictures.thumbnail(1, {}, 64)
        assert image is not None
        assert image.size == (8, 8)
        assert [pictures.thumbnail(point, {}, 64) for point in (2, -1, "1")] == [None] * 3
