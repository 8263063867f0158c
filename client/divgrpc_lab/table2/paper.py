"""The paper's Table 2 as data, and what its column h cannot be.

Source: Rao, Jain, Jawahar, "Diverse Yet Efficient Retrieval using Hash Functions", 2015, Table 2:
LSHTC3, 754,000 documents with at least 4 of 259,000 labels. Times are milliseconds on its machine.

The harmonic mean is concave in both its arguments, so the mean over documents of each one's h is at
most the harmonic mean of the mean P and the mean D (Jensen). That holds in all 45 cells of Table 1,
and in one row of five here: the other rows are far above what any documents could give.
"""

from typing import Final, NamedTuple


class PrintedLabels(NamedTuple):
    """A row of the paper's table: precision, recall, f-score, drank, h, milliseconds a document."""

    precision: float
    recall: float
    f_score: float
    diversity: float
    h: float
    milliseconds: float

    @property
    def most(self) -> float:
        """The greatest mean of h that this precision and this diversity allow."""
        return 2 * self.precision * self.diversity / (self.precision + self.diversity)

    def texts(self) -> list[str]:
        """Return all figures, the greatest possible h and the time as the page shows them."""
        return [*(f"{value:.3f}" for value in (*self[:5], self.most)), f"{self.milliseconds} ms"]


# The greatest error of rounding to three digits.
ROUNDING: Final = 0.002
PRINTED: Final = {
    "LEML": PrintedLabels(0.304, 0.196, 0.192, 0.827, 0.534, 137.1),
    "MMR": PrintedLabels(0.275, 0.134, 0.175, 0.865, 0.418, 458.8),
    "PCA-Hash": PrintedLabels(0.265, 0.096, 0.121, 0.872, 0.669, 5.9),
    "LSH-Div": PrintedLabels(0.144, 0.088, 0.083, 0.825, 0.437, 7.2),
    "LSH-SDiv": PrintedLabels(0.318, 0.102, 0.133, 0.919, 0.734, 5.7),
}


def impossible() -> list[str]:
    """Return the rows whose h is above what their P and D allow."""
    return [name for name, row in PRINTED.items() if row.h > row.most + ROUNDING]
