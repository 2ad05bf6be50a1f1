"""The dashboard as a stranger calls it: whatever is posted, the server writes nothing, reads nothing else and stays."""

import contextlib
import importlib
import json
import random
import socket
import sqlite3
import subprocess
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("dash")

from llmviewer.errors import InputError
from llmviewer.webapp import payloads, security, wsgi
from llmviewer.webapp.app import create
from llmviewer.webapp.results import problem_of
from llmviewer.webapp.settings import Settings
from llmviewer.webapp.state import FIELD_TYPES, MAX_FILE_BYTES, MAX_FILES, File, List, State, Text

from . import fuzz_page
from .fuzz_page import CONFIG, UPDATE, Server, Watch, dropped, hostile, hostile_techniques

LINKS = ("link", "asked", "changes-of", "timeline-asked", "network-of")  # stores that hold one


@pytest.fixture(scope="module")
def server():
    return Server()


@pytest.fixture(scope="module")
def watch():
    return Watch("stranger")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with everything that a hostile name could read, in which the server runs."""
    (tmp_path / "stranger.json").write_text(CONFIG)
    (tmp_path / "stranger_module.py").write_text("raise SystemExit('was imported')")
    (tmp_path / "stranger.yaml").write_text(fuzz_page.DEVICE.replace("name: own", "name: stranger"))
    for ending in ("py", "gguf", "safetensors", "sqlite"):
        (tmp_path / f"stranger.{ending}").write_text("SQLite format 3\0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def seen(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(folder.rglob("*"))}


def posted(server, watch, bodies):
    """The statuses of requests of which none may do more than answer."""
    server.faults.found.clear()
    statuses = set()
    with watch.watching():
        for body in bodies:
            status, answer, _ = server.post(body)
            assert status in fuzz_page.ANSWERED, (status, json.dumps(body)[:2000], server.faults.found)
            assert b"root:x:0:" not in answer
            statuses.add(status)
    assert not watch.hits
    assert not server.faults.found
    return statuses


def test_watch_detects_file_import_process_and_network_access(watch, folder):
    def imported():
        with contextlib.suppress(SystemExit):
            importlib.import_module("stranger_module")

    for act in (
        lambda: (folder / "new").write_text("x"), Path("/etc/passwd").read_text, imported, (folder / "made").mkdir,
        (folder / "stranger.py").unlink, lambda: contextlib.closing(sqlite3.connect(folder / "stranger.sqlite")),
        lambda: subprocess.run(["true"], check=True), tempfile.mkdtemp, lambda: socket.getaddrinfo("localhost", 80),
    ):  # fmt: skip
        with watch.watching():
            act()
        assert watch.hits
    with watch.watching():
        Path(fuzz_page.__file__).read_text()
    assert not watch.hits


def test_files_of_a_stranger_are_not_written(server, watch, folder):
    before = seen(folder)
    for name in (f"{folder}/written.py", "../written.py", "written.py", "written.json", "a/b.json", "..", ""):
        for text in ("text", CONFIG, 5, None, ["x"]):
            for field in ("model", "on"):
                link = f"?{field}=file:{name}"
                files = {("files", "data"): [[name, text]], (field, "value"): f"file:{name}"}
                posted(server, watch, server.with_link(link, files, "url.search"))
                posted(
                    server,
                    watch,
                    [server.body(next(iter(server.callbacks)), {**files, ("link", "data"): ""}, f"{field}.value")],
                )
    assert seen(folder) == before


def test_no_field_and_no_store_names_a_path_a_module_or_a_repository(server, watch, folder):
    """Each name that could be one: in all controls, in all parts of a link in each store, and in each text alone."""
    before, asking = seen(folder), next(key for key in server.callbacks if "link.data" in key)
    names = hostile(folder)
    for place, name in enumerate(names):
        values = {(field, "value"): [name] if field in ("on", "set") else name for field in FIELD_TYPES}
        posted(server, watch, [server.body(asking, {("link", "data"): "", **values}, "model.value")])
        link = fuzz_page.urlencode({**dict.fromkeys(FIELD_TYPES, name), "file": name})
        posted(server, watch, [server.body(asking, {("url", "search"): f"?{link}"}, "url.search")])
        store, link = LINKS[place % len(LINKS)], fuzz_page.urlencode({"model": name, "techniques": name, "pins": name})
        bodies = (one for one in server.with_link("", {(store, "data"): link}) if json.dumps(store) in json.dumps(one))
        posted(server, watch, list(bodies)[place % 2 :: 2])
    for field in (name for name, kind in FIELD_TYPES.items() if isinstance(kind, Text | List)):
        value = [names[0]] if field in ("on", "set") else names[0]
        posted(server, watch, [server.body(asking, {("link", "data"): "", (field, "value"): value}, f"{field}.value")])
    assert seen(folder) == before


def test_no_parameter_of_a_technique_names_a_path_a_module_or_a_repository(watch, folder):
    texts = hostile_techniques(folder)
    with watch.watching():
        assert all(problem_of(State(techniques=(text,))) for text in texts)
    assert not watch.hits
    assert {text.partition(":")[0] for text in texts} >= {"speculative", "lengths", "prompt-compression"}


@pytest.mark.parametrize("name", ["/etc/passwd", "file:/etc/passwd", "os:abort", "a-b/c", "file:../x.json", "file:"])
def test_model_and_device_names_are_shipped_names_or_file_labels(name):
    found, notices = State.of_link(fuzz_page.urlencode({"model": name, "on": name}))
    assert (found.model, found.on) == (State().model, State().on)
    assert len(notices) == 2


def test_uploaded_file_is_limited_in_name_and_size():
    for name in ("../x.json", "/x.json", "x.py", "X.json", "x\0.json", "x/y.yaml", f"{'x' * 70}.json", "x.json\n"):
        with pytest.raises(InputError, match=r"must be a name such as my-model\.json"):
            File(name=name, text="{}")
    with pytest.raises(InputError, match=r"x\.json: must have at most 1,000,000 bytes; got 1,000,001"):
        File(name="x.json", text="x" * (MAX_FILE_BYTES + 1))
    with pytest.raises(InputError, match=f"at most {MAX_FILES}"):
        payloads.files_of([["x.json", "{}"]] * (MAX_FILES + 1))
    assert payloads.label("../../etc/passwd") == "passwd"
    assert payloads.label("C:\\temp\\a\nb.csv") == "ab.csv"
    assert payloads.label(None) == "file"


@pytest.mark.parametrize(
    ("contents", "message"),
    [("data:,nonsense!", "a.csv: was not transferred completely; upload it again"),
     ("data:;base64,\N{SNOWMAN}", "a.csv: was not transferred completely; upload it again"),
     (dropped("x" * 120), "a.csv: must have at most 100 bytes; got 120")],
)  # fmt: skip
def test_contents_that_are_damaged_or_too_large(contents, message):
    with pytest.raises(InputError) as error:
        payloads.decoded(contents, "b/a.csv", 100)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400), (b"{", 400), (b"[]", 400), (b"null", 400), (b"{}", 400), (b'{"output": "x.y"}', 400),
        (b"[" * 100_000, 400), (b"[" * 900_000 + b"]" * 900_000, 400), (b'{"output": ' + b"9" * 5000 + b"}", 400),
        (b'{"output": "op.value@0"}', 400), (b"[" + b"0," * 2_500_000 + b"0]", 413), (b"\xff\xfe", 400),
        (b'{"output": {}}', 400), (b'{"output": "answer.children", "inputs": 5}', 400),
        (b'{"output": "answer.children", "inputs": [{"value": NaN}], "state": [{}]}', 400),
        (b'{"output": "answer.children", "inputs": [{}], "state": [{}], "changedPropIds": [[]]}', 400),
        (b'{"output": "answer.children", "inputs": [{"value": ""}], "state": [{"value": []}]}', 200),
    ],
)  # fmt: skip
def test_requests_that_the_page_does_not_make_are_refused(server, data, status):
    assert server.post(None, data)[0] == status


def test_request_without_a_click_saves_nothing(server):
    for output in ("download.data", "timeline-download.data", "sweeps-download.data", "compare-download.data"):
        body = {**server.body(output, {("asked", "data"): ""}), "changedPropIds": []}
        assert server.post(body)[0] == 204


def test_lone_surrogates_are_refused(server):
    asking = next(key for key in server.callbacks if "link.data" in key)
    for values in ({("quant", "value"): "\ud800"}, {("files", "data"): [["x.json", "\ud800"]]}):
        assert server.post(server.body(asking, {("link", "data"): "", **values}, "quant.value"))[0] == 400


def test_request_body_is_limited_in_size(server):
    assert server.post(None, b" " * (Settings().max_request_bytes + 1))[0] == 413
    assert server.client.get("/_dash-component-suites/nothing/x.js").status_code == 404


def test_invalid_setting_is_refused_in_one_line(server):
    body = server.body("answer.children", {("asked", "data"): "?tp=3"})
    status, answer, _ = server.post(body)
    assert status == 400
    assert answer.startswith(b"tp=3 does not divide")
    assert answer.count(b"\n") == 1


def test_mutated_requests_get_a_response(server, watch):
    """A few of the many that `python tests/fuzz_page.py` sends."""
    rng = random.Random(4)
    posted(server, watch, (body for body, _ in zip(fuzz_page.requests(server, rng), range(60), strict=False)))


def test_local_server_answers_local_hosts_only():
    client = create(hosts=security.hosts_of("127.0.0.1")).server.test_client()
    for host, status in (
        ("localhost", 200), ("127.0.0.1:8050", 200), ("[::1]:8050", 200), ("LOCALHOST:1", 200),
        ("attacker.example", 403),
        ("127.0.0.1.attacker.example", 403), ("localhost.attacker.example:8050", 403), ("192.168.0.1", 403), ("", 403),
        ("[::1", 403), ("localhost@attacker.example", 403),
    ):  # fmt: skip
        assert client.get("/", headers={"Host": host}).status_code == status, host
    every = security.hosts_of("0.0.0.0")
    client = create(hosts=every).server.test_client()
    for host, status in (
        (socket.gethostname(), 200),
        ("10.1.2.3:80", 200),
        ("[fe80::1]", 200),
        ("attacker.example", 403),
    ):
        assert client.get("/", headers={"Host": host}).status_code == status, host
    assert "page.example" in security.hosts_of("page.example")


def test_requests_of_other_sites_are_refused():
    client = create(hosts=security.hosts_of("127.0.0.1")).server.test_client()
    for headers, status in (
        ({}, 400), ({"Origin": "http://127.0.0.1:8050"}, 400), ({"Origin": "http://attacker.example"}, 403),
        ({"Origin": "null"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost:8050"}, 400),
    ):  # fmt: skip
        found = client.post(UPDATE, json={}, headers={"Host": "127.0.0.1:8050", **headers})
        assert found.status_code == status, headers
    assert client.post(UPDATE, data="{}", headers={"Host": "localhost"}).status_code == 415  # as a form of another site


def test_a_hosted_page_takes_its_hosts_from_the_environment(monkeypatch):
    for hosts, statuses in (("a.example, b.example", [200, 200, 403]), ("", [200, 200, 200])):
        monkeypatch.setenv("LLMVIEWER_ALLOWED_HOSTS", hosts)
        client = importlib.reload(wsgi).server.test_client()
        asked = ("a.example", "b.example:80", "c.example")
        assert [client.get("/", headers={"Host": host}).status_code for host in asked] == statuses


def test_every_response_has_security_headers(server):
    for path in ("/", "/_dash-layout", "/nothing", "/assets/page.js"):
        with server.client.get(path) as response:
            headers = response.headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
