"""The printed figures of the paper's Table 2, and upper bounds of its column h.

Source: Rao, Jain, Jawahar, "Diverse Yet Efficient Retrieval using Hash Functions", 2015, Table 2:
LSHTC3, 754,000 documents with at least 4 of 259,000 labels. Times are in milliseconds on the
paper's machine.

The harmonic mean is a concave function of both arguments. By Jensen's inequality, the mean of h
over documents is therefore at most the harmonic mean of the mean P and the mean D. This bound holds
in all 45 cells of Table 1, but only in one of the five rows of Table 2. The h of the other rows is
far above the bound, so no set of documents can have these figures.
"""

from typing import Final, NamedTuple


class PrintedLabels(NamedTuple):
    """A row of the paper's table; `diversity` is drank.

    `milliseconds` is the time per document.
    """

    precision: float
    recall: float
    f_score: float
    diversity: float
    h: float
    milliseconds: float

    @property
    def most(self) -> float:
        """Upper bound of the mean h, given the mean precision and the mean diversity."""
        return 2 * self.precision * self.diversity / (self.precision + self.diversity)

    def texts(self) -> list[str]:
        """Return all figures, the upper bound of h and the time, formatted for the page."""
        return [*(f"{value:.3f}" for value in (*self[:5], self.most)), f"{self.milliseconds} ms"]


# Tolerance for the rounding of printed figures to three decimals.
ROUNDING: Final = 0.002
PAPER_ROWS: Final = {
    "LEML": PrintedLabels(0.304, 0.196, 0.192, 0.827, 0.534, 137.1),
    "MMR": PrintedLabels(0.275, 0.134, 0.175, 0.865, 0.418, 458.8),
    "PCA-Hash": PrintedLabels(0.265, 0.096, 0.121, 0.872, 0.669, 5.9),
    "LSH-Div": PrintedLabels(0.144, 0.088, 0.083, 0.825, 0.437, 7.2),
    "LSH-SDiv": PrintedLabels(0.318, 0.102, 0.133, 0.919, 0.734, 5.7),
}


def impossible() -> list[str]:
    """Return the names of the rows whose h exceeds the bound that P and D imply."""
    return [name for name, row in PAPER_ROWS.items() if row.h > row.most + ROUNDING]
