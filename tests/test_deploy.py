"""What can be known of deploy/ without Docker, a cluster or the network: that it fits the worker, and itself."""

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import typer
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stream_ccsd import __version__
from stream_ccsd.cli.main import app
from stream_ccsd.kafka.ops.metrics import Metrics, Web
from stream_ccsd.kafka.settings import PREFIX, WorkerSettings
from stream_ccsd.kafka.worker.run import _PATIENCE

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
K8S = DEPLOY / "kubernetes"
YAML = sorted(p for p in DEPLOY.rglob("*") if p.suffix in (".yaml", ".yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SECRET = PREFIX + "SASL_PASSWORD"


class UniqueKeys(yaml.SafeLoader):
    """PyYAML takes the last of two equal keys and says nothing."""

    def construct_mapping(self, node, deep=False):
        names = [key.value for key, _ in node.value]
        assert len(names) == len(set(names)), f"a key twice at {node.start_mark}"
        return super().construct_mapping(node, deep)


def load_all(path):
    return list(yaml.load_all(path.read_text(encoding="utf-8"), UniqueKeys))


def load(path):
    (document,) = load_all(path)
    return document


def instructions(path):
    """Instructions of a Dockerfile, by stage."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    stages = []
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            if name == "FROM":
                stages.append([])
            stages[-1].append((name, rest.strip()))
    return stages


BUILD, FINAL = instructions(DEPLOY / "Dockerfile")
IMAGE_ENV = dict(part.split("=", 1) for name, rest in FINAL if name == "ENV" for part in shlex.split(rest))
COMPOSE = load(DEPLOY / "compose.yaml")
SERVICES = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
LEARNERS = {name: service for name, service in OURS.items() if service["command"][0] == "learn"}
WORKERS = {name: service for name, service in OURS.items() if service["command"] == ["worker"]}
PAGES = {name: service for name, service in OURS.items() if service["command"][0] == "watch"}
MANIFESTS = {p.name: load(p) for p in K8S.glob("*.yaml")}
STATEFUL = MANIFESTS["statefulset.yaml"]
POD = STATEFUL["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
LEARNER = MANIFESTS["learner.yaml"]["spec"]["template"]["spec"]
PAGE = MANIFESTS["page.yaml"]["spec"]["template"]["spec"]
EXAMPLES = {"secret.example.yaml", "page-users.example.yaml"}
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/stream-ccsd.json").read_text(encoding="utf-8"))
PANELS = DASHBOARD["panels"]
RULES = [rule for group in load(DEPLOY / "prometheus/alerts.yml")["groups"] for rule in group["rules"]]
QUERIES = {
    **{f"panel {p['title']} {t['refId']}": t["expr"] for p in PANELS for t in p["targets"]},
    **{f"rule {r['alert']}": r["expr"] for r in RULES},
}


def only(stage, instruction):
    (found,) = [rest for name, rest in stage if name == instruction]
    return found


def worker_environment(variables):
    return {name: value for name, value in variables.items() if name.startswith(PREFIX)}


def compose_settings(name):
    return WorkerSettings.load(environment=worker_environment({**IMAGE_ENV, **WORKERS[name]["environment"]}))


@pytest.mark.parametrize("path", YAML, ids=lambda p: str(p.relative_to(DEPLOY)))
def test_yaml_parses(path):
    assert all(isinstance(document, dict) for document in load_all(path))


# Metrics: what dashboard and alerts ask for is what workers tell


@pytest.fixture(scope="module")
def exposed():
    """Samples of a worker's metrics by name, with their labels; and the families' names."""
    metrics = Metrics()
    metrics.rejects.labels("malformed").inc()
    metrics.drift.labels("rate").inc()
    metrics.model.info({"version": "1"})
    metrics.now.lag = lambda: {0: 1}
    metrics.now.look()
    families = list(text_string_to_metric_families(generate_latest(metrics.registry).decode()))
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}, families


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_queries_ask_for_what_workers_tell(query, exposed):
    samples, _ = exposed
    names = set(re.findall(r"stream_ccsd_[a-z_]+", query))
    assert names or query.startswith("up{")
    assert names <= set(samples)
    known = {"job", "instance"}.union(*(samples[name] for name in names))
    grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
    selected = {label for braces in re.findall(r"{([^}]*)}", query) for label in re.findall(r"(\w+)\s*[=!]", braces)}
    assert grouped | selected <= known


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_queries_are_promql(query):
    promql = pytest.importorskip("promql_parser")
    promql.parse(query.replace("$__rate_interval", "5m"))


def test_the_dashboard_shows_every_metric(exposed):
    _, families = exposed
    shown = " ".join(query for name, query in QUERIES.items() if name.startswith("panel"))
    names = {f.name for f in families if f.name.startswith("stream_ccsd_") and not f.name.endswith("_created")}
    assert {name for name in names if not re.search(rf"\b{name}(_total|_info|_bucket)?\b", shown)} == set()


# Prometheus


def test_alert_rules_are_complete():
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
    for rule in RULES:
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        # A label that was summed away would be an empty word.
        told = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        groups = re.findall(r"by \(([^)]*)\)", rule["expr"])
        assert all(told <= {label.strip() for label in group.split(",")} for group in groups), rule["alert"]


def test_every_alert_is_seen_firing_in_the_rules_own_tests():
    cases = load(DEPLOY / "prometheus/alerts_test.yml")
    expected = str([case["promql_expr_test"] for case in cases["tests"]])
    assert {rule["alert"] for rule in RULES if f'"{rule["alert"]}"' not in expected} == set()


@pytest.mark.parametrize(
    "command", ["check config prometheus.yml", "check rules alerts.yml", "test rules alerts_test.yml"]
)
def test_promtool_agrees(command):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    folder = DEPLOY / "prometheus"
    done = subprocess.run([promtool, *command.split()], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_asks_the_workers_of_compose():
    config = load(DEPLOY / "prometheus/prometheus.yml")
    job, learners = config["scrape_configs"]
    assert [static["targets"] for static in learners["static_configs"]] == [[f"{name}:6066"] for name in LEARNERS]
    targets = [target for static in job["static_configs"] for target in static["targets"]]
    assert sorted(targets) == sorted(f"{name}:{compose_settings(name).web_port}" for name in WORKERS)
    assert {f'job="{job["job_name"]}"'} == {j for rule in RULES for j in re.findall(r'job="[^"]*"', rule["expr"])}
    mounted = {v.split(":")[0]: v.split(":")[1] for v in SERVICES["prometheus"]["volumes"]}
    home = Path(mounted["./prometheus/prometheus.yml"]).parent
    assert [str(home / name) for name in config["rule_files"]] == [mounted["./prometheus/alerts.yml"]]


# Grafana


def test_panels_have_their_own_ids_and_places():
    ids = [panel["id"] for panel in PANELS]
    assert len(ids) == len(set(ids))
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    for one, other in itertools.combinations(PANELS, 2):
        a, b = one["gridPos"], other["gridPos"]
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, (one["title"], other["title"])


def test_milliseconds_are_shown_as_such():
    timed = [p for p in PANELS if any("_milliseconds_bucket" in t["expr"] for t in p["targets"])]
    assert timed
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in timed} == {"ms"}


def test_grafana_finds_its_data_source_and_its_dashboard():
    (source,) = load(DEPLOY / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    asked = [holder["datasource"] for panel in PANELS for holder in (panel, *panel["targets"])]
    asked += [variable["datasource"] for variable in DASHBOARD["templating"]["list"]]
    assert {(found["type"], found["uid"]) for found in asked} == {(source["type"], source["uid"])}
    assert re.fullmatch(r"http://(.*):9090", source["url"])[1] in SERVICES
    assert source["jsonData"]["timeInterval"] == load(DEPLOY / "prometheus/prometheus.yml")["global"]["scrape_interval"]

    grafana = SERVICES["grafana"]
    mounted = {v.split(":")[1]: DEPLOY / v.split(":")[0] for v in grafana["volumes"]}
    (provider,) = load(DEPLOY / "grafana/provisioning/dashboards/stream-ccsd.yaml")["providers"]
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert (mounted[provider["options"]["path"]] / home.name).is_file()


def test_nobody_can_log_in_to_grafana():
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"


# Settings and commands


def test_every_variable_is_a_setting():
    known = {PREFIX + field.name.upper() for field in fields(WorkerSettings)} | {SECRET}
    text = "".join(p.read_text(encoding="utf-8") for p in (DEPLOY / "Dockerfile", *YAML))
    # A name that ends with _ is the beginning of several.
    named = set(re.findall(rf"\b{PREFIX}[A-Z_]*[A-Z]\b", text))
    assert named
    assert named <= known


def test_settings_of_compose():
    for name in WORKERS:
        settings = compose_settings(name)
        assert settings.web_host == "0.0.0.0"
        mounts = {Path(v.split(":")[1]): v for v in WORKERS[name]["volumes"]}
        assert settings.state_dir in mounts
        assert mounts[settings.model.parent].endswith(":ro")
    assert len({WORKERS[name]["volumes"][0] for name in WORKERS}) == len(WORKERS) == 2


def test_settings_of_kubernetes(tmp_path):
    text = (K8S / "worker.toml").read_text(encoding="utf-8")
    environment = worker_environment(IMAGE_ENV)
    settings = WorkerSettings.load(file=K8S / "worker.toml", environment=environment)
    assert settings.web_host == "0.0.0.0"
    assert settings.partitions >= STATEFUL["spec"]["replicas"]
    settings.security({})

    # Also what is suggested in comments.
    (tmp_path / "all.toml").write_text(re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE))
    suggested = WorkerSettings.load(file=tmp_path / "all.toml", environment=environment)
    assert suggested.security({SECRET: "x"}).protocol == "SASL_SSL"
    mounts = {mount["mountPath"]: mount["name"] for mount in CONTAINER["volumeMounts"]}
    assert mounts[str(suggested.ca_file.parent)] == "tls"


COMMANDS = {
    **{f"compose {name}": service["command"] for name, service in OURS.items()},
    "kubernetes": CONTAINER["args"],
    "kubernetes learner": LEARNER["containers"][0]["args"],
    "kubernetes page": PAGE["containers"][0]["args"],
    "image": json.loads(only(FINAL, "CMD")),
    "kernels": shlex.split(
        next(rest for name, rest in BUILD if "bin/stream-ccsd" in rest).split("bin/stream-ccsd ")[1]
    ),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_commands_exist_with_these_flags(command):
    name, *arguments = command
    typer.main.get_command(app).commands[name].make_context(name, list(arguments))


def test_the_demo_fits_together():
    commands = {name: OURS[name]["command"] for name in ("simulate", "fit", "feed")}
    options = {name: dict(zip(said[1::2], said[2::2], strict=True)) for name, said in commands.items()}
    settings = compose_settings("worker-1")
    assert options["simulate"]["--out"] == options["fit"]["--data"] == options["feed"]["--data"]
    assert OURS["adopt"]["command"] == ["models", "add", options["fit"]["--model"], "--in", str(settings.model)]
    (learner,) = LEARNERS.values()
    assert learner["command"][:3] == ["learn", "--models", str(settings.model)]
    assert options["feed"]["--to"] == f"{settings.broker}/{settings.transactions}"


# Compose


def test_compose_names_only_what_there_is():
    used = set()
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            assert target.startswith("/")
            assert mode in ([], ["ro"])
            if source.startswith("."):
                assert (DEPLOY / source).exists(), volume
            else:
                used.add(source)
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES, (name, other)
            checked = "healthcheck" in SERVICES[other] or other in WORKERS
            assert how["condition"] == "service_completed_successfully" or checked, (name, other)
            # A service that is not there unless asked for cannot be needed.
            if "profiles" in SERVICES[other] and "profiles" not in service:
                assert how["required"] is False, (name, other)
    assert used == set(COMPOSE["volumes"])
    assert (DEPLOY / next(iter(OURS.values()))["build"]["context"]).resolve() == ROOT
    assert (ROOT / next(iter(OURS.values()))["build"]["dockerfile"]).is_file()


def test_compose_services_are_pinned_limited_local_and_hold_no_secret():
    for name, service in SERVICES.items():
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+", service["image"]), name
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert not [key for key in service.get("environment", {}) if re.search("PASSWORD|SECRET|TOKEN", key)], name
    assert {service["image"] for service in OURS.values()} == {f"{PROJECT['name']}:{__version__}"}


def test_compose_workers_come_back_and_others_end():
    for name, service in OURS.items():
        stays = name in WORKERS or name in LEARNERS or name in PAGES
        assert service["restart"] == ("unless-stopped" if stays else "no"), name
        assert service.get("healthcheck", {}).get("disable", False) is not stays, name


def test_the_broker_tells_clients_where_it_is():
    broker = SERVICES["broker"]
    told = broker["environment"]["KAFKA_ADVERTISED_LISTENERS"].split(",")
    inside, outside = (listener.partition("://")[2] for listener in told)
    assert {compose_settings(name).brokers for name in WORKERS} == {inside}
    assert broker["ports"] == [f"{outside}:{outside.partition(':')[2]}"]


# The image


def test_the_build_copies_what_there_is_and_what_is_not_ignored():
    ignored, *exceptions = [
        line
        for line in (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    assert ignored == "*"
    sources = [source for name, rest in BUILD if name == "COPY" for source in rest.split()[:-1]]
    assert {f"!{source}" for source in sources} == {line for line in exceptions if line.startswith("!")}
    assert all((ROOT / source).exists() for source in sources)
    packages = {name.rstrip("*") for name in _setuptools_packages()}
    assert packages < set(sources)
    (install,) = [rest for name, rest in BUILD if "pip install" in rest]
    constraints, extras = re.search(r"-c (\S+) '\.\[([\w,]+)\]'", install).groups()
    assert constraints in sources
    assert extras.split(",") == ["kafka", "page"]
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def _setuptools_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return project["tool"]["setuptools"]["packages"]["find"]["include"]


def test_the_kernels_are_where_numba_looks_for_them():
    folder = IMAGE_ENV["NUMBA_CACHE_DIR"]
    assert only(BUILD, "ENV") == f"NUMBA_CACHE_DIR={folder}"
    assert f"--from=build --chown={only(FINAL, 'USER')} {folder} {folder}" in [r for n, r in FINAL if n == "COPY"]


def test_the_process_gets_the_signals():
    assert json.loads(only(FINAL, "ENTRYPOINT")) == list(PROJECT["scripts"])
    assert json.loads(only(FINAL, "CMD")) == ["worker"]


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_knows_a_healthy_worker(status, code):
    asked = []

    class Worker(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args):
            pass

    python, *arguments = json.loads(only(FINAL, "HEALTHCHECK").partition("CMD ")[2])
    assert python == "python"
    with HTTPServer(("127.0.0.1", 0), Worker) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        environment = {
            **os.environ,
            f"{PREFIX}WEB_PORT": str(server.server_port),
            "http_proxy": "http://127.0.0.1:9",  # nobody there: it must not be asked
        }
        done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=False)
        thread.join(timeout=5)
    assert (done.returncode, asked) == (code, ["/healthz"])


# Kubernetes


@pytest.mark.parametrize("name", [name for name in MANIFESTS if name != "kustomization.yaml"])
@pytest.mark.parametrize("version", ["1.28", "1.32"])
def test_manifests_fit_kubernetes_own_schema(name, version):
    validator = pytest.importorskip("kubernetes_validate")
    validator.validate(MANIFESTS[name], version, strict=True)


def test_the_kustomization_has_everything_but_the_example():
    kustomization = MANIFESTS["kustomization.yaml"]
    assert set(kustomization["resources"]) == set(MANIFESTS) - {"kustomization.yaml", *EXAMPLES}
    (generated,) = kustomization["configMapGenerator"]
    assert generated["files"] == ["worker.toml"]
    (image,) = kustomization["images"]
    assert image["newTag"] == __version__
    assert {c["image"] for c in (*POD["containers"], *POD["initContainers"])} == {image["name"]}

    named = {volume["name"]: volume for volume in POD["volumes"]}
    assert named["settings"]["configMap"]["name"] == generated["name"]
    assert named["model"]["persistentVolumeClaim"]["claimName"] == MANIFESTS["model-claim.yaml"]["metadata"]["name"]
    (variable,) = CONTAINER["env"]
    secret = MANIFESTS["secret.example.yaml"]
    reference = variable["valueFrom"]["secretKeyRef"]
    assert variable["name"] == SECRET
    assert (reference["name"], reference["optional"]) == (secret["metadata"]["name"], True)
    assert reference["key"] in secret["stringData"]


def test_kustomize_agrees():
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run([kubectl, "kustomize", str(K8S)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = {document["kind"]: document for document in yaml.safe_load_all(done.stdout)}
    assert set(made) == {
        "ConfigMap",
        "PersistentVolumeClaim",
        "PodDisruptionBudget",
        "Service",
        "StatefulSet",
        "Deployment",
    }
    assert made["ConfigMap"]["data"]["worker.toml"] == (K8S / "worker.toml").read_text(encoding="utf-8")


def test_services_and_budgets_select_the_workers():
    labels = STATEFUL["spec"]["template"]["metadata"]["labels"]
    service, budget = MANIFESTS["service.yaml"], MANIFESTS["disruption-budget.yaml"]
    assert labels == STATEFUL["spec"]["selector"]["matchLabels"]
    assert labels == service["spec"]["selector"] == budget["spec"]["selector"]["matchLabels"]
    assert service["metadata"]["name"] == STATEFUL["spec"]["serviceName"]
    assert service["spec"]["clusterIP"] == "None"


def test_pods_may_write_where_they_must_and_nowhere_else():
    user = int(only(FINAL, "USER").partition(":")[0])
    context = POD["securityContext"]
    assert {context["runAsUser"], context["runAsGroup"], context["fsGroup"]} == {user}
    assert context["runAsNonRoot"] is True
    assert POD["automountServiceAccountToken"] is POD["enableServiceLinks"] is False
    templates = {template["metadata"]["name"] for template in STATEFUL["spec"]["volumeClaimTemplates"]}
    volumes = {volume["name"] for volume in POD["volumes"]} | templates
    for container in (*POD["containers"], *POD["initContainers"]):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {"requests", "limits"} == set(container["resources"])
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    writable = {mount["mountPath"] for mount in CONTAINER["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {IMAGE_ENV["STREAM_CCSD_STATE_DIR"], IMAGE_ENV["NUMBA_CACHE_DIR"], "/tmp"}
    (copied,) = POD["initContainers"]
    assert copied["command"][2] == IMAGE_ENV["NUMBA_CACHE_DIR"] + "/."


def test_the_learner_is_a_worker_that_may_write_models():
    (container,), settings = LEARNER["containers"], worker_environment(IMAGE_ENV)
    assert MANIFESTS["learner.yaml"]["spec"]["replicas"] == 1
    assert container["args"][3:5] == ["--models", settings[f"{PREFIX}MODEL"]]
    for name in ("securityContext", "automountServiceAccountToken", "enableServiceLinks"):
        assert LEARNER[name] == POD[name]
    for name in ("image", "env", "securityContext", "ports", "livenessProbe"):
        assert container[name] == CONTAINER[name]
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {str(Path(settings[f"{PREFIX}MODEL"]).parent), IMAGE_ENV["NUMBA_CACHE_DIR"], "/tmp"}
    assert {m["name"] for m in container["volumeMounts"]} == {volume["name"] for volume in LEARNER["volumes"]}
    claims = [
        next(v for v in pod["volumes"] if v["name"] == "model")["persistentVolumeClaim"] for pod in (POD, LEARNER)
    ]
    assert len({claim["claimName"] for claim in claims}) == 1


def test_workers_have_time_to_stop():
    assert POD["terminationGracePeriodSeconds"] > _PATIENCE
    assert all(int(service["stop_grace_period"].rstrip("s")) > _PATIENCE for service in WORKERS.values())


# The page

PAGE_PORT = 8360


def options_of(command):
    """Flags of the page with their values; it has none without."""
    return dict(zip(command[1::2], command[2::2], strict=True))


def test_the_page_of_compose_is_local_read_only_and_asks_who_it_is():
    (page,) = PAGES.values()
    options = options_of(page["command"])
    assert options["--from"] == compose_settings("worker-1").broker
    assert options["--model"] == str(compose_settings("worker-1").model)
    assert page["ports"] == [f"127.0.0.1:{PAGE_PORT}:{PAGE_PORT}"]
    # Without people's names it would not start beyond loopback; so it is not there unless asked for.
    assert page["profiles"] == ["page"]
    (secret,) = page["secrets"]
    assert options["--users"] == f"/run/secrets/{secret}"
    file = DEPLOY / COMPOSE["secrets"][secret]["file"]
    assert (file.parent / "users.example.toml").is_file()
    assert f"/{file.relative_to(ROOT)}" in (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert page["read_only"] is True
    writable = {volume.split(":")[1] for volume in page["volumes"] if not volume.endswith(":ro")} | {*page["tmpfs"]}
    assert writable == {str(Path(options["--state"]).parent), IMAGE_ENV["NUMBA_CACHE_DIR"], "/tmp"}
    assert f":{PAGE_PORT}/healthz'" in page["healthcheck"]["test"][-1]
    assert page["cap_drop"] == ["ALL"]


def test_the_page_of_kubernetes_is_a_worker_that_may_write_its_file():
    (container,) = PAGE["containers"]
    options = options_of(container["args"])
    settings = WorkerSettings.load(file=K8S / "worker.toml", environment=worker_environment(IMAGE_ENV))
    assert (options["--from"], options["--model"]) == (settings.broker, str(settings.model))
    assert MANIFESTS["page.yaml"]["spec"]["replicas"] == 1
    assert MANIFESTS["page.yaml"]["spec"]["strategy"] == {"type": "Recreate"}  # one writer
    for name in ("securityContext", "automountServiceAccountToken", "enableServiceLinks", "initContainers"):
        assert PAGE[name] == POD[name], name
    for name in ("image", "env", "securityContext"):
        assert container[name] == CONTAINER[name], name
    assert {"requests", "limits"} == set(container["resources"])
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in PAGE["volumes"]}
    writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
    assert writable == {str(Path(options["--state"]).parent), IMAGE_ENV["NUMBA_CACHE_DIR"], "/tmp"}
    volumes = {volume["name"]: volume for volume in PAGE["volumes"]}
    claim = MANIFESTS["page-claim.yaml"]
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert str(Path(options["--kafka-config"]).parent) in mounts
    people, secret = Path(options["--users"]), MANIFESTS["page-users.example.yaml"]
    assert mounts[str(people.parent)]["name"] == "users"
    assert volumes["users"]["secret"] == {"secretName": secret["metadata"]["name"], "defaultMode": 0o440}
    assert people.name in secret["stringData"]

    labels = MANIFESTS["page.yaml"]["spec"]["template"]["metadata"]["labels"]
    service = MANIFESTS["page-service.yaml"]["spec"]
    assert labels == MANIFESTS["page.yaml"]["spec"]["selector"]["matchLabels"] == service["selector"]
    (declared,), (served,) = container["ports"], service["ports"]
    assert declared["containerPort"] == served["port"] == PAGE_PORT
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {(probe["path"], probe["port"]) for probe in probes} == {("/healthz", served["targetPort"])}
    assert options["--host-name"] == MANIFESTS["page-service.yaml"]["metadata"]["name"]


def test_nobody_can_log_in_with_the_examples():
    """They are people as the page reads them, with hashes that no token has."""
    text = (DEPLOY / "page/users.example.toml").read_text(encoding="utf-8")
    people = tomllib.loads(text)
    assert tomllib.loads(MANIFESTS["page-users.example.yaml"]["stringData"]["users.toml"]) == people
    assert sorted(person["role"] for person in people.values()) == ["judge", "tune", "view"]
    for person in people.values():
        assert set(person) == {"token_sha256", "role"}
        assert re.fullmatch("0{63}[0-9]", person["token_sha256"])


# Between all of them


def test_ports_and_paths_agree():
    settings = WorkerSettings.load(file=K8S / "worker.toml", environment=worker_environment(IMAGE_ENV))
    port = settings.web_port
    assert only(FINAL, "EXPOSE").split() == [str(port), str(PAGE_PORT)]
    assert f"'{port}'" in only(FINAL, "HEALTHCHECK")
    for name, service in WORKERS.items():
        assert [int(published.split(":")[2]) for published in service["ports"]] == [compose_settings(name).web_port]
    (declared,) = CONTAINER["ports"]
    (served,) = MANIFESTS["service.yaml"]["spec"]["ports"]
    annotations = STATEFUL["spec"]["template"]["metadata"]["annotations"]
    assert declared["containerPort"] == served["port"] == int(annotations["prometheus.io/port"]) == port

    web = Web(settings, Metrics(), lambda: (True, {}), lambda: (True, {}))
    served_paths = {resource.canonical for resource in web._runner.app.router.resources()}
    probes = {name: CONTAINER[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in probes.values()} == {served["targetPort"]} == {declared["name"]}
    assert [probe["path"] for probe in probes.values()] == ["/healthz", "/healthz", "/readyz"]
    assert {probe["path"] for probe in probes.values()} | {annotations["prometheus.io/path"]} == served_paths
