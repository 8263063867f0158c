"""The manifest of a Ray cluster: each field that the service relies on."""

import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from divgrpc_server import config as configuration
from divgrpc_server.__main__ import parser
from divgrpc_server.config import Config

_FOLDER: Final = Path(__file__).parents[3] / "server" / "deploy" / "kuberay"
_KUBERNETES: Final = _FOLDER.parent / "kubernetes"
_RECONNECT: Final = "RAY_gcs_rpc_server_reconnect_timeout_s"
_UNITS: Final = {"Mi": 2**20, "Gi": 2**30}


def read(name: str, folder: Path = _FOLDER) -> Any:  # noqa: ANN401  # any document
    return yaml.safe_load((folder / name).read_text())


CLUSTER: Final = read("raycluster.yaml")["spec"]
GROUPS: Final = {
    "head": CLUSTER["headGroupSpec"],
    **{group["groupName"]: group for group in CLUSTER["workerGroupSpecs"]},
}


def pod_of(name: str) -> Any:  # noqa: ANN401  # a part of the document
    return GROUPS[name]["template"]["spec"]


def container_of(name: str) -> Any:  # noqa: ANN401  # a part of the document
    (container,) = pod_of(name)["containers"]
    return container


def router_options() -> dict[str, Any]:
    """Return the options of the server that clients call, which must be valid."""
    (script,) = container_of("router")["args"]
    ray, server = script.replace("\\\n", " ").strip().split("\n")
    assert ray == 'eval "$KUBERAY_GEN_RAY_START_CMD" &'
    words = shlex.split(server.replace("$FQ_RAY_IP", "head"))
    assert words[:2] == ["exec", "divgrpc-server"]
    options = vars(parser().parse_args(words[2:]))
    config = configuration.load(options, {"DIVGRPC_DATA_DIR": "/data"}, None)
    assert config.starts_shard_servers
    return options


def bytes_of(quantity: str) -> int:
    match = re.fullmatch(r"(\d+)(Mi|Gi)", quantity)
    assert match is not None
    return int(match[1]) * _UNITS[match[2]]


def test_the_head_remembers_and_asks_for_a_token() -> None:
    document = read("raycluster.yaml")
    assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", "RayCluster")
    assert CLUSTER["authOptions"] == {"mode": "token", "secretName": "divgrpc-ray-token"}
    tolerance = CLUSTER["gcsFaultToleranceOptions"]
    assert tolerance["redisAddress"].endswith(":6379")
    assert "secretKeyRef" in tolerance["redisPassword"]["valueFrom"]
    lock = (_FOLDER.parents[2] / "requirements-ray.lock").read_text()
    assert f"\nray=={CLUSTER['rayVersion']} \\\n" in lock


@pytest.mark.parametrize("name", GROUPS)
def test_each_pod_outlives_the_head_and_has_its_own_probes(name: str) -> None:
    container, pod = container_of(name), pod_of(name)
    environment = {entry["name"]: entry["value"] for entry in container["env"]}
    assert int(environment[_RECONNECT]) == 3600
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert GROUPS[name]["rayStartParams"]["disable-usage-stats"] == "true"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe].keys() & {"exec", "httpGet"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 120
    assert pod["terminationGracePeriodSeconds"] > Config().grace
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"].keys() == {"requests", "limits"}
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_probes_ask_what_bare_ray_answers() -> None:
    head = container_of("head")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert head[probe]["exec"]["command"][:2] == ["ray", "health-check"]
    shards = container_of("shards")
    for probe in ("startupProbe", "readinessProbe"):
        assert "ray health-check" in shards[probe]["exec"]["command"][-1]
    # It would end nodes that answer, if it asked the head.
    assert "health-check" not in shards["livenessProbe"]["exec"]["command"][-1]
    router = container_of("router")
    paths = {name: router[name]["httpGet"]["path"] for name in router if name.endswith("Probe")}
    server = read("statefulset.yaml", _KUBERNETES)["spec"]["template"]["spec"]["containers"][0]
    assert paths == {name: server[name]["httpGet"]["path"] for name in paths}


def test_shards_have_nodes_of_their_own() -> None:
    options = router_options()
    size = int(options["shard_memory"])
    for name in ("head", "router"):
        assert int(GROUPS[name]["rayStartParams"]["memory"]) < size
    assert GROUPS["shards"]["replicas"] > int(options["replicas"])
    # Replicas of a place are apart, so a node gets at most one server of each place. Ray offers
    # 70 % of the memory.
    limit = bytes_of(container_of("shards")["resources"]["limits"]["memory"])
    assert int(options["shards"]) * size <= 0.7 * limit
    labels = GROUPS["shards"]["template"]["metadata"]["labels"]
    affinity = pod_of("shards")["affinity"]["podAntiAffinity"]
    (rule,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    # Two clusters may share machines, for an upgrade.
    cluster = {"ray.io/cluster": read("raycluster.yaml")["metadata"]["name"]}
    assert rule["labelSelector"]["matchLabels"] == labels | cluster


def test_the_router_is_a_node_that_clients_find() -> None:
    options, metadata = router_options(), GROUPS["router"]["template"]["metadata"]
    assert options["ray_address"] == "head:6379"
    # The operator then runs this command instead of its own.
    assert metadata["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    service = read("service.yaml")["spec"]
    assert service["clusterIP"] == "None"
    assert service["selector"] == metadata["labels"]
    ports = {port["name"] for port in container_of("router")["ports"]}
    assert {port["targetPort"] for port in service["ports"]} == ports
    resources = read("kustomization.yaml")["resources"]
    assert {*resources, "kustomization.yaml"} == {path.name for path in _FOLDER.iterdir()}


def test_nodes_have_the_files_that_shard_servers_are_started_with() -> None:
    options = router_options()
    paths = [options["cluster_ca"], options["tls_cert"], options["tls_key"], "/data/points"]
    for name in ("router", "shards"):
        mounts = [mount["mountPath"] for mount in container_of(name)["volumeMounts"]]
        assert all(any(path.startswith(f"{mount}/") for mount in mounts) for path in paths)
    (data,) = (m for m in container_of("shards")["volumeMounts"] if m["name"] == "data")
    assert data["readOnly"] is True
    # A token on the command line could be read by every process of the pod.
    assert options["cluster_token"] == "/cluster/token"  # noqa: S105  # a file
