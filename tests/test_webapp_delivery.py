"""Delivery of the page: compression, caching, bundles on demand, probes, log and settings of the server."""

import gzip
import json
import re

import pytest

pytest.importorskip("dash")

from llmviewer.errors import InputError
from llmviewer.webapp.app import create
from llmviewer.webapp.delivery import HEALTH, READINESS
from llmviewer.webapp.settings import Settings

ON_DEMAND = ("dash_ag_grid", "dash_cytoscape")


@pytest.fixture(scope="module")
def client():
    return create(settings=Settings(hosts=("page.example",))).server.test_client()


def get(client, path, **headers):
    return client.get(path, headers={"Host": "page.example", **headers})


def test_scripts_are_compressed_and_grids_and_graphs_are_not_among_them(client):
    page = get(client, "/").get_data(as_text=True)
    scripts = re.findall(r'<script src="([^"]+)"', page)
    assert not [one for one in scripts if any(name in one for name in ON_DEMAND)]
    sent = raw = 0
    for address in scripts:
        response = get(client, address, **{"Accept-Encoding": "gzip"})
        sent += len(response.data)
        raw += len(gzip.decompress(response.data) if response.headers.get("Content-Encoding") else response.data)
        assert "max-age=31536000" in response.headers["Cache-Control"]
        assert "Accept-Encoding" in response.headers.get("Vary", "") or len(response.data) < 1000
    assert sent < 500_000 < raw
    bundles = json.loads(re.search(r"llmviewerBundles = (\{.*?\});", page)[1])
    assert bundles.keys() == set(ON_DEMAND)
    for bundle in bundles.values():
        response = get(client, f"/{bundle['url']}")
        assert response.status_code == 200
        assert bundle["component"] in response.get_data(as_text=True)
        assert "max-age=31536000" in response.headers["Cache-Control"]


def test_a_browser_that_takes_no_gzip_gets_none(client):
    plain = get(client, "/_dash-layout")
    packed = get(client, "/_dash-layout", **{"Accept-Encoding": "br, gzip"})
    assert "Content-Encoding" not in plain.headers
    assert gzip.decompress(packed.data) == plain.data
    assert int(packed.headers["Content-Length"]) == len(packed.data) < len(plain.data) / 3


def test_probes_answer_any_host_and_other_addresses_do_not(client):
    assert client.get(HEALTH, headers={"Host": "10.0.0.7"}).json["status"] == "ok"
    assert client.get(READINESS, headers={"Host": "10.0.0.7"}).json["status"] == "ready"
    assert client.get("/", headers={"Host": "10.0.0.7"}).status_code == 403


def test_a_server_that_cannot_analyze_is_not_ready(client, monkeypatch):
    def fail(_state):
        raise InputError("no data")

    monkeypatch.setattr("llmviewer.webapp.delivery.device_results", fail)
    response = client.get(READINESS)
    assert (response.status_code, response.json) == (503, {"status": "not ready", "reason": "no data"})
    assert client.get(HEALTH).status_code == 200


def test_the_log_has_a_line_for_each_request_without_its_link(capsys):
    server = create(settings=Settings(log=True)).server.test_client()
    server.get("/?quant=secret")
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert line.keys() == {"time", "method", "path", "status", "wall_ms", "cpu_ms", "bytes"}
    assert (line["method"], line["path"], line["status"]) == ("GET", "/", 200)
    assert line["bytes"] > 1000
    assert line["wall_ms"] >= 0 <= line["cpu_ms"]


def test_settings_are_those_of_the_environment():
    assert Settings.of_environment({}) == Settings()
    given = {
        "LLMVIEWER_ALLOWED_HOSTS": "a.example, b.example", "LLMVIEWER_PREFIX": "/llm/", "LLMVIEWER_LOG": "1",
        "LLMVIEWER_CPU_LIMIT_S": "4", "LLMVIEWER_MAX_REQUEST_MB": "20",
    }  # fmt: skip
    assert Settings.of_environment(given) == Settings(
        hosts=("a.example", "b.example"), prefix="/llm/", log=True, cpu_limit_s=4.0, max_request_bytes=20_000_000
    )
    page = create(settings=Settings(prefix="/llm/")).server.test_client().get("/").get_data(as_text=True)
    assert re.findall(r'<script src="([^"]+)"', page)
    assert all(one.startswith("/llm/") for one in re.findall(r'<script src="([^"]+)"', page))


@pytest.mark.parametrize(
    ("name", "text", "requirement"),
    [
        ("LLMVIEWER_LOG", "yes", "must be 0 or 1"),
        ("LLMVIEWER_PREFIX", "llm", "must begin and end with /"),
        ("LLMVIEWER_CPU_LIMIT_S", "0", "must be a number from 0.5 to 60"),
        ("LLMVIEWER_CPU_LIMIT_S", "nan", "must be a number from 0.5 to 60"),
        ("LLMVIEWER_MAX_REQUEST_MB", "big", "must be a number from 1 to 1000"),
    ],
)
def test_invalid_environment_setting_is_refused_with_its_requirement(name, text, requirement):
    with pytest.raises(InputError, match=f"^{name}: {requirement}; got '{text}'$"):
        Settings.of_environment({name: text})
