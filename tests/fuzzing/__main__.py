"""python -m fuzzing: run targets with atheris, which looks for inputs that reach new code.

Each target runs in a process of its own for --seconds, or one after another if several are named.
An input that leads to a defect is kept in tests/fuzzing/corpus, where the suite reads it from then
on. The exit code is 1 if there is one.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

_CORPUS: Final = Path(__file__).parent / "corpus"
_BYTES_MAX: Final = 4_096


def main() -> int:
    """Run the targets that the arguments name, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help="targets (default: all)")
    parser.add_argument("--seconds", type=int, default=30, help="for each target (default 30)")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments, rest = parser.parse_known_args()
    if arguments.inside:
        _fuzz(arguments.inside, rest)
    from fuzzing.targets import TARGETS

    unknown = set(arguments.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    outcomes = [_run(name, arguments.seconds) for name in arguments.targets or TARGETS]
    return 0 if all(outcomes) else 1


def _run(name: str, seconds: int) -> bool:
    """Run a target in a process of its own; return whether no input led to a defect."""
    from fuzzing.targets import TARGETS, corpus_of

    with tempfile.TemporaryDirectory() as folder:
        inputs, crashes = Path(folder) / "inputs", Path(folder) / "crashes"
        inputs.mkdir()
        crashes.mkdir()
        for data in (*TARGETS[name].seeds, *corpus_of(name)):
            (inputs / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
        command = [sys.executable, "-m", "fuzzing", "--inside", name, str(inputs)]
        limits = [f"-max_total_time={seconds}", f"-max_len={_BYTES_MAX}", "-timeout=10"]
        outcome = subprocess.run(
            [*command, *limits, f"-artifact_prefix={crashes}/", "-print_final_stats=1"],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = outcome.stdout.splitlines() + outcome.stderr.splitlines()
        counts = [line.split()[-1] for line in lines if "number_of_executed_units" in line]
        kept_inputs = [_keep(name, crash) for crash in sorted(crashes.iterdir())]
        _show(f"{name}: {''.join(counts)} inputs, {len(kept_inputs)} defects")
        if kept_inputs or outcome.returncode:
            _show("\n".join([*map(str, kept_inputs), *lines[-40:]]))
        return not kept_inputs and not outcome.returncode


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _keep(name: str, crash: Path) -> Path:
    data = crash.read_bytes()
    path = _CORPUS / name / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def _fuzz(name: str, options: list[str]) -> None:
    """Fuzz a target until the limits in `options`, which end the process."""
    import atheris

    with atheris.instrument_imports(
        include=["divgrpc", "divgrpc_protos", "divgrpc_client", "divgrpc_server"],
        exclude=["divgrpc.kernels"],
    ):
        from fuzzing.targets import TARGETS
    target = TARGETS[name]
    atheris.Setup([sys.argv[0], *options], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
