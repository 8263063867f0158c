"""Files for containers, Kubernetes and systemd: they fit one another and the server.

Where a checker is installed, it checks them too. `make image` builds the image.
"""

import configparser
import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from divgrpc_server import config as configuration
from divgrpc_server.__main__ import parser
from divgrpc_server.config import Config
from support.processes.toolchains import require, skip

_ROOT: Final = Path(__file__).parents[3]
_DEPLOY: Final = _ROOT / "server" / "deploy"
_KUBERNETES: Final = _DEPLOY / "kubernetes"
_REPLICAS: Final = _DEPLOY / "kubernetes-replicas"
_SHARDS: Final = _DEPLOY / "kubernetes-shards"
_CONTAINERFILE: Final = _DEPLOY / "Containerfile"
_ENTRYPOINT: Final = _DEPLOY / "entrypoint.sh"
_SHELL: Final = "/bin/sh"
_UNIT: Final = _DEPLOY / "divgrpc.service"
_GRPC_PORT, _METRICS_PORT = 50051, 9464
# The folders of manifests, and the kinds of what runs pods, by the names of the pods.
_PODS: Final = {
    "divgrpc": (_KUBERNETES, "StatefulSet"),
    "divgrpc-replica": (_REPLICAS, "Deployment"),
    "divgrpc-shard": (_SHARDS, "StatefulSet"),
}
_PROBES: Final = {
    "startupProbe": "/startupz",
    "readinessProbe": "/readyz",
    "livenessProbe": "/livez",
}
_FLAGS: Final = {
    "avx2": "x86-64-v3",
    "avx512bw avx512cd avx512dq avx512f avx512vl": "x86-64-v4",
}


def options_of(command: list[str]) -> dict[str, Any]:
    """Return the options of a command line of the server, which must be valid."""
    program, *arguments = command
    assert Path(program).name == "divgrpc-server"
    options = vars(parser().parse_args(arguments))
    options.pop("config", None)
    assert configuration.load(options, {"DIVGRPC_DATA_DIR": "/data"}, None)
    return options


def _program(name: str) -> str:
    require(name)
    return str(shutil.which(name))


def read_yaml(path: Path) -> Any:  # noqa: ANN401  # any document
    return yaml.safe_load(path.read_text())


# The image.


def instructions() -> Iterator[tuple[str, str]]:
    """Yield the instructions of the Containerfile, each with its arguments."""
    text = re.sub(r"^\s*#.*\n", "", _CONTAINERFILE.read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, " ".join(rest.split())


def test_the_image_is_built_from_what_exists() -> None:
    stages = " ".join(rest for word, rest in instructions() if word == "FROM")
    assert stages == "${BASE} AS build ${BASE}"
    sources = [rest.split()[0] for word, rest in instructions() if word == "COPY"]
    files = ["requirements-server.lock", "server/deploy/entrypoint.sh"]
    assert sources == [files[0], ".", "--from=build", files[1]]
    assert all((_ROOT / file).is_file() for file in files)
    ignored = (_ROOT / ".dockerignore").read_text().split()
    assert {".venv", ".git"} <= set(ignored)
    runs = " ".join(rest for word, rest in instructions() if word == "RUN")
    assert "--require-hashes --requirement requirements-server.lock" in runs
    assert "for level in x86-64-v3 x86-64-v4" in runs


def test_the_image_runs_as_another_user_and_its_defaults_are_valid() -> None:
    words = dict(instructions())
    assert words["USER"] == "10001:10001"
    assert words["EXPOSE"] == str(_GRPC_PORT)
    assert words["ENTRYPOINT"] == '["divgrpc-entrypoint"]'
    assert words["CMD"] == '["divgrpc-server"]'
    environment = dict(pair.split("=", 1) for pair in words["ENV"].split())
    fields = {field.name for field in dataclasses.fields(Config)}
    names = {name.removeprefix("DIVGRPC_").lower() for name in environment}
    assert names & fields == {"data_dir", "listen", "log_format"}
    config = configuration.load({}, environment, None)
    assert (config.data_dir, config.port) == ("/data", _GRPC_PORT)


def test_the_lock_of_the_image_has_what_the_server_needs() -> None:
    pinned = dict(
        re.findall(r"^([a-z0-9-]+)==(\S+)", (_ROOT / "requirements.lock").read_text(), re.M)
    )
    text = (_ROOT / "requirements-server.lock").read_text()
    lock = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.M))
    assert text.count("--hash=sha256:") >= len(lock)
    assert all(pinned.get(name, version) == version for name, version in lock.items())
    extras = re.search(
        r"^server = \[\n(.*?)^\]", (_ROOT / "pyproject.toml").read_text(), re.M | re.S
    )
    assert extras is not None
    needed = set(re.findall(r'^    "([a-z0-9_-]+)', extras[1], re.M))
    assert {name.replace("_", "-") for name in needed} <= lock.keys()
    assert "hatchling" in lock


# The entry point.


def run_entrypoint(**environment: str) -> dict[str, str]:
    """Return the environment of a command that the entry point runs."""
    outcome = subprocess.run(
        [_SHELL, str(_ENTRYPOINT), "env"],
        env={"PATH": os.environ["PATH"]} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(line.split("=", 1) for line in outcome.stdout.splitlines())


def test_the_entry_point_chooses_kernels_for_the_processor() -> None:
    flags = set(Path("/proc/cpuinfo").read_text().split())
    levels = [level for names, level in _FLAGS.items() if flags.issuperset(names.split())]
    environment = run_entrypoint(
        NUMBA_CPU_FEATURES="",
        DIVGRPC_KERNEL_CACHE="/usr/local/lib/divgrpc/kernels",
        DIVGRPC_DATA_DIR="/data",
    )
    if levels:
        assert environment["NUMBA_CPU_NAME"] == levels[-1]
        assert environment["DIVGRPC_KERNEL_CACHE"] == "/usr/local/lib/divgrpc/kernels"
    else:
        assert "NUMBA_CPU_NAME" not in environment
        assert environment["DIVGRPC_KERNEL_CACHE"] == "/data/.kernels"


def test_the_entry_point_keeps_a_choice_and_the_exit_code() -> None:
    assert run_entrypoint(NUMBA_CPU_NAME="haswell")["NUMBA_CPU_NAME"] == "haswell"
    command = [_SHELL, str(_ENTRYPOINT), _SHELL, "-c", "exit 7"]
    assert subprocess.run(command, check=False).returncode == 7
    assert os.access(_ENTRYPOINT, os.X_OK)


@pytest.mark.parametrize("script", [_ENTRYPOINT, _DEPLOY / "kuberay-upgrade" / "upgrade.sh"])
def test_a_checker_of_shell_scripts_finds_nothing(script: Path) -> None:
    subprocess.run([_program("shellcheck"), str(script)], check=True)


# Compose.


def test_compose_runs_the_image_safely() -> None:
    document = read_yaml(_DEPLOY / "compose.yaml")
    service = document["services"]["divgrpc"]
    build = service["build"]
    context = (_DEPLOY / build["context"]).resolve()
    assert context == _ROOT
    assert context / build["dockerfile"] == _CONTAINERFILE
    options = options_of(service["command"])
    assert options["insecure"] is True
    # Only programs on this machine reach a server without TLS.
    assert service["ports"] == [f"127.0.0.1:{_GRPC_PORT}:{_GRPC_PORT}"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["volumes"] == ["data:/data"]
    assert "data" in document["volumes"]
    assert int(service["stop_grace_period"].rstrip("s")) > Config().grace
    assert options["metrics"] == f"127.0.0.1:{_METRICS_PORT}"
    assert f"http://{options['metrics']}/readyz" in service["healthcheck"]["test"][-1]


# Kubernetes.


def manifests(folder: Path = _KUBERNETES) -> dict[str, Any]:
    """Return the documents in a folder that its kustomization.yaml names, by their kind."""
    resources = read_yaml(folder / "kustomization.yaml")["resources"]
    names = [name for name in resources if not (folder / name).is_dir()]
    assert {*names, "kustomization.yaml"} == {path.name for path in folder.iterdir()}
    documents = [read_yaml(folder / name) for name in names]
    return {document["kind"]: document for document in documents}


@pytest.mark.parametrize("name", _PODS)
def test_a_pod_is_probed_limited_and_cannot_write_elsewhere(name: str) -> None:
    folder, kind = _PODS[name]
    documents = manifests(folder)
    pod = documents[kind]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": _GRPC_PORT, "metrics": _METRICS_PORT}
    for probe, path in _PROBES.items():
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
    # A first start may compile for two minutes.
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 120
    assert container["resources"].keys() == {"requests", "limits"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    user = dict(instructions())["USER"].split(":")
    context = pod["securityContext"]
    assert [str(context["runAsUser"]), str(context["runAsGroup"])] == user
    assert context["runAsNonRoot"] is True
    # Secrets belong to this group, which alone may read them.
    assert context["fsGroup"] == context["runAsGroup"]
    secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert {secret["defaultMode"] for secret in secrets} == {0o440}
    assert pod["terminationGracePeriodSeconds"] > Config().grace
    volumes = {volume["name"] for volume in pod["volumes"]}
    claims = documents[kind]["spec"].get("volumeClaimTemplates", [])
    volumes |= {claim["metadata"]["name"] for claim in claims}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == volumes
    options = options_of(container["args"])
    assert options["metrics"] == f"0.0.0.0:{_METRICS_PORT}"
    is_shard = options.get("role") == "shard"
    callers = ("cluster_token", "cluster") if is_shard else ("tokens", "tokens")
    for option, volume in (("tls_cert", "tls"), ("tls_key", "tls"), callers):
        assert options[option].startswith(f"{mounts[volume]}/")
    assert mounts["data"] == "/data"


@pytest.mark.parametrize("name", _PODS)
def test_selectors_find_the_pods(name: str) -> None:
    folder, kind = _PODS[name]
    documents, labels = manifests(folder), {"app.kubernetes.io/name": name}
    pods, service = documents[kind]["spec"], documents["Service"]
    assert pods["template"]["metadata"]["labels"] == labels
    assert pods["selector"]["matchLabels"] == labels
    # Headless, so that clients know each pod.
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == labels
    assert documents["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert {document["metadata"]["name"] for document in documents.values()} == {name}
    (image,) = read_yaml(folder / "kustomization.yaml")["images"]
    (container,) = pods["template"]["spec"]["containers"]
    assert container["image"] == image["name"]
    targets = {port["targetPort"] for port in service["spec"]["ports"]}
    assert targets == {port["name"] for port in container["ports"]}


def test_one_server_writes_and_replicas_read_its_volume() -> None:
    writer = manifests()["StatefulSet"]["spec"]
    replicas = manifests(_REPLICAS)["Deployment"]["spec"]
    assert writer["serviceName"] == manifests()["Service"]["metadata"]["name"]
    assert writer["replicas"] == 1
    assert replicas["replicas"] == 3
    options = [
        options_of(pods["template"]["spec"]["containers"][0]["args"]) for pods in (writer, replicas)
    ]
    assert [options.get("read_only", False) for options in options] == [False, True]
    pod = replicas["template"]["spec"]
    (spread,) = pod["topologySpreadConstraints"]
    assert spread["labelSelector"] == replicas["selector"]
    (data,) = (volume for volume in pod["volumes"] if volume["name"] == "data")
    claim, name = writer["volumeClaimTemplates"][0], manifests()["StatefulSet"]["metadata"]["name"]
    assert data["persistentVolumeClaim"] == {
        "claimName": f"{claim['metadata']['name']}-{name}-0",
        "readOnly": True,
    }
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "data")
    assert mount["readOnly"] is True
    # Several nodes mount the volume.
    document = read_yaml(_REPLICAS / "kustomization.yaml")
    assert (_REPLICAS / document["resources"][0]).resolve() == _KUBERNETES
    (patch,) = document["patches"]
    assert patch["target"] == {"kind": "StatefulSet", "name": name}
    (operation,) = yaml.safe_load(patch["patch"])
    assert operation["op"] == "replace"
    value: Any = {"spec": writer}
    *path, last = operation["path"].strip("/").split("/")
    for part in path:
        value = value[int(part) if part.isdigit() else part]
    assert (value[last], operation["value"]) == (["ReadWriteOnce"], ["ReadWriteMany"])


def test_the_server_that_routes_names_the_pods_of_shard_servers() -> None:
    """Each is on a node of its own, so that the loss of a node leaves a server at each place."""
    document = read_yaml(_SHARDS / "kustomization.yaml")
    assert (_SHARDS / document["resources"][0]).resolve() == _KUBERNETES
    (patch,) = document["patches"]
    pods, router = (manifests(f)["StatefulSet"]["spec"]["template"] for f in (_SHARDS, _KUBERNETES))
    (container,) = router["spec"]["containers"]
    volumes, mounts = router["spec"]["volumes"], container["volumeMounts"]
    places = {"args": container["args"], "volumeMounts": mounts, "volumes": volumes}
    for operation in yaml.safe_load(patch["patch"])[1:]:
        *_, name, last = operation["path"].split("/")
        assert (operation["op"], last) == ("add", "-")
        places[name].append(operation["value"])
    config = configuration.load(options_of(container["args"]), {"DIVGRPC_DATA_DIR": "/data"}, None)
    shards = manifests(_SHARDS)["StatefulSet"]["spec"]
    service = manifests(_SHARDS)["Service"]
    names = [f"divgrpc-shard-{number}.{shards['serviceName']}" for number in range(4)]
    assert len(names) == shards["replicas"]
    assert service["metadata"]["name"] == shards["serviceName"]
    assert service["spec"]["publishNotReadyAddresses"] is True
    addresses = [f"{name}:{_GRPC_PORT}" for name in names]
    assert config.shard_places == (tuple(addresses[:2]), tuple(addresses[2:]))
    (rule,) = pods["spec"]["affinity"]["podAntiAffinity"].values()
    assert rule[0]["topologyKey"] == "kubernetes.io/hostname"
    assert rule[0]["labelSelector"] == shards["selector"]
    options = options_of(pods["spec"]["containers"][0]["args"])
    assert config.cluster_token == options["cluster_token"]
    secrets = [[v for v in some if v["name"] == "cluster"] for some in (volumes, mounts)]
    assert secrets[0][0] in pods["spec"]["volumes"]
    assert secrets[1][0] in pods["spec"]["containers"][0]["volumeMounts"]


def test_kubectl_joins_the_manifests() -> None:
    """Its patches apply."""
    program = _program("kubectl")
    for folder, words in ((_REPLICAS, "ReadWriteMany"), (_SHARDS, "--shards=2")):
        command = [program, "kustomize", str(folder)]
        assert words in subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name, (_, pods) in _PODS.items()
        for kind in (pods, "Service", "PodDisruptionBudget")
    ],
)
def test_the_schemas_of_kubernetes_accept_the_manifests(name: str, kind: str) -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        skip("kubernetes-validate", "pip install kubernetes-validate")
    import kubernetes_validate

    kubernetes_validate.validate(manifests(_PODS[name][0])[kind], "1.30", strict=True)


# systemd.


def unit() -> configparser.ConfigParser:
    """Parse the unit."""
    document = configparser.ConfigParser(strict=True, interpolation=None)
    document.optionxform = str  # type: ignore[assignment,method-assign]  # names are case-sensitive
    document.read_string(_UNIT.read_text())
    return document


def test_the_unit_starts_a_valid_server() -> None:
    service = unit()["Service"]
    words = service["ExecStart"].split()
    position = words.index("--config")
    del words[position : position + 2]
    assert options_of(words)["data_dir"] == f"/var/lib/{service['StateDirectory']}"
    assert f"=/var/cache/{service['CacheDirectory']} " in service["Environment"]
    assert float(service["TimeoutStopSec"]) > Config().grace
    # The supervisor ends the other processes.
    assert service["KillMode"] == "mixed"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyzer, program = _program("systemd-analyze"), _program("true")
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={program}", _UNIT.read_text(), flags=re.MULTILINE)
    file = tmp_path / "divgrpc.service"
    file.write_text(text)
    outcome = subprocess.run(
        [analyzer, "verify", str(file)], capture_output=True, text=True, check=False
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
