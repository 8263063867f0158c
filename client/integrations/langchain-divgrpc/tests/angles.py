"""An embedding model for tests."""

import numpy as np
from langchain_core.embeddings import Embeddings


class Angles(Embeddings):
    """The vector of the text "40 anything" has an angle of 40 degrees."""

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a text."""
        angle = np.deg2rad(float(text.split(maxsplit=1)[0]))
        return [float(np.cos(angle)), float(np.sin(angle))]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the vectors of texts."""
        return [self.embed_query(text) for text in texts]
