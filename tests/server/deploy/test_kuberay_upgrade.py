"""The script that replaces a Ray cluster by a new one, with a `kubectl` that fails at each step."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from divgrpc_server import config as configuration
from support.processes.toolchains import require

_FOLDER: Final = Path(__file__).parents[3] / "server" / "deploy" / "kuberay-upgrade"
_SCRIPT: Final = _FOLDER / "upgrade.sh"
_OLD, _NEW = "divgrpc-ray", "divgrpc-ray-2"
_MANIFEST: Final = """\
metadata:
  name: divgrpc-ray-next
args: |
  server \\
    --metrics
matchLabels: {ray.io/cluster: divgrpc-ray-next}
"""
# It keeps the cluster that the Service selects and the groups of each cluster in files.
_KUBECTL: Final = r"""#!/bin/sh
cd "$STATE"
printf '%s\n' "$*" | tr -s '\n ' ' ' >> calls
echo >> calls
[ "$(wc -l < calls)" -ne "$FAILING" ] || exit 1
case "$1 $2" in
    "get service") cat selected ;;
    "get rayclusters") ls clusters ;;
    "get raycluster") cat "clusters/$3" ;;
    "patch service") printf '%s' "$*" | sed 's/.*":"\([^"]*\)".*/\1/' > selected ;;
    "kustomize "*) cat manifest ;;
    "apply "*)
        cat > applied
        printf 'router shards reader' > "clusters/$(sed -n 's/^  name: //p' applied)" ;;
    "delete raycluster") rm "clusters/$3" ;;
    "patch raycluster")
        place=$(printf '%s' "$*" | sed -n 's|.*/\([0-9]\)/groupName.*|\1|p')
        group=$(printf '%s' "$*" | sed -n 's|.*/groupName", "value": "\(.*\)".*|\1|p')
        [ "$(cut -d ' ' -f "$((place + 1))" "clusters/$3")" = "$group" ] ;;
esac
"""
_STEPS: Final = [
    "get service",
    "patch service",
    "kustomize",
    "apply",
    "wait pod --for=condition=Ready --timeout=10s --selector ray.io/cluster=divgrpc-ray-2,"
    "ray.io/group=reader",
    "patch service",
    "get rayclusters",
    "delete raycluster divgrpc-ray ",
    "wait pod --for=delete --selector ray.io/cluster=divgrpc-ray ",
    "patch raycluster divgrpc-ray-2",
    "wait pod --for=condition=Ready --timeout=10s --selector ray.io/cluster=divgrpc-ray-2,"
    "ray.io/group=router",
    "patch raycluster divgrpc-ray-2",
]
_READER, _SELECTION, _DELETION = 5, 6, 8


class Kubernetes:
    """What the fake `kubectl` reads and writes in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "clusters").mkdir()
        (folder / "clusters" / _OLD).write_text("router shards")
        (folder / "selected").touch()
        (folder / "manifest").write_text(_MANIFEST)
        (folder / "kubectl").write_text(_KUBECTL)
        (folder / "kubectl").chmod(0o700)

    def upgrade(self, *arguments: str, failing: int = 0) -> "subprocess.CompletedProcess[str]":
        """Run the script; `failing` is the number of the call that fails, 0 for none."""
        (self.folder / "calls").write_text("")
        environment = {"STATE": str(self.folder), "FAILING": str(failing)}
        return subprocess.run(
            ["/bin/sh", str(_SCRIPT), "--timeout", "0", "--pause", "0", *arguments],
            env={"PATH": f"{self.folder}:{os.environ['PATH']}"} | environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    @property
    def calls(self) -> list[str]:
        """The arguments of each call of the last upgrade."""
        return (self.folder / "calls").read_text().splitlines()

    @property
    def selected(self) -> str:
        """The cluster that clients call, "" for all."""
        return (self.folder / "selected").read_text()

    @property
    def clusters(self) -> list[str]:
        """The names of all clusters."""
        return sorted(path.name for path in (self.folder / "clusters").iterdir())


@pytest.fixture
def kubernetes(tmp_path: Path) -> Kubernetes:
    return Kubernetes(tmp_path)


def test_a_new_cluster_takes_the_place_of_the_old_one(kubernetes: Kubernetes) -> None:
    outcome = kubernetes.upgrade(_NEW)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert len(kubernetes.calls) == len(_STEPS)
    for call, step in zip(kubernetes.calls, _STEPS, strict=True):
        assert call.startswith(step)
    # Clients call the old cluster alone until the new one is ready.
    assert f'"{_OLD}"' in kubernetes.calls[1]
    assert (kubernetes.selected, kubernetes.clusters) == (_NEW, [_NEW])
    applied = (kubernetes.folder / "applied").read_text()
    assert applied == _MANIFEST.replace("divgrpc-ray-next", _NEW)
    for place, group, count in ((-3, "router", 1), (-1, "reader", 0)):
        assert f'"value": "{group}"' in kubernetes.calls[place]
        assert f'/replicas", "value": {count}' in kubernetes.calls[place]


@pytest.mark.parametrize("step", range(1, 1 + len(_STEPS)))
def test_a_step_that_fails_leaves_what_clients_call(kubernetes: Kubernetes, step: int) -> None:
    """The script goes on when it is run again."""
    outcome = kubernetes.upgrade(_NEW, failing=step)
    assert outcome.returncode != 0
    assert "upgrade.sh: stopped: " in outcome.stderr
    assert len(kubernetes.calls) == step
    assert kubernetes.selected in ({"", _OLD} if step <= _SELECTION else {_NEW})
    assert (_OLD in kubernetes.clusters) == (step <= _DELETION)
    outcome = kubernetes.upgrade(_NEW)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert (kubernetes.selected, kubernetes.clusters) == (_NEW, [_NEW])
    assert '"reader"' in kubernetes.calls[-1]


def test_the_cluster_that_serves_is_not_changed(kubernetes: Kubernetes) -> None:
    """It would lose the server that writes. A new cluster that never served stays."""
    assert kubernetes.upgrade(_NEW, failing=_READER).returncode != 0
    outcome = kubernetes.upgrade(_OLD)
    assert outcome.returncode != 0
    assert f"{_OLD} serves already" in outcome.stderr
    assert "nothing was changed" in outcome.stderr
    assert (kubernetes.selected, kubernetes.clusters) == (_OLD, [_OLD, _NEW])
    for _ in range(2):
        assert kubernetes.upgrade(_NEW).returncode == 0
        assert kubernetes.clusters == [_NEW]
    assert not any(call.startswith(("apply", "delete")) for call in kubernetes.calls)


@pytest.mark.parametrize("arguments", [(), ("Upper",), ("a/b",), ("--other", _NEW)])
def test_wrong_arguments_change_nothing(kubernetes: Kubernetes, arguments: tuple[str, ...]) -> None:
    outcome = kubernetes.upgrade(*arguments)
    assert outcome.returncode != 0
    assert "see --help" in outcome.stderr
    assert kubernetes.calls == []
    assert kubernetes.upgrade("--help").stdout.startswith("usage: upgrade.sh ")


def test_the_first_server_of_a_new_cluster_is_read_only() -> None:
    """Groups are at the places that the script names, and nothing else differs."""
    require("kubectl")
    program = str(shutil.which("kubectl"))
    old, new = (
        subprocess.run(
            [program, "kustomize", str(folder)], check=True, capture_output=True, text=True
        ).stdout
        for folder in (_FOLDER.parent / "kuberay", _FOLDER)
    )
    (cluster,) = yaml.safe_load_all(new)
    assert cluster["metadata"]["name"] == "divgrpc-ray-next"
    router, shards, reader = cluster["spec"]["workerGroupSpecs"]
    assert [group["groupName"] for group in (router, reader)] == ["router", "reader"]
    for group, count in ((router, 0), (reader, 1)):
        assert (group["minReplicas"], group["replicas"], group["maxReplicas"]) == (0, count, 1)
    environment: list[Any] = reader["template"]["spec"]["containers"][0]["env"]
    addition = environment.pop()
    assert reader["template"] == router["template"]
    options = {"DIVGRPC_DATA_DIR": "/data", addition["name"]: addition["value"]}
    assert configuration.load({}, options, None).read_only
    # Two clusters keep apart what their heads remember, by the ids that Kubernetes gives them.
    assert "externalStorageNamespace" not in new
    *_, first = yaml.safe_load_all(old)
    text = yaml.safe_dump(shards).replace("divgrpc-ray-next", _OLD)
    assert yaml.safe_load(text) == first["spec"]["workerGroupSpecs"][1]
