"""The manifests for Kubernetes, as `kubectl apply -k` sends them: against schemas, and against what they promise."""

from __future__ import annotations

import base64
import ctypes
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zoneinfo
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import jsonschema
import kubernetes_validate
import pytest
import yaml

from parked.cli.frame import build_parser
from parked.settings import SETTINGS, Settings, SidecarSettings, check_unknown, variable
from parked.simulator import Simulator
from parked.simulator import replies as reply
from parked.version import __version__
from parked_exporter.cli import main as exporter_main
from servers import Postgres, free_port, missing, wait_until

ROOT: Final = Path(__file__).parents[2]
KUBERNETES: Final = ROOT / "deploy/kubernetes"
SHAPES: Final = ("worker", "worker-postgres", "cronjob", "cronjob-one-node")
APPLIED: Final = (*SHAPES, "migrate", "monitoring")
PAGE: Final = (ROOT / "docs/kubernetes.md").read_text("utf-8")

# The oldest with native sidecars that are on unless switched off, and the newest whose schemas there are.
VERSIONS: Final = ("1.29", "1.37")
SECRETS: Final = "/run/secrets/parked"
RUNS_JOBS: Final = ("work", "run")  # commands that have calls in the air
ANNOTATION_BYTES: Final = 262_144  # `kubectl apply` keeps a copy of each object in an annotation of it
COMMIT_S: Final = 60.0  # what a database that fails over needs

Object = Mapping[str, Any]


def kubectl() -> str:
    """A kubectl with today's kustomize."""
    found = shutil.which("kubectl") or shutil.which(str(Path(sys.prefix) / "kubectl/kubectl"))
    if found is None:
        missing("kubectl")
    assert found is not None
    return found


@cache
def rendered(folder: Path) -> str:
    done = subprocess.run([kubectl(), "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def objects(shape: str) -> tuple[Object, ...]:
    return tuple(yaml.safe_load_all(rendered(KUBERNETES / shape)))


def of_kind(shape: str, *kinds: str) -> list[Object]:
    return [each for each in objects(shape) if each["kind"] in kinds]


class Pod(NamedTuple):
    """The template of a workload's pods."""

    workload: Object
    metadata: Object
    spec: Object

    @property
    def name(self) -> str:
        return f"{self.workload['kind']}/{self.workload['metadata']['name']}"


class Container(NamedTuple):
    pod: Pod
    spec: Object
    is_init: bool

    @property
    def is_sidecar(self) -> bool:
        return bool(self.spec["command"][0] == "parked-exporter")

    @property
    def security(self) -> dict[str, Any]:
        """The container's own settings before those of its pod."""
        return {**self.pod.spec["securityContext"], **self.spec["securityContext"]}

    def volume_at(self, path: str) -> Object | None:
        """The volume on which a path lies, None if on the image; a claim's template counts as a claim."""
        mounts = [m for m in self.spec["volumeMounts"] if Path(path).is_relative_to(m["mountPath"])]
        if not mounts:
            return None
        name = max(mounts, key=lambda mount: len(mount["mountPath"]))["name"]
        templates = self.pod.workload["spec"].get("volumeClaimTemplates", [])
        if any(template["metadata"]["name"] == name for template in templates):
            return {"name": name, "persistentVolumeClaim": {"claimName": name}}
        (volume,) = (volume for volume in self.pod.spec["volumes"] if volume["name"] == name)
        return volume  # type: ignore[no-any-return]


def pods(shape: str) -> Iterator[Pod]:
    for workload in of_kind(shape, "Deployment", "StatefulSet", "Job", "CronJob"):
        spec = workload["spec"]
        template = (spec["jobTemplate"]["spec"] if workload["kind"] == "CronJob" else spec)["template"]
        yield Pod(workload, template["metadata"], template["spec"])


def containers(shape: str) -> Iterator[Container]:
    for pod in pods(shape):
        for spec in pod.spec.get("initContainers", []):
            yield Container(pod, spec, is_init=True)
        for spec in pod.spec["containers"]:
            yield Container(pod, spec, is_init=False)


def environment(shape: str, container: Container) -> dict[str, str]:
    """The variables that a container gets."""
    maps = {each["metadata"]["name"]: each["data"] for each in of_kind(shape, "ConfigMap")}
    found: dict[str, str] = {}
    for source in container.spec.get("envFrom", []):
        found |= maps[source["configMapRef"]["name"]]
    for each in container.spec.get("env", []):
        path = each["valueFrom"]["fieldRef"]["fieldPath"] if "valueFrom" in each else None
        found[each["name"]] = each["value"] if path is None else OF_A_POD[path]
    return found


OF_A_POD: Final = {"metadata.labels['batch.kubernetes.io/job-name']": "nightly-29365200"}


def command(shape: str, container: Container) -> list[str]:
    """What a container runs, with `$(VARIABLES)` replaced as the kubelet does it."""
    env = environment(shape, container)
    words = [*container.spec["command"], *container.spec.get("args", [])]
    return [re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], word) for word in words]


each_shape = pytest.mark.parametrize("shape", SHAPES)
each_pod = pytest.mark.parametrize("shape", [*SHAPES, "migrate"])


# --- schemas and rules of others ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@each_pod
def test_every_object_fits_the_schema_of_kubernetes_and_has_no_field_that_it_does_not_know(shape, version):
    for each in objects(shape):
        kubernetes_validate.validate(each, version, strict=True)


def check_of_the_operator(each: Object) -> None:
    """Raises ValidationError where an object has a field that the Prometheus Operator doesn't know."""
    schemas = json.loads((Path(__file__).parent / "prometheus_operator.json").read_text("utf-8"))
    jsonschema.validate(each["spec"], schemas[each["kind"]])


def test_the_objects_of_the_prometheus_operator_have_only_fields_that_it_knows():
    custom = [each for each in objects("monitoring") if each["apiVersion"] == "monitoring.coreos.com/v1"]

    assert {each["kind"] for each in custom} == {"PodMonitor", "PrometheusRule"}
    for each in custom:
        check_of_the_operator(each)


def test_a_field_that_the_prometheus_operator_does_not_know_is_found():
    (monitor,) = of_kind("monitoring", "PodMonitor")
    endpoint = {**monitor["spec"]["podMetricsEndpoints"][0], "scrapeInterval": "15s"}

    with pytest.raises(jsonschema.ValidationError, match="scrapeInterval"):
        check_of_the_operator({**monitor, "spec": {**monitor["spec"], "podMetricsEndpoints": [endpoint]}})


def test_the_files_are_written_as_yamllint_asks():
    done = subprocess.run(
        [sys.executable, "-m", "yamllint", "--strict", "-c", KUBERNETES / "yamllint.yaml",
         KUBERNETES, ROOT / "dashboards/kustomization.yaml"],
        capture_output=True,
        text=True,
    )  # fmt: skip

    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.slow
def test_checkov_finds_nothing_but_what_is_left_for_a_reason(tmp_path):
    checkov = Path(sys.prefix) / "checkov/bin/checkov"
    if not checkov.exists():
        missing("checkov")
    for shape in (*SHAPES, "migrate"):
        (tmp_path / f"{shape}.yaml").write_text(rendered(KUBERNETES / shape), "utf-8")

    done = subprocess.run(
        [checkov, "--directory", tmp_path, "--framework", "kubernetes", "--skip-download", "--output", "json"],
        capture_output=True,
        text=True,
    )

    results = json.loads(done.stdout)["results"]
    assert len(results["passed_checks"]) > 500
    assert results["parsing_errors"] == []
    found = {check["check_id"] for check in results["failed_checks"]}
    text = (KUBERNETES / "checkov.yaml").read_text("utf-8")
    assert found == set(yaml.safe_load(text)["skip-check"])
    assert found == set(re.findall(r"^  # .+\n  - (\w+)$", text, re.MULTILINE))  # each with its reason


@each_pod
def test_every_pod_meets_the_pod_security_standard_restricted(shape):
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    for container in containers(shape):
        pod, security = container.pod.spec, container.security
        assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC", "hostUsers"}
        for volume in pod["volumes"]:
            assert volume.keys() - {"name"} <= {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
        assert not any("hostPort" in port for port in container.spec.get("ports", []))
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["readOnlyRootFilesystem"] is True  # more than the standard asks for


# --- the ledger --------------------------------------------------------------------------------------------------


@each_pod
def test_a_ledger_lies_on_a_volume_that_outlives_its_pod_or_on_postgresql(shape):
    for container in containers(shape):
        scheme, _, path = environment(shape, container)["PARKED_LEDGER"].partition("://")
        if scheme == "sqlite":
            assert "persistentVolumeClaim" in (container.volume_at(path.removeprefix("/")) or {})
        else:
            assert scheme == "postgresql"


@each_pod
def test_the_only_directory_that_goes_with_its_pod_is_that_for_temporary_files(shape):
    for container in containers(shape):
        empty = [v["name"] for v in container.pod.spec["volumes"] if "emptyDir" in v]
        paths = [mount["mountPath"] for mount in container.spec["volumeMounts"] if mount["name"] in empty]
        assert paths == ["/tmp"]


def test_where_job_files_are_read_there_is_room_for_a_copy_and_an_index_of_them():
    # A pod that exceeds its limit is evicted, with all that it runs.
    for shape in SHAPES:
        for pod in pods(shape):
            (room,) = (volume["emptyDir"]["sizeLimit"] for volume in pod.spec["volumes"] if volume["name"] == "tmp")
            reads_files = pod.name.endswith(("/parked-worker", "/nightly"))
            assert room == ("1Gi" if reads_files else "64Mi"), (shape, pod.name)


@each_pod
def test_all_containers_run_as_the_user_of_the_image(shape):
    user = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)[-1]

    users = {(str(c.security["runAsUser"]), str(c.security["runAsGroup"])) for c in containers(shape)}

    assert users == {user}


def test_a_sqlite_ledger_of_a_worker_has_one_pod_and_a_volume_that_no_other_can_mount():
    (worker,) = of_kind("worker", "StatefulSet", "Deployment", "Job", "CronJob")

    assert worker["kind"] == "StatefulSet"  # a Deployment would start the next pod before the last one is gone
    assert worker["spec"]["replicas"] == 1
    (claim,) = worker["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert worker["spec"]["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_pods_that_share_a_sqlite_ledger_are_pinned_to_one_node():
    nodes = [pod.spec["nodeSelector"] for pod in pods("cronjob-one-node")]

    assert len(nodes) == 3
    assert all(node == {"kubernetes.io/hostname": "node-1"} for node in nodes)


@pytest.mark.parametrize("shape", ["worker-postgres", "cronjob", "migrate"])
def test_no_pod_of_a_ledger_on_postgresql_is_pinned_or_keeps_a_part_of_it(shape):
    for container in containers(shape):
        assert "nodeSelector" not in container.pod.spec
        assert not any(mount["mountPath"] == "/data" for mount in container.spec["volumeMounts"])


@pytest.mark.parametrize("shape", ["worker", "cronjob-one-node"])
def test_where_the_sidecar_may_be_first_the_ledger_is_made_before_it(shape):
    (pod,) = (c.pod for c in containers(shape) if c.is_sidecar)

    first = pod.spec["initContainers"][0]

    assert first["command"] == ["parked", "migrate"]
    assert "restartPolicy" not in first


# --- the sidecar -------------------------------------------------------------------------------------------------


@each_shape
def test_each_shape_has_one_sidecar_beside_what_runs_jobs(shape):
    sidecars = [c for c in containers(shape) if c.is_sidecar]

    assert len(sidecars) == 1
    (port,) = sidecars[0].spec["ports"]
    listen = environment(shape, sidecars[0])["PARKED_LISTEN"]
    assert port == {"name": "metrics", "containerPort": SidecarSettings().listen.port}
    assert listen == f"0.0.0.0:{port['containerPort']}"  # kubelet and Prometheus call it by the pod's address


@pytest.mark.parametrize("shape", ["worker", "worker-postgres"])
def test_the_sidecar_of_a_worker_is_a_native_one_and_never_makes_the_pod_unready(shape):
    (sidecar,) = (c for c in containers(shape) if c.is_sidecar)

    assert sidecar.is_init
    assert sidecar.spec["restartPolicy"] == "Always"
    assert sidecar.spec["livenessProbe"]["httpGet"] == {"path": "/-/healthy", "port": "metrics"}
    assert not sidecar.spec.keys() & {"readinessProbe", "startupProbe"}  # either would hold up the worker


@pytest.mark.parametrize("shape", ["cronjob", "cronjob-one-node"])
def test_the_sidecar_of_a_cronjob_lives_on_in_a_deployment_of_its_own(shape):
    (sidecar,) = (c for c in containers(shape) if c.is_sidecar)

    assert sidecar.pod.name == "Deployment/parked-exporter"
    assert sidecar.pod.workload["spec"]["replicas"] == 1
    assert not sidecar.is_init
    assert [c.spec["name"] for c in containers(shape) if c.pod.workload["kind"] == "CronJob"] == ["run", "work"]


@each_shape
def test_sidecar_and_runners_are_set_alike(shape):
    assert len({json.dumps(c.spec["envFrom"]) for c in containers(shape)}) == 1


# --- pods --------------------------------------------------------------------------------------------------------


@each_pod
def test_no_pod_gets_a_token_of_the_cluster_or_variables_of_its_services(shape):
    accounts = {each["metadata"]["name"]: each for each in of_kind(shape, "ServiceAccount")}

    for pod in pods(shape):
        assert pod.spec["enableServiceLinks"] is False
        assert pod.spec["automountServiceAccountToken"] is False
        assert accounts[pod.spec["serviceAccountName"]]["automountServiceAccountToken"] is False


@each_pod
def test_who_runs_jobs_has_time_to_drain_and_to_write_what_was_answered(shape):
    drains = [c for c in containers(shape) if c.spec["command"][0] == "parked" and c.spec["command"][1] in RUNS_JOBS]

    assert len(drains) == {"worker": 1, "worker-postgres": 1, "cronjob": 2, "cronjob-one-node": 2, "migrate": 0}[shape]
    for container in drains:
        drain_s = Settings.load(env=known(shape, container)).drain_s
        assert container.pod.spec["terminationGracePeriodSeconds"] >= drain_s + COMMIT_S


@each_pod
def test_resources_are_asked_for_memory_has_a_limit_and_cpu_has_none(shape):
    for container in containers(shape):
        resources = container.spec["resources"]
        assert resources["requests"].keys() == {"cpu", "memory"}
        assert resources["limits"].keys() == {"memory"}


@pytest.mark.parametrize("shape", ["cronjob", "cronjob-one-node"])
def test_a_night_is_alone_in_a_zone_and_tries_again_only_what_another_try_may_mend(shape):
    for cronjob in of_kind(shape, "CronJob"):
        spec, job = cronjob["spec"], cronjob["spec"]["jobTemplate"]["spec"]
        assert spec["concurrencyPolicy"] == "Forbid"
        zoneinfo.ZoneInfo(spec["timeZone"])
        assert 0 < job["backoffLimit"] <= 6
        assert job["template"]["spec"]["restartPolicy"] == "Never"
        (container,) = job["template"]["spec"]["containers"]
        usage, disrupted = job["podFailurePolicy"]["rules"]
        assert usage["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [2]}
        assert (usage["action"], disrupted["action"]) == ("FailJob", "Ignore")
    run, rest = sorted(of_kind(shape, "CronJob"), key=lambda each: each["metadata"]["name"])
    assert "--parked-ok" in run["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert rest["spec"]["timeZone"] == "America/Los_Angeles"  # where daily quotas are reset at midnight


def test_a_budget_is_there_where_more_than_one_pod_is_and_nowhere_else():
    budgets = {shape: of_kind(shape, "PodDisruptionBudget") for shape in SHAPES}

    assert [shape for shape, found in budgets.items() if found] == ["worker-postgres"]
    (budget,) = budgets["worker-postgres"]
    (pod,) = pods("worker-postgres")
    assert pod.workload["spec"]["replicas"] > budget["spec"]["maxUnavailable"] == 1
    assert budget["spec"]["selector"]["matchLabels"].items() <= pod.metadata["labels"].items()


# --- what is referred to is there --------------------------------------------------------------------------------


def known(shape: str, container: Container) -> dict[str, str]:
    """The variables of a container but for the files that they name, which are on no test's disk."""
    return {name: v for name, v in environment(shape, container).items() if not name.endswith("_FILE")}


@each_pod
def test_every_command_is_one_that_there_is(shape, monkeypatch, capsys):
    for container in containers(shape):
        program, *words = command(shape, container)
        if program == "parked-exporter":
            with monkeypatch.context() as patched:
                for name, value in known(shape, container).items():
                    patched.setenv(name, value)
                assert exporter_main([*words, "--check"]) == 0, capsys.readouterr().err
        else:
            assert program == "parked"
            build_parser().parse_args(words)


@each_pod
def test_every_variable_is_a_setting_with_a_value_that_it_takes(shape):
    for container in containers(shape):
        assert check_unknown(environment(shape, container)) == []
        SidecarSettings.load(env=known(shape, container))


@each_pod
def test_all_that_a_pod_refers_to_is_there(shape):
    claims = {each["metadata"]["name"] for each in of_kind(shape, "PersistentVolumeClaim")}
    maps = {each["metadata"]["name"] for each in of_kind(shape, "ConfigMap")}

    for pod in pods(shape):
        for volume in pod.spec["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps
    for container in containers(shape):
        assert {source["configMapRef"]["name"] for source in container.spec["envFrom"]} <= maps
        mounted = {volume["name"] for volume in container.pod.spec["volumes"]}
        mounted |= {t["metadata"]["name"] for t in container.pod.workload["spec"].get("volumeClaimTemplates", [])}
        assert {mount["name"] for mount in container.spec["volumeMounts"]} <= mounted


def secrets_of_the_page(folder: Path) -> dict[str, set[str]]:
    """{name of a Secret: its keys}, as the commands of the page make them; the last of a name counts."""
    for name in ("gemini-api-key", "token", "db-ca.pem", "run/pg_service.conf", "migrate/pg_service.conf"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x", "utf-8")
    found = {}
    for line in re.findall(r"^kubectl (create secret (?:.*\\\n)*.*)$", PAGE, re.MULTILINE):
        words = line.replace("\\\n", " ").split()
        made = subprocess.run(
            [kubectl(), *words, "--dry-run=client", "-o", "json"], cwd=folder, capture_output=True, text=True
        )
        secret = json.loads(made.stdout)
        assert all(base64.b64decode(value) == b"x" for value in secret["data"].values())
        found[secret["metadata"]["name"]] = set(secret["data"])
    return found


def test_every_secret_that_is_read_is_made_by_the_commands_of_the_page(tmp_path):
    made = secrets_of_the_page(tmp_path)

    for shape in (*SHAPES, "migrate"):
        for container in containers(shape):
            files = re.findall(rf"{SECRETS}/([\w.-]+)", " ".join(environment(shape, container).values()))
            assert files
            volume = container.volume_at(SECRETS) or {}
            assert set(files) <= made[volume["secret"]["secretName"]]


@each_pod
def test_no_secret_stands_in_a_variable_or_in_an_object(shape):
    secret = {variable(name) for name, setting in SETTINGS.items() if setting.secret} | {"GEMINI_API_KEY"}

    assert of_kind(shape, "Secret") == []
    for container in containers(shape):
        env = environment(shape, container)
        assert secret.isdisjoint(env)
        assert not re.search(r"://[^/]*@|password", env["PARKED_LEDGER"])


@pytest.mark.parametrize("shape", [*SHAPES, "migrate"])
def test_every_image_is_that_of_this_version(shape):
    images = {container.spec["image"] for container in containers(shape)}

    assert images == {f"registry.example.com/parked:{__version__}"}


# --- the network -------------------------------------------------------------------------------------------------


@each_pod
def test_nobody_may_talk_to_anybody_but_for_dns_https_postgresql_and_prometheus(shape):
    policies = {
        each["metadata"]["name"].removeprefix("parked-"): each["spec"] for each in of_kind(shape, "NetworkPolicy")
    }

    on_postgres = "sqlite" not in environment(shape, next(containers(shape)))["PARKED_LEDGER"]
    assert policies.keys() == {"nothing", "out", "scrapes"} | ({"postgres"} if on_postgres else set())
    for policy in policies.values():
        chosen = policy["podSelector"]["matchLabels"]
        assert chosen
        assert all(chosen.items() <= pod.metadata["labels"].items() for pod in pods(shape))
    assert set(policies["nothing"]["policyTypes"]) == {"Ingress", "Egress"}
    assert not policies["nothing"].keys() & {"ingress", "egress"}
    out = [
        (port["protocol"], port["port"], "to" in rule)
        for policy in policies.values()
        for rule in policy.get("egress", [])
        for port in rule["ports"]
    ]
    https = [("TCP", 443, False), ("TCP", 53, True), ("UDP", 53, True)]
    assert sorted(out) == sorted([*https, *([("TCP", 5432, False)] if on_postgres else [])])
    (scrapes,) = (rule for policy in policies.values() for rule in policy.get("ingress", []))
    assert scrapes["ports"] == [{"protocol": "TCP", "port": SidecarSettings().listen.port}]
    assert scrapes["from"]


# --- monitoring --------------------------------------------------------------------------------------------------


@each_shape
def test_prometheus_is_told_to_scrape_each_sidecar_and_nothing_else(shape):
    (monitor,) = of_kind("monitoring", "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()

    scraped = [
        c.is_sidecar
        for c in containers(shape)
        if wanted <= c.pod.metadata["labels"].items()
        and any(port["name"] == endpoint["port"] for port in c.spec.get("ports", []))
    ]

    assert scraped == [True]
    assert endpoint["path"] == "/metrics"


def test_the_rules_are_those_of_prometheus():
    make = subprocess.run(
        [sys.executable, "-c", "import make; print(make.rules(make.ALERTS.read_text('utf-8')), end='')"],
        cwd=KUBERNETES / "monitoring",
        capture_output=True,
        text=True,
        check=True,
    )
    alerts = yaml.safe_load((ROOT / "dashboards/alerts.yml").read_text("utf-8"))

    (rule,) = of_kind("monitoring", "PrometheusRule")

    assert make.stdout == (KUBERNETES / "monitoring/rules.yaml").read_text("utf-8"), "run make.py beside it"
    assert rule["spec"] == alerts


def test_grafana_is_given_the_dashboards_and_kubectl_can_apply_them():
    (dashboards,) = of_kind("monitoring", "ConfigMap")

    assert dashboards["metadata"]["name"] == "parked-dashboards"
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboards["data"] == {
        name: (ROOT / "dashboards" / name).read_text("utf-8") for name in ("overview.json", "triage.json")
    }
    for each in objects("monitoring"):
        assert len(json.dumps(each)) < ANNOTATION_BYTES


# --- the page ----------------------------------------------------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def overlays(tmp_path):
    """A folder with the overlays of the page, each in a folder of its name, beside parked's manifests."""
    shutil.copytree(KUBERNETES, tmp_path / "parked/deploy/kubernetes")
    for block in blocks("yaml"):
        if named := re.match(r"# ([a-z-]+)/kustomization.yaml\n", block):
            (tmp_path / named[1]).mkdir()
            (tmp_path / named[1] / "kustomization.yaml").write_text(block, "utf-8")
    (tmp_path / "night/jobs.jsonl").write_text("{}\n", "utf-8")
    return tmp_path


def test_the_overlays_leave_nothing_of_an_example(overlays):
    for name, examples in {"night": "example.com", "ledger": "example.com", "one-node": "node-1"}.items():
        made = rendered(overlays / name)
        assert not re.search(rf"\b{examples}\b", re.sub("#.*", "", made)), name


def test_the_page_makes_the_ledger_on_postgresql_with_the_image_and_the_url_of_the_night(overlays):
    def told(name):
        made = rendered(overlays / name)
        return set(re.findall(r"image: (\S+)|PARKED_LEDGER: (\S+)", made))

    assert told("ledger") == told("night")
    applied = re.findall(r"kubectl apply -k (\S+)", PAGE)
    assert applied.index("ledger") < applied.index("night")
    assert {name for name in applied if not (overlays / name).is_dir()} == {"deploy/kubernetes/monitoring"}


def test_no_command_of_the_page_makes_what_one_before_it_has_made():
    """One way through it: the Secret is another on SQLite and on PostgreSQL, and the page says so before each."""
    start = PAGE.partition("## Start")[2].partition("\n## ")[0]
    ways = start.split("For one on PostgreSQL")
    secrets = [re.findall(r"create secret generic (\S+)", way) for way in ways]

    assert secrets == [["parked"], ["parked", "parked-migrate"]]
    assert "For a ledger on SQLite that is all" in ways[0]
    assert not re.search(r"--from=cronjob/\w+ [\w-]+`", PAGE)  # a Job by the same name is the same batch


def test_the_overlay_of_the_page_says_what_is_ones_own(overlays):
    tmp_path = overlays
    made = list(yaml.safe_load_all(rendered(tmp_path / "night")))

    settings, jobs = ({**each["data"]} for each in made if each["kind"] == "ConfigMap")
    if "jobs.jsonl" in settings:
        settings, jobs = jobs, settings
    assert settings["PARKED_AUTO_REPLAY"] == "nightly=30m"
    assert settings["PARKED_LISTEN"] == "0.0.0.0:9465"  # what it doesn't name stays
    assert check_unknown(settings) == []
    assert jobs == {"jobs.jsonl": "{}\n"}
    images = set(re.findall(r"image: (\S+)", rendered(tmp_path / "night")))
    assert images == {"registry.your.org/captions:2026-03-02"}


def test_the_expectation_of_the_page_is_a_rule_that_the_alerts_know():
    (text,) = (block for block in blocks("yaml") if "kind: PrometheusRule" in block)
    rule = yaml.safe_load(text)

    check_of_the_operator(rule)
    (expected,) = rule["spec"]["groups"][0]["rules"]
    assert expected["record"] in (ROOT / "dashboards/alerts.yml").read_text("utf-8")
    nights = of_kind("cronjob", "CronJob")[0]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    assert f"--pipeline={expected['labels']['pipeline']}" in nights["command"]


def test_every_workload_that_the_page_names_is_there():
    kinds = {"sts": "StatefulSet", "deploy": "Deployment", "cronjob": "CronJob", "job": "Job"}
    there = {pod.name for shape in (*SHAPES, "migrate") for pod in pods(shape)}

    found = re.findall(r"[ =](sts|deploy|cronjob|job)/(?!kubernetes)([a-z-]+)\b", PAGE)

    named = {f"{kinds[kind]}/{name}" for kind, name in found}
    assert named <= there
    assert len(named) >= 5


def test_every_folder_of_the_page_can_be_applied_and_the_other_way_round():
    named = set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE))

    assert named == set(APPLIED)
    parts = {"base", "image", "postgres"}  # of the others
    assert {each.parent.name for each in KUBERNETES.glob("*/kustomization.yaml")} == named | parts


def test_the_manifests_are_in_the_source_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

    assert "/deploy" in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert os.access(KUBERNETES / "worker/worker.yaml", os.R_OK)


# --- the same commands, for real ---------------------------------------------------------------------------------

PROGRAMS: Final = {"parked": "parked.cli", "parked-exporter": "parked_exporter.cli"}
CLONE_NEWNET: Final = 0x40000000
POD_IP: Final = "10.7.7.7"
PATIENCE_S: Final = 60


class Kubelet:
    """Runs the containers of a shape on this machine: their commands and variables, with other places for paths."""

    def __init__(self, shape: str, folder: Path, places: Mapping[str, str], api: Simulator) -> None:
        self.containers = {f"{c.pod.workload['metadata']['name']}/{c.spec['name']}": c for c in containers(shape)}
        self._shape = shape
        self._places = {**places, SECRETS: f"{folder}/secrets", "/data": f"{folder}/data"}
        self._env = {**os.environ, "GOOGLE_GEMINI_BASE_URL": api.url}
        for name in ("secrets", "data"):
            (folder / name).mkdir(exist_ok=True)
        for key in ("gemini-api-key", "token"):
            (folder / "secrets" / key).write_text(f"the-{key}-of-the-tests\n", "utf-8")

    def start(self, name: str, *words: str) -> subprocess.Popen[str]:
        """Start a container, or another command in it, as `kubectl exec` does."""
        container = self.containers[name]
        program, *rest = words or command(self._shape, container)
        env = {key: self._placed(value) for key, value in environment(self._shape, container).items()}
        return subprocess.Popen(
            [sys.executable, "-m", PROGRAMS[program], *map(self._placed, rest)],
            env=self._env | env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, name: str, *words: str, stdin: str = "") -> tuple[int, str, str]:
        process = self.start(name, *words)
        out, err = process.communicate(stdin, timeout=PATIENCE_S)
        return process.returncode, out, err

    def _placed(self, text: str) -> str:
        for path, place in self._places.items():
            text = text.replace(path, place)
        return text


def asked(host: str, port: int, path: str, *, called: str | None = None) -> tuple[int, str]:
    """What a GET gets; `called` is the Host header, by default that of the address. Status 0: nobody listens yet."""
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers={} if called is None else {"Host": called})
        response = connection.getresponse()
        return response.status, response.read().decode()
    except ConnectionRefusedError:
        return 0, ""
    finally:
        connection.close()


def ended(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> int:
    """Send a signal, and return the exit status."""
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    return process.returncode


def in_a_network_of_its_own(act: Any) -> Any:
    """Call `act` in a thread whose network, and that of all it starts, is loopback with the address of a pod."""

    def apart() -> Any:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0 or shutil.which("ip") is None:
            missing("the right to a network of one's own, or iproute2,")
        for words in ("link set lo up", f"addr add {POD_IP}/32 dev lo"):
            subprocess.run(["ip", *words.split()], check=True)
        return act()

    with ThreadPoolExecutor(1) as alone:
        return alone.submit(apart).result()


@pytest.mark.slow
def test_a_pod_of_the_worker_runs_jobs_is_scraped_by_its_address_and_ends_in_order(tmp_path):
    job = {"job_id": "a-1", "model": "gemini-3.5-flash", "payload": {"contents": "Describe the sea."}}

    def pod() -> None:
        with Simulator() as api:
            kubelet = Kubelet("worker", tmp_path, {}, api)
            assert kubelet.run("parked-worker/ledger")[0] == 0
            sidecar = kubelet.start("parked-worker/exporter")
            worker = kubelet.start("parked-worker/worker")
            try:
                words = ("parked", "submit", "-", "--pipeline", "captions")
                assert kubelet.run("parked-worker/worker", *words, stdin=json.dumps(job))[0] == 0
                answered = 'parked_ledger_jobs{ledger="', 'pipeline="captions",state="succeeded"} 1.0'

                def shows_the_answer() -> bool:
                    assert sidecar.poll() is None, sidecar.communicate()[1]
                    status, body = asked(POD_IP, 9465, "/metrics")
                    return status == 200 and all(part in body for part in answered)

                wait_until(shows_the_answer)
                assert asked(POD_IP, 9465, "/-/healthy") == (200, "alive\n")  # as the kubelet asks
                assert asked("127.0.0.1", 9465, "/-/healthy", called="localhost:9465")[0] == 200  # a port forward
                assert asked(POD_IP, 9465, "/metrics", called="parked-worker.parked.svc:9465")[0] == 421
                assert asked(POD_IP, 9465, "/api/causes")[0] == 401
                assert [r.headers["x-goog-api-key"] for r in api.requests] == ["the-gemini-api-key-of-the-tests"]
                assert ended(worker) == 143
                assert shows_the_answer()
                assert ended(sidecar) == 0
            finally:
                for process in (sidecar, worker):
                    process.kill()
                    process.communicate()

    in_a_network_of_its_own(pod)


def test_a_night_on_postgresql_parks_and_is_a_success_and_the_sidecar_lives_on(
    tmp_path, postgres: Postgres, roles: None, simulator: Simulator
):
    host = postgres.url("ledger").partition("@")[2]
    port = free_port()
    places = {
        "db.example.com/pipelines": host,
        f"&sslmode=verify-full&sslrootcert={SECRETS}/db-ca.pem": "",  # the tests' server has no TLS
        "0.0.0.0:9465": f"127.0.0.1:{port}",
        "/jobs/": f"{KUBERNETES}/cronjob/",
        "/answers/": f"{tmp_path}/",
    }
    service = tmp_path / "secrets/pg_service.conf"
    migrate = Kubelet("migrate", tmp_path, places, simulator)
    kubelet = Kubelet("cronjob", tmp_path, places, simulator)

    service.write_text("[parked]\nuser=parked_migrate\n", "utf-8")
    assert migrate.run("parked-migrate/migrate")[0] == 0
    service.write_text("[parked]\nuser=parked_run\n", "utf-8")
    sidecar = kubelet.start("parked-exporter/exporter")
    try:
        simulator.will_answer(reply.text("The sea."), reply.error(400, "INVALID_ARGUMENT", "no"))
        first = kubelet.run("nightly/run")
        calls = len(simulator.requests)
        again = kubelet.run("nightly/run")
        rest = kubelet.run("nightly-rest/work")
        wait_until(lambda: sidecar.poll() is not None or asked("127.0.0.1", port, "/-/ready")[0] == 200)
        summary = kubelet.run("parked-exporter/exporter", "parked", "summary")

        assert (first[0], again[0], rest[0]) == (0, 0, 0), first[2]
        assert "1 answered, 1 parked" in first[2]
        assert len(simulator.requests) == calls == 2
        lines = (tmp_path / "nightly-29365200.jsonl").read_text("utf-8").splitlines()
        assert [json.loads(line)["batch"] for line in lines] == ["nightly-29365200"]
        assert 'state="parked"} 1.0' in asked("127.0.0.1", port, "/metrics")[1]
        assert f"ledger postgresql://{host}?service=parked\n" in summary[1]  # user and password are elsewhere
        assert ended(sidecar) == 0
    finally:
        sidecar.kill()
        sidecar.communicate()
