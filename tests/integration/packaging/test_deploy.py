"""The files under `deploy/` are checked by the programs that read them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headrace.gateway.server import KEEP_ALIVE_S
from headrace.gateway.sse import HEADERS, HEARTBEAT_S
from headrace.settings import Settings, variable

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
UNITS = ("headrace-gateway.service", "headrace-runner@.service")


def run(*command: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.mark.skipif(NGINX is None, reason="nginx isn't installed")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl isn't installed")
def test_nginx_accepts_the_site(tmp_path: Path) -> None:
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=headrace.example"]
    run(*request, "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "certificate.pem"))
    site = (DEPLOY / "nginx" / "headrace.conf").read_text().replace("/etc/headrace/tls", str(tmp_path))
    (tmp_path / "site.conf").write_text(site)
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n    access_log off;\n"
        f"    include {tmp_path}/site.conf;\n}}\n"
    )
    said = run(
        str(NGINX), "-t", "-q", "-e", "stderr", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")
    )
    assert "[warn]" not in said


def test_nginx_waits_longer_than_the_gateway_holds() -> None:
    site = (DEPLOY / "nginx" / "headrace.conf").read_text()
    calls = site.split("location /fn {")[1].split("}")[0]
    assert "proxy_read_timeout 60s;" in calls
    assert Settings.model_fields["max_hold"].default < 60
    assert "proxy_next_upstream off;" in calls
    waits = site.split("location ~ ^/(jobs|batches)/ {")[1].split("}")[0]
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", waits)
    assert int(seconds) > max(Settings.model_fields["max_hold"].default, 2 * HEARTBEAT_S)


def test_nginx_passes_streams_on_as_they_come() -> None:
    site = (DEPLOY / "nginx" / "headrace.conf").read_text()
    assert (b"x-accel-buffering", b"no") in HEADERS
    assert not re.search(
        r"proxy_ignore_headers|proxy_buffering\s+on|gzip\s+on|proxy_ignore_client_abort\s+on", site
    )


def test_nginx_drops_idle_connections_before_the_gateway_does() -> None:
    site = (DEPLOY / "nginx" / "headrace.conf").read_text()
    upstream = site.split("upstream headrace_gateways {")[1].split("}")[0]
    (seconds,) = re.findall(r"keepalive_timeout (\d+)s;", upstream)
    assert int(seconds) < KEEP_ALIVE_S


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd isn't installed")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_unit(tmp_path: Path, name: str) -> None:
    text = (DEPLOY / "systemd" / name).read_text()
    for absent, present in (("/opt/headrace/bin/headrace", "/bin/true"), ("User=headrace", "User=root")):
        assert absent in text
        text = text.replace(absent, present)
    unit = tmp_path / name.replace("@", "@1")
    unit.write_text(text)
    said = run("systemd-analyze", "verify", str(unit))
    assert name.partition(".")[0].rstrip("@") not in said


def test_the_environment_file_sets_settings() -> None:
    lines = (DEPLOY / "systemd" / "headrace.env").read_text().splitlines()
    names = {line.partition("=")[0] for line in lines if line and not line.startswith("#")}
    assert names <= {variable(name) for name in Settings.model_fields}
    assert "HEADRACE_DATABASE_URL" in names
