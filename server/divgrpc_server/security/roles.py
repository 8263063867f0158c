"""Which role a caller needs for each method.

A role includes the methods of the roles before it.
"""

from collections.abc import Mapping
from typing import Final

ROLES: Final = ("reader", "writer", "admin")
_READER: Final = (
    *("Query", "QueryStream", "PredictLabels", "Diversify", "DiversifyStream", "Get", "Count"),
    *("Scroll", "GetIndex", "ListIndexes", "GetServerInfo", "Diagnose", "Evaluate"),
    "EvaluateLabels",
)
_WRITER: Final = ("Upsert", "Delete", "WriteStream")
_ADMIN: Final = ("Build", "BuildOnce", "AddAttributes", "Compact", "Retrain", "DeleteIndex")
# Evaluations that set the defaults of an index change it for all callers.
SETTING_DEFAULTS: Final = "admin"
ROLE_OF_METHOD: Final[Mapping[str, str]] = {
    **dict.fromkeys(_READER, "reader"),
    **dict.fromkeys(_WRITER, "writer"),
    **dict.fromkeys(_ADMIN, "admin"),
}


# The place in `ROLES` of the role that a method needs.
RANK_OF_METHOD: Final = {method: ROLES.index(role) for method, role in ROLE_OF_METHOD.items()}
_WRITES: Final = frozenset(method for method, rank in RANK_OF_METHOD.items() if rank > 0)


def includes(role: str, needed: str) -> bool:
    """Return whether `role` may do what `needed` may."""
    return ROLES.index(role) >= ROLES.index(needed)


def is_write(method: str) -> bool:
    """Return whether a method changes indexes, so that the audit log has a line for each call."""
    return method in _WRITES
