"""compose.yaml: what Compose makes of it agrees with the settings, the tree, the image and itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support import compose
from tests.support.compose import PROFILES, REPOSITORY, SECURE, brokers, listeners, published, secure_services, services
from tidegate.cli.options import variables
from tidegate.memory import LIMIT_BYTES_MIN
from tidegate.settings import Settings
from tidegate_pipeline.settings import load

ONE_SHOT: Final = {"setup", "certificates"}
NAMES: Final = sorted(services())
SOURCE: Final = "".join((REPOSITORY / file).read_text("utf-8") for file in SECURE)


def environment(name: str) -> dict[str, str]:
    """The environment of a service."""
    return dict(services()[name].get("environment") or {})


def bytes_of(size: str) -> int:
    """1gb, 2g, 512m as bytes."""
    number, unit = re.fullmatch(r"(\d+)([gm])b?", size, re.IGNORECASE).groups()  # type: ignore[union-attr]
    return int(number) << {"g": 30, "m": 20}[unit.lower()]


@pytest.mark.parametrize("profiles", [(), *((one,) for one in PROFILES), PROFILES], ids="+".join)
def test_every_profile_is_valid(profiles: tuple[str, ...]) -> None:
    assert compose.config(*profiles)


def test_secure_file_adds_only_what_authenticates() -> None:
    secure = secure_services()

    assert set(secure) == {"valkey", "setup", "certificates", "users", "broker-1", "broker-2", "broker-3"}
    assert {name for name in secure if secure[name] == services().get(name)} == {"valkey", "setup"}
    for name, broker in brokers(secure).items():
        own = broker["environment"]
        protocols = dict(one.split(":") for one in own["TIDEGATE_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
        assert protocols == dict.fromkeys(listeners(broker), "SASL_SSL"), name
        assert {one.upper() for one in own} <= variables()
        assert own["TIDEGATE_ACL_ENABLED"] == "true"
        assert published(broker) == published(services()[name])
        needed = {one for one, how in broker["depends_on"].items() if how["condition"].endswith("successfully")}
        assert needed == {"setup", "certificates", "users"}
    for name in ("users", "certificates"):
        assert secure[name]["read_only"] is True
        assert secure[name]["cap_drop"] == ["ALL"]
        assert "profiles" not in secure[name]
    names = secure["certificates"]["environment"]["NAMES"].split(",")
    assert {f"DNS:{name}" for name in brokers(secure)} <= set(names)


def test_profiles_are_the_documented_ones() -> None:
    assert {profile for one in services().values() for profile in one.get("profiles", ())} == set(PROFILES)
    assert {name for name, one in services().items() if not one.get("profiles")} == {
        *("valkey", "setup", "broker-1", "broker-2", "broker-3")
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_is_a_setting(name: str) -> None:
    assert {one for one in environment(name) if one.startswith("TIDEGATE_")} <= variables(), "the broker would warn"


@pytest.mark.parametrize("name", sorted(brokers()))
def test_admin_http_answers_to_the_brokers_names_and_no_page_elsewhere(name: str) -> None:
    assert set(environment(name)["TIDEGATE_ADMIN_ALLOWED_HOSTS"].split(",")) == set(brokers())


@pytest.mark.parametrize("name", sorted(brokers()))
def test_settings_of_brokers_are_valid(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    for variable, value in environment(name).items():
        monkeypatch.setenv(variable, str(token) if value == "/secrets/operator-token" else value)

    assert Settings().shutdown_timeout_ms == Settings.model_fields["shutdown_timeout_ms"].default


@pytest.mark.parametrize("name", NAMES)
def test_every_container_is_confined(name: str) -> None:
    service = services()[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"] == (["/tmp:exec,size=1g"] if name == "lake" else ["/tmp"])
    assert int(service["mem_limit"]) >= 64 << 20
    assert service["pids_limit"] <= 1_024
    assert service.get("user") not in ("root", "0", "0:0")
    assert not {"privileged", "cap_add", "network_mode"} & set(service)


@pytest.mark.parametrize("name", NAMES)
def test_images_are_pinned_or_built_here(name: str) -> None:
    service = services()[name]
    _, _, tag = service["image"].rpartition(":")

    assert re.search(r"\d+\.\d+", tag) or (tag == "local" and service["build"]["target"])


def test_ports_on_the_machine_are_distinct_and_on_loopback() -> None:
    taken = [address for one in services().values() for address in published(one).values()]

    assert len(taken) == len({port for _, port in taken})
    assert {host for host, _ in taken} == {"127.0.0.1"}


@pytest.mark.parametrize("name", sorted(brokers()))
def test_broker_is_reached_at_its_advertised_address(name: str) -> None:
    broker = brokers()[name]
    bound, reported = listeners(broker), listeners(broker, "TIDEGATE_ADVERTISED_LISTENERS")
    (outside,) = set(bound) - {"INTERNAL"}

    assert reported["INTERNAL"] == (name, bound["INTERNAL"][1])
    assert reported[outside] == published(broker)[bound[outside][1]]
    assert {host for host, _ in bound.values()} == {"0.0.0.0"}


def test_no_two_brokers_share_an_address() -> None:
    reported = [one for b in brokers().values() for one in listeners(b, "TIDEGATE_ADVERTISED_LISTENERS").values()]

    assert len(brokers()) == 5
    assert len(reported) == len(set(reported)) == 10


def test_addresses_of_other_machines_can_be_given() -> None:
    source = compose.config(EXTERNAL_HOST="kafka.example", PUBLISH_ADDRESS="0.0.0.0", BROKER_2_PORT="29093")

    assert "EXTERNAL://kafka.example:29093" in source
    assert '"published": "29093"' in source
    assert source.count('"host_ip": "0.0.0.0"') == 3, "the admin ports stay on loopback"


def test_environment_example_names_what_compose_reads() -> None:
    example = dict(re.findall(r"^([A-Z_0-9]+)=(.*)$", (REPOSITORY / ".env.example").read_text("utf-8"), re.MULTILINE))
    read = re.findall(r"\$\{([A-Z_0-9]+):-([^}]*)\}", SOURCE)

    assert len(read) == SOURCE.count("${") - SOURCE.count("${…}"), "every variable has a default"
    assert len(set(read)) == len(dict(read)), "and one only"
    assert example == dict(read)


def test_dependencies_wait_for_what_they_need() -> None:
    for name, service in services().items():
        for needed, how in (service.get("depends_on") or {}).items():
            done = needed in ONE_SHOT
            assert how["condition"] == ("service_completed_successfully" if done else "service_healthy"), name
            other = services()[needed]
            in_image = other["image"] == "tidegate:local" and not done
            assert done or in_image or other.get("healthcheck"), f"{needed} has no health that {name} could wait for"
            assert set(other.get("profiles", ())) <= set(service.get("profiles", ())), (
                f"{needed} runs where {name} does"
            )


def test_one_shot_services_end_and_servers_restart() -> None:
    for name, service in services().items():
        assert (service.get("restart") == "unless-stopped") == (name not in ONE_SHOT)


def test_nothing_is_killed_inside_its_drain_budget() -> None:
    for name, broker in brokers().items():
        grace_s = int(re.fullmatch(r"(\d+)s", broker["stop_grace_period"]).group(1))  # type: ignore[union-attr]
        assert grace_s * 1_000 >= int(environment(name)["TIDEGATE_SHUTDOWN_TIMEOUT_MS"]) + 5_000


def test_memory_suffices_for_the_settings() -> None:
    command = services()["valkey"]["command"]
    data = bytes_of(command[command.index("--maxmemory") + 1])

    assert int(services()["valkey"]["mem_limit"]) >= 2 * data, "a rewrite of the append-only file copies pages"
    for name, broker in brokers().items():
        assert int(broker["mem_limit"]) >= LIMIT_BYTES_MIN, f"{name} takes its shares of memory from the limit"


def test_server_of_compose_is_one_that_brokers_accept() -> None:
    options = services()["valkey"]["command"]

    assert options[options.index("--maxmemory-policy") + 1] == "noeviction"
    assert options[options.index("--appendonly") + 1] == "yes"
    assert options[options.index("--appendfsync") + 1] == "everysec"


def mounts(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Service and mount of every mount of a kind."""
    return [(name, one) for name, service in services().items() for one in service["volumes"] if one["type"] == kind]


def test_mounts_of_the_tree_exist_and_are_read_only() -> None:
    bound = mounts("bind")

    assert bound
    for name, mount in bound:
        assert Path(mount["source"]).exists(), f"{name} mounts {mount['source']}"
        assert mount["read_only"], name


def test_volumes_have_an_owner_in_the_image() -> None:
    made = {name for line in re.findall(r"install -d -o 10001 -g 10001 (.+)", dockerfile()) for name in line.split()}

    ours = {one["target"] for name, one in mounts("volume") if services()[name]["image"] == "tidegate:local"}

    assert ours == {"/secrets", "/certificates", "/archive"}
    assert ours <= made
    assert ours == {one["target"] for name, one in mounts("volume") if name == "setup"}, "setup is the first to mount"


def dockerfile() -> str:
    """The Dockerfile."""
    return (REPOSITORY / "Dockerfile").read_text("utf-8")


def test_files_that_settings_name_are_mounted() -> None:
    for name in brokers():
        targets = [one["target"] for one in services()[name]["volumes"]]
        named = [value for setting, value in environment(name).items() if setting.endswith(("_FILE", "_PATH"))]
        assert len(named) >= 2
        assert all(any(value.startswith(target) for target in targets) for value in named)


def test_build_arguments_and_targets_are_the_dockerfiles() -> None:
    arguments = set(re.findall(r"^ARG (\w+)", dockerfile(), re.MULTILINE))
    targets = set(re.findall(r"^FROM \S+ AS (\S+)", dockerfile(), re.MULTILINE))
    built = [service["build"] for service in services().values() if "build" in service]

    assert {one["target"] for one in built} == {"broker", "pipeline"} <= targets
    assert all(set(one["args"]) <= arguments for one in built)


def test_lake_writes_where_brokers_read() -> None:
    command = services()["lake"]["command"]
    settings = load(REPOSITORY / Path(command[-1]).relative_to("/"))

    assert command[:2] == ["pipeline", "run"]
    assert settings.archive.path == environment("broker-1")["TIDEGATE_ARCHIVE_PATH"]
    assert str(settings.checkpoint.path).startswith(str(settings.archive.path))
    assert set(settings.jobs) == {"archive"}


def test_script_of_the_token_makes_one_and_keeps_it(tmp_path: Path) -> None:
    def run() -> str:
        subprocess.run(["sh", "compose/setup.sh"], cwd=REPOSITORY, env=run_environment, check=True, timeout=100)
        return (tmp_path / "operator-token").read_text("utf-8").strip()

    run_environment = {"PATH": "/usr/bin:/bin", "SECRETS": str(tmp_path)}
    token = run()

    assert len(token) >= 32
    assert run() == token
    assert (tmp_path / "operator-token").stat().st_mode & 0o777 == 0o600
    assert environment("broker-1")["TIDEGATE_ADMIN_OPERATOR_TOKEN_FILE"] == "/secrets/operator-token"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not on the PATH")
def test_script_of_certificates_makes_what_brokers_load_and_keeps_it(tmp_path: Path) -> None:
    names = environment("certificates")["NAMES"]

    def run(names: str) -> bytes:
        subprocess.run(
            ["sh", "compose/certificates.sh"],
            cwd=REPOSITORY,
            env={"PATH": "/usr/bin:/bin", "CERTIFICATES": str(tmp_path), "NAMES": names},
            check=True,
            capture_output=True,
            timeout=100,
        )
        return (tmp_path / "broker.pem").read_bytes()

    first, authority = run(names), (tmp_path / "ca.pem").read_bytes()
    verify = ["openssl", "verify", "-CAfile", str(tmp_path / "ca.pem"), str(tmp_path / "broker.pem")]
    subprocess.run(verify, check=True, capture_output=True)
    shown = ["openssl", "x509", "-in", str(tmp_path / "broker.pem"), "-noout", "-ext", "subjectAltName"]
    reported = subprocess.run(shown, check=True, capture_output=True, text=True).stdout

    assert all(name in reported for name in ("DNS:broker-tls-1", "DNS:localhost", "IP Address:127.0.0.1"))
    assert run(names) == first
    assert run("DNS:other.example") != first
    assert (tmp_path / "ca.pem").read_bytes() == authority, "clients continue trusting it"
    assert {name for name in environment("broker-tls-1").values() if name.startswith("/certificates/")} == {
        *("/certificates/broker.pem", "/certificates/broker.key")
    }
    assert (tmp_path / "broker.key").stat().st_mode & 0o777 == 0o600


def test_prometheus_asks_every_broker_and_reads_the_rules() -> None:
    read = yaml.safe_load((REPOSITORY / "observability" / "prometheus.yml").read_text("utf-8"))
    (job,) = read["scrape_configs"]
    asked = {target for one in job["static_configs"] for target in one["targets"]}
    resolved = {(name, one["port"]) for one in job["dns_sd_configs"] for name in one["names"]}

    assert asked == {f"{name}:8080" for name, one in brokers().items() if not one.get("profiles")}
    assert resolved == {(name, 8080) for name, one in brokers().items() if one.get("profiles")}
    mounted = {one["target"]: Path(one["source"]) for one in services()["prometheus"]["volumes"]}
    assert all(list(mounted["/etc/prometheus/rules"].glob(Path(one).name)) for one in read["rule_files"])
    assert {str(Path("/etc/prometheus", one).parent) for one in read["rule_files"]} <= set(mounted)


def test_grafana_finds_its_dashboards_and_prometheus() -> None:
    mounted = {one["target"]: Path(one["source"]) for one in services()["grafana"]["volumes"] if one["type"] == "bind"}
    (source,) = mounted["/etc/grafana/provisioning"].glob("datasources/*.yml")
    (provider,) = mounted["/etc/grafana/provisioning"].glob("dashboards/*.yml")
    dashboards = yaml.safe_load(provider.read_text("utf-8"))["providers"][0]["options"]["path"]

    assert yaml.safe_load(source.read_text("utf-8"))["datasources"][0]["url"] == "http://prometheus:9090"
    assert list(mounted[dashboards].glob("*.json"))
