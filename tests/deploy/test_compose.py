"""compose.yaml: what it promises, and the whole of it running, but for Grafana, which can't be had without a registry.

In the places of Prometheus and Alertmanager stand Debian's, which are older. All share one loopback, since the engine
of the tests has no other network; the names of the services lead there.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from containers import ROOT, Engine
from parked.cli.frame import build_parser
from parked.settings import check_unknown
from parked.simulator.demo import demo_prompts
from servers import missing, wait_until

pytestmark = pytest.mark.slow

COMPOSE: Final = str(Path(sys.executable).parent / "docker-compose")
VARIANTS: Final = ("gemini.yaml", "notify.yaml")
OURS: Final = ("simulator", "pipeline", "sidecar")
RUN_HERE: Final = (*OURS, "prometheus", "alertmanager")  # all but Grafana
DASHBOARDS: Final = ROOT / "dashboards"
PAGE: Final = (ROOT / "docs/containers.md").read_text("utf-8")

# Of the names and paths of the official images, what compose.yaml counts on.
STAND_IN: Final = """\
FROM python:3.11-slim-bookworm
COPY {program} {tool} /bin/
COPY share /usr/share/prometheus
RUN install -d -o 65534 -g 65534 {data}
USER 65534
WORKDIR {data}
ENTRYPOINT ["/bin/{program}"]
"""


def config(*files: str) -> Mapping[str, Any]:
    """The services as Compose reads them from these files."""
    words = [word for file in ("compose.yaml", *files) for word in ("-f", str(ROOT / file))]
    done = subprocess.run([COMPOSE, *words, "config", "--format=json"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    services: Mapping[str, Any] = json.loads(done.stdout)["services"]
    return services


def mounts(service: Mapping[str, Any], kind: str) -> dict[str, str]:
    """What is mounted where."""
    return {each["target"]: each["source"] for each in service.get("volumes", []) if each["type"] == kind}


# --- what it promises --------------------------------------------------------------------------------------------


def test_no_service_may_do_what_it_need_not():
    for name, service in config().items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["pids_limit"] > 0, name
        assert "privileged" not in service, name


def test_only_this_machine_reaches_what_is_published():
    published = [port for service in config().values() for port in service.get("ports", [])]

    assert {port["published"] for port in published} == {"9465", "9090", "9093", "3000"}
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


def test_what_others_make_has_an_exact_version():
    images = {service["image"] for name, service in config().items() if name not in OURS}

    assert len(images) == 3
    assert [image for image in images if not re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", image)] == []


def test_the_programs_of_the_ledger_are_one_image_and_one_user():
    services = config()

    assert {(services[name]["image"], services[name]["user"]) for name in OURS} == {("parked", "10001:10001")}
    holders = {name: mounts(service, "volume")["/data"] for name, service in services.items() if name in OURS[1:]}
    assert holders == {"pipeline": "ledger", "sidecar": "ledger"}
    assert {name for name, service in services.items() if "/data" in mounts(service, "volume")} == {
        "pipeline",
        "sidecar",
    }


def test_what_stays_is_checked_and_started_anew():
    services = {name: service for name, service in config().items() if name not in ("pipeline", "simulator")}

    assert {service["restart"] for service in services.values()} == {"unless-stopped"}
    assert [name for name, service in services.items() if "healthcheck" not in service] == [
        "sidecar"
    ]  # its image's own


def test_every_file_that_is_mounted_is_there_and_every_setting_known():
    for name, service in config().items():
        assert [source for source in mounts(service, "bind").values() if not Path(source).exists()] == [], name
        variables = [variable for variable in service.get("environment", {}) if variable.startswith("PARKED_")]
        assert check_unknown(dict.fromkeys(variables, "")) == []


def test_its_files_are_those_of_dashboards_but_for_the_names_of_services():
    def read(path: Path) -> Any:
        return yaml.safe_load(path.read_text())

    folder = ROOT / "deploy/compose"
    source = json.dumps(read(DASHBOARDS / "provisioning/datasources/prometheus.yml"))
    scrapes = json.dumps(read(DASHBOARDS / "prometheus.yml"))
    routes, told = read(folder / "alertmanager.yml"), read(DASHBOARDS / "alertmanager.yml")

    assert read(folder / "datasource.yml") == json.loads(source.replace("127.0.0.1:9090", "prometheus:9090"))
    named = scrapes.replace("127.0.0.1:9465", "sidecar:9465").replace("127.0.0.1:9093", "alertmanager:9093")
    assert read(folder / "prometheus.yml") == json.loads(named)
    assert routes == {**told, "receivers": [{"name": each["name"]} for each in told["receivers"]]}


def test_grafana_finds_the_dashboards_where_it_is_told_to_look():
    grafana = config()["grafana"]
    told = yaml.safe_load((DASHBOARDS / "provisioning/dashboards/parked.yml").read_text())
    folder = told["providers"][0]["options"]["path"]

    mounted = mounts(grafana, "bind")
    assert mounted[f"{folder}/overview.json"] == str(DASHBOARDS / "overview.json")
    assert mounted[f"{folder}/triage.json"] == str(DASHBOARDS / "triage.json")
    assert grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounted


def test_the_jobs_are_those_of_the_demo():
    lines = [json.loads(line) for line in (ROOT / "deploy/compose/demo/jobs.jsonl").read_text().splitlines()]

    assert [line["payload"]["contents"] for line in lines] == list(demo_prompts(50))


def test_the_real_api_is_called_with_a_key_from_a_file_and_the_simulator_stays_away():
    services = config("deploy/compose/gemini.yaml")

    assert "simulator" not in services
    pipeline = services["pipeline"]
    assert pipeline["environment"] == {"GEMINI_API_KEY_FILE": "/run/secrets/gemini_api_key"}
    assert [each["target"] for each in pipeline["secrets"]] == ["/run/secrets/gemini_api_key"]
    assert "network_mode" not in pipeline
    assert "depends_on" not in pipeline
    # Simulated answers and one's own are in no ledger, and no file of answers, together.
    assert {mounts(services[name], "volume")["/data"] for name in ("pipeline", "sidecar")} == {"nightly"}


def test_each_night_of_ones_own_can_have_a_batch(monkeypatch):
    monkeypatch.setenv("BATCH", "2026-03-02")
    words = config("deploy/compose/gemini.yaml")["pipeline"]["command"]
    assert words[words.index("--batch") + 1] == "2026-03-02"

    monkeypatch.delenv("BATCH")
    words = config("deploy/compose/gemini.yaml")["pipeline"]["command"]
    assert build_parser(["run"]).parse_args(words[1:]).batch == ""


def test_a_replay_can_be_typed_where_the_sidecar_runs():
    """By itself the sidecar took 86 MB, with the replay 126, measured by cgroup's memory.peak: 128 killed both."""
    (flags,) = re.findall(r"--memory (\d+)m .*?parked-exporter", PAGE, re.DOTALL)

    assert int(config()["sidecar"]["mem_limit"]) >= 256 << 20
    assert int(flags) >= 256


def test_every_command_of_the_page_is_one_that_there_is():
    typed = re.findall(r"^ *docker compose (?:exec|run)[^\n]*? parked ([a-z]+ ?[^#>\n]*)", PAGE, re.MULTILINE)

    assert len(typed) >= 4
    for words in map(str.split, typed):
        build_parser([words[0]]).parse_args(words)


def test_alerts_that_reach_people_read_their_secrets_from_files():
    alertmanager = config("deploy/compose/notify.yaml")["alertmanager"]
    told = (DASHBOARDS / "alertmanager.yml").read_text()

    mounted = mounts(alertmanager, "bind")
    assert mounted["/etc/alertmanager/alertmanager.yml"] == str(DASHBOARDS / "alertmanager.yml")
    assert set(re.findall(r"_file: (.+)", told)) <= set(mounted)


@pytest.mark.parametrize(
    ("variant", "own"), [("gemini.yaml", {"jobs.jsonl"}), ("notify.yaml", {"slack_url", "pagerduty_key"})]
)
def test_a_file_of_ones_own_that_is_missing_is_said_where_docker_would_make_a_folder(variant, own):
    services = config(f"deploy/compose/{variant}")
    mounted = [each for service in services.values() for each in service.get("volumes", []) if each["type"] == "bind"]
    makes_none = {Path(each["source"]).name for each in mounted if each["bind"].get("create_host_path") is False}

    assert {Path(each["source"]).name for each in mounted if Path(each["source"]).parent == ROOT} == own
    assert makes_none == own


def test_jobs_of_ones_own_get_the_memory_that_they_get_on_kubernetes():
    night = (ROOT / "deploy/kubernetes/cronjob/nightly.yaml").read_text()
    limit = yaml.safe_load(night)["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["resources"]

    pipeline = config("deploy/compose/gemini.yaml")["pipeline"]
    assert limit["limits"]["memory"] == "512Mi"
    assert int(pipeline["mem_limit"]) == 512 << 20


# --- all of it running -------------------------------------------------------------------------------------------


class Project:
    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.folder = engine, folder

    def __call__(self, *words: str) -> str:
        command = [COMPOSE, "-f", "compose.yaml", "-f", "here.json", *words]
        done = subprocess.run(command, cwd=self.folder, env=self.engine.env, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def get(self, url: str) -> Any:
        """What is seen there by a service."""
        code = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], timeout=10).read().decode())"
        return json.loads(self("exec", "-T", "sidecar", "python", "-c", code, url))

    def query(self, expression: str) -> list[str]:
        found = self.get(f"http://prometheus:9090/api/v1/query?query={expression}")["data"]["result"]
        return [each["value"][1] for each in found]


@pytest.fixture
def project(engine: Engine, tmp_path: Path) -> Iterator[Project]:
    """The project in a folder of its own, with what differs here in a second file."""
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    shutil.copytree(DASHBOARDS, tmp_path / "dashboards")
    shutil.copy(ROOT / "compose.yaml", tmp_path)
    night = tmp_path / "deploy/compose/demo/night.json"
    rules = json.loads(night.read_text())["rules"]
    # The pace that is kept after a refusal would take half a minute.
    night.write_text(json.dumps({"rules": [rule for rule in rules if "rate_limited" not in str(rule["reply"])]}))
    scrapes = tmp_path / "deploy/compose/prometheus.yml"
    scrapes.write_text(scrapes.read_text().replace("_interval: 15s", "_interval: 1s"))
    for folder in (tmp_path, *(each for each in tmp_path.rglob("*") if each.is_dir())):
        folder.chmod(0o755)
    services: dict[str, Any] = {
        name: {"network_mode": "service:simulator", "ports": []} for name in RUN_HERE if name != "simulator"
    }
    hosts = dict.fromkeys(RUN_HERE, "127.0.0.1")
    services["simulator"] = {"network_mode": "none", "extra_hosts": hosts}
    here = yaml.safe_dump({"services": services}, default_flow_style=True, width=10_000)
    (tmp_path / "here.json").write_text(here.replace("ports: []", "ports: !reset []"))

    images = config()
    _stand_in(engine, tmp_path, images["prometheus"]["image"], "prometheus", "promtool", "/prometheus")
    _stand_in(engine, tmp_path, images["alertmanager"]["image"], "alertmanager", "amtool", "/alertmanager")
    project = Project(engine, tmp_path)
    try:
        yield project
    finally:
        project("down", "--volumes", "--timeout=5")


def _stand_in(engine: Engine, folder: Path, image: str, program: str, tool: str, data: str) -> None:
    context = folder / f"{program}-image"
    context.mkdir()
    for name in (program, tool):
        found = shutil.which(f"prometheus-{name}") or shutil.which(name) or missing(name)
        shutil.copy(str(found), context / name)
    (context / "share").mkdir()
    if (templates := Path("/usr/share/prometheus") / program).is_dir():  # without which Debian's doesn't start
        shutil.copytree(templates, context / "share" / program, ignore=shutil.ignore_patterns("ui"))
    (context / "Dockerfile").write_text(STAND_IN.format(program=program, tool=tool, data=data))
    engine("build", "--network=none", f"--tag={image}", str(context))


def test_one_command_shows_what_the_night_has_parked(project: Project):
    project("up", "--detach", "--no-build", "--pull=never", *RUN_HERE)

    assert project("wait", "pipeline").strip().endswith(" 0")
    wait_until(lambda: _healthy(project) == {"simulator", "sidecar", "prometheus", "alertmanager"})
    wait_until(lambda: project.query("sum(parked_jobs)") == ["6"])
    wait_until(lambda: project.query('sum(parked_ledger_jobs{state="succeeded"})'.replace("{", "%7B")) == ["44"])
    rules = project.get("http://prometheus:9090/api/v1/rules")["data"]["groups"]
    assert {rule["health"] for group in rules for rule in group["rules"]} <= {"ok", "unknown"}
    assert len(rules) > 1
    (told,) = project.get("http://prometheus:9090/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    assert told["url"] == "http://alertmanager:9093/api/v2/alerts"
    wait_until(lambda: "ParkedPermanentFailure" in str(project.get("http://alertmanager:9093/api/v2/alerts")))
    # As the page says: not in the sidecar, which has no key.
    would = json.loads(project("run", "--rm", "-T", "pipeline", "parked", "replay", "--all", "--json"))
    assert would["would_replay"] == 6
    project("cp", "sidecar:/data/answers.jsonl", str(project.folder))
    assert len((project.folder / "answers.jsonl").read_text().splitlines()) == 44


def _healthy(project: Project) -> set[str]:
    seen = map(json.loads, project("ps", "--format=json").splitlines())
    return {each["Service"] for each in seen if each["Health"] == "healthy"}
