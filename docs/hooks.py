"""What mkdocs cannot do by itself: pages that are made of other files of the repository."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

# mkdocs loads a hook by its path, so its folder is not on the import path.
sys.path.insert(0, str(Path(__file__).parent))

import grpc_reference
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parent.parent


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the gRPC API and the changelog."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    pages = {"reference/grpc.md": grpc_reference.page(), "reference/changelog.md": changelog}
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files
