"""The printed figures of the paper's Table 1, for comparison with our measurements.

Source: Rao, Jain, Jawahar, "Diverse Yet Efficient Retrieval using Hash Functions", 2015, Table 1:
ImageNet, 42,000 images in 7 x 5 categories, hyperplane queries. Times are in seconds on the paper's
machine. The h of a cell is the mean over queries, so it is at most the harmonic mean of the cell's
P and D.
"""

from typing import Final, NamedTuple

METHODS: Final = ("NN", "Rerank", "Greedy", "MMR", "QP-Rel")
FAMILIES: Final = ("NH", "LSH-Div", "LSH-SDiv")
KS: Final = (10, 20, 30)


class Printed(NamedTuple):
    """A cell of the paper's table: precision, sub-topic recall, D, h, and seconds per query."""

    precision: float
    subtopic_recall: float
    diversity: float
    h: float
    seconds: float


# One line for each method and family, with P, SR, D, h and seconds at k = 10, 20 and 30.
_LINES: Final = """
1.00 .60 .53 .66 .621  .99 .72 .60 .73 .721  .99 .79 .65 .77 .845
.97 .79 .76 .84 .112  .93 .93 .86 .89 .137  .89 .98 .91 .90 .179
.98 .76 .73 .83 .181  .95 .89 .85 .89 .183  .92 .95 .89 .90 .106
1.00 .73 .69 .81 .804  .99 .79 .70 .81 .793  .99 .88 .77 .86 .901
.93 .80 .76 .83 .142  .92 .93 .86 .88 .146  .87 .98 .90 .88 .214
.95 .79 .76 .84 .154  .94 .91 .85 .89 .179  .90 .95 .88 .89 .203
.95 .75 .71 .80 5.686  .98 .86 .77 .85 11.193  .97 .90 .80 .87 17.162
.89 .80 .76 .81 1.265  .68 .88 .81 .72 2.392  .53 .89 .80 .62 4.437
.91 .78 .76 .82 .986  .69 .88 .80 .73 2.417  .52 .88 .80 .61 3.537
.92 .73 .68 .77 5.168  .95 .86 .75 .83 10.585  .96 .90 .76 .84 16.524
.91 .77 .73 .80 1.135  .91 .92 .85 .87 2.378  .87 .97 .89 .88 3.828
.92 .78 .75 .81 1.102  .93 .91 .84 .88 2.085  .89 .96 .88 .88 4.106
1.00 .74 .69 .81 704.9  1.00 .82 .73 .84 947.09  1.00 .87 .76 .86 1137.19
.93 .80 .77 .83 .487  .92 .94 .86 .88 .499  .86 .98 .90 .88 .502
.97 .78 .74 .83 .447  .96 .89 .82 .88 .464  .93 .95 .86 .89 .473
"""


def printed() -> dict[tuple[str, str, int], Printed]:
    """Return the table's 45 cells by method, family ("NH" is without hashing) and k."""
    rows = [(method, family) for method in METHODS for family in FAMILIES]
    cells = {}
    for (method, family), line in zip(rows, _LINES.split("\n")[1:-1], strict=True):
        numbers = [float(word) for word in line.split()]
        for at, k in enumerate(KS):
            cells[method, family, k] = Printed(*numbers[5 * at : 5 * at + 5])
    return cells
