"""What the light parts of the core may load."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "divgrpc",
        "divgrpc.types",
        "divgrpc.errors",
        "divgrpc.parameters",
        "divgrpc.storage.generations",
        "divgrpc.metrics",
        "divgrpc.evaluation",
    ],
)
def test_the_light_modules_compile_nothing(module: str) -> None:
    """The client, the fronts and the supervisor import these, and neither numba nor scipy."""
    script = (
        f"import sys, {module}; print(sorted({{'numba', 'scipy', 'llvmlite'}} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_index_is_loaded_when_it_is_asked_for() -> None:
    """`divgrpc.Index` is the engine's, and any other name is an error as usual."""
    import divgrpc
    from divgrpc.index import Index

    assert divgrpc.Index is Index
    with pytest.raises(AttributeError, match="nothing"):
        divgrpc.nothing  # noqa: B018
