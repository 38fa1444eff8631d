"""``examples/kubernetes``: what kustomize makes is what Kubernetes takes, and alerts fire."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.pages import blocks, text
from tests.support.paths import ROOT

FOLDER = ROOT / "examples" / "kubernetes"
PROCESSOR = "logitport.adapters.vllm:LogitportProcessor"
MIDDLEWARE = "logitport.adapters.vllm.SpecMiddleware"
WITH_MIDDLEWARE = {"kserve.yaml", "llm-d.yaml", "production-stack.yaml"}
WITHOUT_MIDDLEWARE = {"dynamo.yaml", "kuberay.yaml"}  # their front ends take none


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(run("kubectl", "kustomize", "."))}


@pytest.mark.needs("kubectl", "kubernetes_validate")
def test_kubernetes_takes_it(made: dict[str, Any]):
    import kubernetes_validate

    assert made.keys() == {"ConfigMap", "Deployment", "PodDisruptionBudget", "Service"}
    for each in (*made.values(), read("network.yaml")):
        kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.needs("kubectl")
def test_parts_fit_together(made: dict[str, Any]):
    pod = made["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    volumes = {each.pop("name"): each for each in pod["spec"]["volumes"]}
    assert mounts.keys() == volumes.keys()
    made_map = made["ConfigMap"]
    assert volumes["configuration"]["configMap"]["name"] == made_map["metadata"]["name"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    (file,) = made_map["data"]
    assert variables["LOGITPORT_CONFIG"] == f"{mounts['configuration']}/{file}"
    writable = [mounts[name] for name, volume in volumes.items() if "emptyDir" in volume]
    for name in ("NUMBA_CACHE_DIR", "PROMETHEUS_MULTIPROC_DIR", "HOME"):
        assert variables[name].startswith(tuple(writable)), name
    assert made["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert made["PodDisruptionBudget"]["spec"]["selector"] == made["Deployment"]["spec"]["selector"]
    assert container["image"].startswith("registry.example/vllm-logitport:")


@pytest.mark.needs("kubectl")
def test_replies_end_before_the_pod(made: dict[str, Any]):
    """The pod has time for the sleep, and for the replies that vLLM then waits for."""
    pod = made["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    _, sleep = container["lifecycle"]["preStop"]["exec"]["command"]
    (command,) = container["args"]
    options = shlex.split(command.rpartition("&& exec ")[2])
    assert options[:3] == ["logitport", "serve", "vllm"]
    timeout = options[options.index("--shutdown-timeout") + 1]
    assert int(sleep) + int(timeout) < pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", sorted(WITH_MIDDLEWARE | WITHOUT_MIDDLEWARE))
def test_options(name: str):
    words = (FOLDER / name).read_text().replace("=", " ").replace('"', " ").split()
    assert PROCESSOR in str(words)
    assert (MIDDLEWARE in words) is (name in WITH_MIDDLEWARE)
    assert "NUMBA_CACHE_DIR" in str(words)


@pytest.mark.needs("kubectl")
def test_llm_d_is_a_patch(tmp_path: Path):
    patched = read("llm-d.yaml")
    base = read("deployment.yaml")
    base["metadata"]["name"] = patched["metadata"]["name"]
    base["spec"]["template"]["spec"]["containers"][0]["name"] = "modelserver"
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    (tmp_path / "patch.yaml").write_text((FOLDER / "llm-d.yaml").read_text())
    content = {"resources": ["base.yaml"], "patches": [{"path": "patch.yaml"}]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(content))
    (made,) = yaml.safe_load_all(run("kubectl", "kustomize", tmp_path))
    (container,) = made["spec"]["template"]["spec"]["containers"]
    assert container["args"] == patched["spec"]["template"]["spec"]["containers"][0]["args"]
    assert container["volumeMounts"]


@pytest.mark.needs("promtool")
@pytest.mark.parametrize("command", ["check rules rules.yaml", "test rules rules_test.yaml"])
def test_rules(command: str):
    run("promtool", *shlex.split(command))


def test_the_page_has_the_same_alert():
    (alert,) = [yaml.safe_load(code) for code, _, _ in blocks(text("docs/metrics.md"), "yaml")]
    (rule,) = alert["groups"][0]["rules"]
    assert rule in read("rules.yaml")["groups"][0]["rules"]
