"""An installation without extras, which the tests imitate by hiding the packages of the extras."""

import subprocess
import sys

import pytest


def run_without(missing: tuple[str, ...], code: str) -> "subprocess.CompletedProcess[str]":
    """Run a program that cannot import some packages."""
    program = f"import sys; sys.modules.update(dict.fromkeys({missing}))\n{code}"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("missing", "code", "message"),
    [
        (
            ("numba", "scipy", "structlog"),
            "from divgrpc_server.__main__ import main; sys.argv[1:] = []; main()",
            "divgrpc-server needs numba: install divgrpc[server]\n",
        ),
        (
            ("rich",),
            "from divgrpc_client.cli.main import main; sys.exit(main(['ls']))",
            "divgrpc: this command needs rich: install divgrpc[cli]\n",
        ),
        (
            ("rich", "rich.live"),
            "from divgrpc_client.cli.main import main\n"
            "sys.exit(main(['load', 'x', '--rate', '1']))",
            "divgrpc: load needs rich: install divgrpc[cli]\n",
        ),
        (
            ("numba",),
            "from divgrpc_client.cli.main import main; sys.exit(main(['warm']))",
            "divgrpc: compiling kernels needs numba: install divgrpc[server]\n",
        ),
        *(
            (
                (name,),
                "from divgrpc_client.cli.main import main; "
                "sys.exit(main(['evaluate', 'x', 'x.npy', '--report', 'x.html']))",
                f"divgrpc: a report needs {name}: install divgrpc[report]\n",
            )
            for name in ("matplotlib", "jinja2")
        ),
        (
            ("werkzeug", "werkzeug.exceptions"),
            "from divgrpc_client.cli.main import main; sys.exit(main(['explore', 'x']))",
            "divgrpc: the page needs werkzeug: install divgrpc[report]\n",
        ),
    ],
)
def test_programs_name_their_extra(missing: tuple[str, ...], code: str, message: str) -> None:
    """A program whose extra is missing ends with one line that names the extra."""
    ran = run_without(missing, code)
    assert (ran.returncode, ran.stderr) == (1, message)


@pytest.mark.parametrize("missing", ["numba", "llvmlite"])
def test_the_engine_names_its_extra(missing: str) -> None:
    """Without numba, importing `divgrpc.Index` raises an ImportError that names the extra."""
    code = "try:\n    from divgrpc import Index\nexcept ImportError as error:\n    print(error)\n"
    ran = run_without((missing,), f"import divgrpc.errors\n{code}")
    assert ran.stdout == f"divgrpc.Index needs {missing}: install divgrpc[server]\n", ran.stderr
