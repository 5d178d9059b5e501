"""Container files, manifests and the systemd unit, checked against the package that they run."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from typer.main import get_command

from agent_tts.cli.app import app
from agent_tts.cli.options import USAGE
from agent_tts.config.loading import load_settings
from agent_tts.config.settings import ENV_PREFIX

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
DOCKERFILES = sorted((CONFIGS / "docker").glob("*.Dockerfile"))
MANIFESTS = CONFIGS / "kubernetes"
USER = 10_001
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# All files that may name one of our variables.
FILES = [
    path for folder in ("docker", "kubernetes", "systemd") for path in (CONFIGS / folder).rglob("*") if path.is_file()
]
COMMANDS = set(get_command(app).commands)  # pyrefly: ignore[missing-attribute]


def stages(path: Path) -> list[list[tuple[str, str]]]:
    """The stages of a Dockerfile, as (instruction, arguments)."""
    joined = re.sub(r"\\\n", " ", "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#")))
    lines = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    found: list[list[tuple[str, str]]] = []
    for word, rest in lines:
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def values(stage: list[tuple[str, str]], instruction: str) -> list[str]:
    return [rest for word, rest in stage if word == instruction]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_an_image_is_small_pinned_and_runs_without_root(path: Path) -> None:
    build, final = stages(path)
    (install,) = [line for line in values(build, "RUN") if " install " in line]
    assert "--constraint configs/constraints.txt" in install
    assert values(final, "USER") == [f"{USER}:{USER}"]
    assert any(f"--uid {USER}" in line for line in values(final, "RUN"))
    assert values(final, "STOPSIGNAL") == ["SIGTERM"]
    assert values(final, "COPY") == ["--from=build /opt/agent-tts /opt/agent-tts"]
    assert not any("pip" in line or "build-essential" in line for line in values(final, "RUN"))
    assert final.index(("USER", f"{USER}:{USER}")) < [word for word, _ in final].index("ENTRYPOINT")
    assert "org.opencontainers.image.licenses" in " ".join(values(final, "LABEL"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_files_that_an_image_copies_exist_and_are_not_ignored(path: Path) -> None:
    build, _ = stages(path)
    copied = {source for line in values(build, "COPY") for source in line.split()[:-1]}
    ignore = path.with_name(f"{path.name}.dockerignore").read_text().split()
    assert ignore[0] == "*"
    for source in copied:
        assert (ROOT / source).exists()
        assert f"!{source.split('/')[0]}" in ignore
    forced = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    files = {PYPROJECT["project"]["readme"], *PYPROJECT["project"]["license-files"]}
    assert {*forced, *files, "agent_tts", "pyproject.toml"} <= copied


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_an_image_s_python_and_extras_are_the_package_s(path: Path) -> None:
    text = path.read_text()
    (python,) = re.findall(r"^ARG PYTHON=3\.(\d+)$", text, re.M)
    assert int(python) >= int(PYPROJECT["project"]["requires-python"].removeprefix(">=3."))
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.M)
    assert set(extras.split(",")) <= PYPROJECT["project"]["optional-dependencies"].keys()


def test_the_constraints_name_all_that_the_package_and_its_extras_need() -> None:
    """A package that they lack would be installed in any version."""

    def plain(name: str) -> str:
        return re.sub(r"[._-]+", "-", name).lower()

    lines = (CONFIGS / "constraints.txt").read_text().splitlines()
    pinned = {plain(line.partition("==")[0]) for line in lines if not line.startswith("#")}
    project = PYPROJECT["project"]
    parts = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    wanted = [Requirement(line) for line in parts if not line.startswith("agent-tts[")]
    seen = set()
    while wanted:
        needed = wanted.pop()
        if (key := (plain(needed.name), frozenset(needed.extras))) in seen:
            continue
        seen.add(key)
        assert plain(needed.name) in pinned | {"setuptools"}, needed  # torch's, which pip leaves as it is
        with suppress(importlib.metadata.PackageNotFoundError):  # atheris and mutmut are installed on demand
            found = map(Requirement, importlib.metadata.requires(needed.name) or ())
            extras = {"", *needed.extras}
            wanted += [one for one in found if not one.marker or any(one.marker.evaluate({"extra": x}) for x in extras)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_every_variable_is_a_setting_and_its_value_is_allowed(path: Path) -> None:
    """A node refuses to start with an invalid value."""
    text = path.read_text()
    pairs = re.findall(rf"({ENV_PREFIX}[A-Z0-9_]+)(?:[:=]\s*|, value: )([^\s\\}}]+)?", text)
    given = {name: value.strip('"') for name, value in pairs if value and not value.startswith("$")}
    named = set(re.findall(rf"{ENV_PREFIX}[A-Z0-9_]*[A-Z0-9]", text)) - {"AGENT_TTS_KEY"}
    samples = {"AGENT_TTS_AUTH__API_KEYS": "key", "AGENT_TTS_ICE_SERVERS": "[]"}
    load_settings(environ=dict.fromkeys(named, "") | samples | {k: v for k, v in given.items() if k not in samples})


def commands() -> list[tuple[str, list[str]]]:
    """Every `agent-tts` command line in those files."""
    found: list[tuple[str, list[str]]] = []
    for path in DOCKERFILES:
        _, final = stages(path)
        found += [(path.name, json.loads(line)) for line in values(final, "CMD")]
        (health,) = values(final, "HEALTHCHECK")
        found.append((path.name, json.loads(health.partition("CMD ")[2])[1:]))
    compose = yaml.safe_load((CONFIGS / "docker" / "compose.yaml").read_text())
    found += [("compose", compose["services"]["agent"]["command"])]
    for path in MANIFESTS.rglob("*.yaml"):
        found += [(path.name, json.loads(line)) for line in re.findall(r"args: (\[.*\])", path.read_text())]
    (line,) = re.findall(
        r"^ExecStart=\S+/agent-tts (.*)$", (CONFIGS / "systemd" / "agent-tts.service").read_text(), re.M
    )
    return [*found, ("systemd", shlex.split(line))]


def test_systemd_leaves_it_to_the_node_to_replace_an_engine_for_which_there_was_no_memory() -> None:
    """By default it ends all processes of a unit of which the kernel has killed one."""
    unit = (CONFIGS / "systemd" / "agent-tts.service").read_text()
    assert re.findall(r"^OOMPolicy=(.*)$", unit, re.M) == ["continue"]


def test_systemd_does_not_start_a_node_again_whose_settings_are_wrong() -> None:
    unit = (CONFIGS / "systemd" / "agent-tts.service").read_text()
    assert re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.M) == [str(USAGE)]


def entered(folder: Path, *arguments: str, fails: bool = False) -> subprocess.Popen[str]:
    """The GPU image's entry point with these arguments, where `agent-tts` notes how it is called."""
    fake = folder / "agent-tts"
    compiles = "exit 1" if fails else f"touch {folder}/begun; [ -e {folder}/goes ] || exec sleep 60"
    fake.write_text(f'#!/bin/sh\necho "$@" >>{folder}/asked\n[ "$1" != compile ] || {{ {compiles}; }}\n')
    fake.chmod(0o755)
    _, final = stages(CONFIGS / "docker" / "gpu.Dockerfile")
    (line,) = values(final, "ENTRYPOINT")
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.Popen([*json.loads(line), *arguments], env=environment, text=True)


@pytest.mark.node
@pytest.mark.parametrize("fails", [False, True])
def test_the_gpu_image_compiles_what_its_flags_ask_for_before_it_serves(tmp_path: Path, fails: bool) -> None:
    """Whether it can or not. Mutation: its own configuration in place of the flags."""
    (tmp_path / "goes").touch()
    given = ("--config=gpu", "--set", 'lexicon={"a b": "c"}')
    assert entered(tmp_path, "serve", *given, fails=fails).wait(timeout=30) == 0
    flags = " ".join(given)
    assert (tmp_path / "asked").read_text().splitlines() == [f"compile {flags}", f"serve {flags}"]


@pytest.mark.node
def test_other_commands_of_the_gpu_image_compile_nothing(tmp_path: Path) -> None:
    assert entered(tmp_path, "doctor", "--config", "gpu").wait(timeout=30) == 0
    assert (tmp_path / "asked").read_text() == "doctor --config gpu\n"


@pytest.mark.node
def test_a_container_that_compiles_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """Its first process hears no signal that it does not trap. Mutation: no trap, and a node after it."""
    process = entered(tmp_path, "serve")
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    assert process.wait(timeout=30) == 143
    assert (tmp_path / "asked").read_text() == "compile\n"


@pytest.mark.node
def test_the_gpu_image_can_be_built_with_kernels() -> None:
    """It listens on every address, for which a node needs a key that a build does not have."""
    _, final = stages(CONFIGS / "docker" / "gpu.Dockerfile")
    (run,) = [line for line in values(final, "RUN") if "compile" in line]
    variables = dict(
        part.split("=", 1) for line in values(final, "ENV") for part in line.split() if "AGENT_TTS" in part
    )
    command = run.replace("agent-tts compile", f"{sys.executable} -m agent_tts compile")
    environment = os.environ | variables | {"ARCH": "sm_75"}
    told = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "GPUs from sm_80 on" in told.stderr


@pytest.mark.parametrize(("where", "arguments"), commands())
def test_every_command_and_option_exists(where: str, arguments: list[str]) -> None:
    command = get_command(app).commands[arguments[0]]  # pyrefly: ignore[missing-attribute]
    options = set(itertools.chain.from_iterable(parameter.opts for parameter in command.params))
    assert {word for word in arguments if word.startswith("--")} <= options
    for flag, value in itertools.pairwise(arguments):
        assert flag != "--config" or value.startswith("/etc/") or (CONFIGS / f"{value}.yaml").is_file()


# ---------------------------------------------------------------- compose


def compose() -> Any:
    return yaml.safe_load((CONFIGS / "docker" / "compose.yaml").read_text())


@pytest.mark.parametrize("name", ["cpu", "gpu", "agent"])
def test_a_node_of_compose_is_locked_down_and_has_time_to_drain(name: str) -> None:
    service = compose()["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert int(service["stop_grace_period"].removesuffix("s")) > load_settings(environ={}).timeouts.drain_s
    assert "AGENT_TTS_AUTH__API_KEYS" in service["environment"]
    assert (CONFIGS / "docker" / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_files_that_compose_mounts_exist_and_images_are_pinned() -> None:
    found = compose()
    for service in found["services"].values():
        assert not service["image"].endswith(":latest")
        assert ":" in service["image"]
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            assert source in found["volumes"] or (CONFIGS / "docker" / source).exists(), mount


# ---------------------------------------------------------------- Kubernetes


def objects(folder: str) -> dict[str, Any]:
    """The manifests of a folder by kind: as kubectl renders them, or as written where kubectl is missing."""
    kubectl = shutil.which("kubectl")
    if kubectl is not None:
        command = [kubectl, "kustomize", str(MANIFESTS / folder)]
        built = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        return {item["kind"]: item for item in yaml.safe_load_all(built)}
    files = [path for path in (MANIFESTS / "base").glob("*.yaml") if path.name != "kustomization.yaml"]
    return {item["kind"]: item for path in files for item in yaml.safe_load_all(path.read_text())}


@pytest.mark.parametrize("folder", ["base", "gpu"])
def test_a_pod_runs_without_root_on_a_read_only_root(folder: str) -> None:
    pod = objects(folder)["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (pod["securityContext"]["runAsNonRoot"], pod["securityContext"]["runAsUser"]) == (True, USER)
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"]["drop"] == ["ALL"]
    # The variable AGENT_TTS_SERVICE_HOST would be an unknown setting: the node would not start.
    assert pod["enableServiceLinks"] is False
    assert {"requests", "limits"} <= container["resources"].keys()
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/var/lib/agent-tts", "/tmp"}


@pytest.mark.parametrize("folder", ["base", "gpu"])
def test_a_pod_is_probed_on_the_nodes_routes_and_has_time_to_drain(folder: str) -> None:
    found = objects(folder)
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    probes = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert probes == {"startup": "/health", "readiness": "/ready", "liveness": "/health"}
    settings = load_settings(environ={})
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > settings.timeouts.drain_s + pause + 5
    assert container["ports"][0]["containerPort"] == found["Service"]["spec"]["ports"][0]["port"] == settings.port
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kustomize is part of kubectl")
def test_the_gpu_pod_has_a_gpu_and_keeps_its_models() -> None:
    found = objects("gpu")
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "agent-tts:gpu"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    (data,) = [volume for volume in pod["volumes"] if volume["name"] == "data"]
    claim = found["PersistentVolumeClaim"]["metadata"]["name"]
    assert data == {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
