"""Requests to the dashboard that no page makes, and a watch on what the server does with them.

`python tests/fuzz_page.py --number 100000` sends many; tests/test_webapp_strangers.py sends a few of each kind.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import copy
import gzip
import json
import logging
import random
import re
import site
import sys
import sysconfig
import time
from dataclasses import fields
from pathlib import Path
from urllib.parse import urlencode

from llmviewer.techniques import declaration, techniques
from llmviewer.webapp.app import create
from llmviewer.webapp.state import FIELD_TYPES, IntegerField, OneOf, RealField, State
from llmviewer.webapp.words import CONTROLS

ROOT = Path(__file__).resolve().parent.parent
UPDATE = "/_dash-update-component"
ANSWERED = (200, 204, 400, 403, 404, 405, 413, 415)
MOST_CPU_S = 6.0  # of one request, on a machine that others use too
CONFIG = json.dumps({
    "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 512, "intermediate_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000,
})  # fmt: skip
DEVICE = re.sub(
    r"(?m)^name: .*$", "name: own", re.sub(r"(?m)^aliases: .*$", "", (ROOT / "hardware" / "l4.yaml").read_text())
)
DESCRIPTION = (
    "name: own\ntitle: Own\nsource: {repository: a/b, revision: c, file: config.json}\nparameters: 1\nconfig: " + CONFIG
)
TABLE = "gpu,framework,dtype,M,N,K,time_us\nh100-sxm,vllm,bf16,1,4096,4096,14\nl4,vllm,bf16,128,4096,4096,300\n"
TRACE = json.dumps({"traceEvents": [
    {"cat": "kernel", "name": f"gemm_{i % 7}", "ts": 10 * i, "dur": 5, "args": {"device": 0}} for i in range(60)
]})  # fmt: skip
LINKS = (
    "", "?batch=8&quant=W4A16g128", "?model=deepseek-v3&on=h200-sxm&tp=8", "?model=bert-base-uncased&on=l4|t4",
    "?techniques=speculative:draft=llama-3.2-1b,gamma=4,alpha=0.7", "?set=h100-sxm:memory.bandwidth=2x&tab=compare",
    "?pins=batch=4%26tp=2|model=gpt2&tab=compare", "?model=qwen2.5-vl-7b&images=1&prompt=2000&phase=prefill",
    "?tab=sweeps&sweep=figure-6", "?tab=sweeps&curves=precisions&quants=W8A16|W4A16", "?on=h100-sxm|l40s|mi300x",
    "?measured=ttft=40ms,tpot=9ms&engine=vllm", "?model=mixtral-8x7b&skew=0.8&offload=weights=0.2&attention=eager",
)  # fmt: skip


class Watch:
    """Records what the process does while active: files opened elsewhere or written, modules, programs, sockets.

    hits  what a request must not do
    """

    _inside = tuple(str(Path(p).resolve()) for p in {
        ROOT, sys.prefix, sys.base_prefix, *site.getsitepackages(), sysconfig.get_path("stdlib"), *sys.path,
    } if p)  # fmt: skip
    _changes = (
        "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
        "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "socket.getaddrinfo",
        "shutil.rmtree", "tempfile.mkstemp", "tempfile.mkdtemp", "ctypes.dlopen",
    )  # fmt: skip

    def __init__(self, *markers: str) -> None:
        self.on, self.hits, self._markers = False, [], markers
        sys.addaudithook(self._heard)

    def _heard(self, event, given):
        if not self.on:
            return
        if event == "open":
            path, mode, flags = given
            named = path if isinstance(path, str) else ""
            writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & 0o3)
            writes = writes and "__pycache__" not in named and named != "/dev/null"
            inside = (*self._inside, "/proc", "/sys", "/usr/share")
            if writes or (named and not str(Path(named).absolute()).startswith(inside)):
                self.hits.append((event, named, mode))
        elif event in self._changes or (event == "sqlite3.connect" and given[0] != ":memory:"):
            if not (event == "ctypes.dlopen" and "site-packages" in str(given)):
                self.hits.append((event, repr(given)[:200]))
        elif event == "import" and (given[0] == "huggingface_hub" or any(one in given[0] for one in self._markers)):
            self.hits.append((event, given[0]))

    @contextlib.contextmanager
    def watching(self):
        self.hits.clear()
        self.on = True
        try:
            yield self
        finally:
            self.on = False


class Faults(logging.Handler):
    """Exceptions that the server logs, which are faults of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found = []
        for name in ("llmviewer", "webapp", ""):
            logging.getLogger(name).addHandler(self)

    def emit(self, record):
        self.found.append(logging.Formatter().format(record)[-3000:])


class Server:
    """A dashboard, and each request that its page makes."""

    def __init__(self) -> None:
        self.app = create()
        self.app.server.config["PROPAGATE_EXCEPTIONS"] = False
        self.client = self.app.server.test_client()
        self.client.get("/_dash-dependencies")
        self.callbacks = {key: one for key, one in self.app.callback_map.items() if "callback" in one}
        self.faults = Faults()
        self.usual = self._usual()

    def _usual(self):
        """A value of each property that callbacks are given."""
        shown = json.loads(self.client.get("/_dash-layout").data)
        found = {}

        def walk(part):
            if isinstance(part, dict):
                if part.get("props", {}).get("id"):
                    found.update({(part["props"]["id"], key): value for key, value in part["props"].items()})
                for inner in part.values():
                    walk(inner)
            elif isinstance(part, list):
                for inner in part:
                    walk(inner)

        walk(shown)
        return found

    def body(self, output, values=(), changed=None):
        """The request for an output, with `values` by (id, property) in place of those of the page."""
        known = self.callbacks[output]
        own = dict(values)

        def place(spec):
            if spec["id"].startswith("{"):
                (key,) = json.loads(spec["id"])
                return [{"id": {key: 0}, "property": spec["property"], "value": own.get((key, spec["property"]), 1)}]
            key = spec["id"], spec["property"]
            return {"id": key[0], "property": key[1], "value": own.get(key, self.usual.get(key))}

        parts = [part.rpartition(".") for part in output.strip(".").split("...")]
        outputs = [{"id": name, "property": prop} for name, _, prop in parts]
        inputs = [place(spec) for spec in known["inputs"]]
        first = inputs[0][0] if isinstance(inputs[0], list) else inputs[0]
        name = first["id"] if isinstance(first["id"], str) else json.dumps(first["id"], separators=(",", ":"))
        return {
            "output": output, "outputs": outputs if output.startswith("..") else outputs[0], "inputs": inputs,
            "state": [place(spec) for spec in known["state"]],
            "changedPropIds": [changed or f"{name}.{first['property']}"],
        }  # fmt: skip

    def with_link(self, link, values=(), changed=None):
        """Every request of a page at a link."""
        links = {(name, "data"): link for name in ("link", "asked", "changes-of", "timeline-asked", "network-of")}
        clicks = {(spec["id"], "n_clicks"): 1 for one in self.callbacks.values() for spec in one["inputs"]}
        given = {
            **links,
            **clicks,
            ("url", "search"): link,
            ("tab", "value"): State.of_link(link)[0].tab,
            **dict(values),
        }
        for output in self.callbacks:
            yield self.body(output, given, changed)

    def post(self, body, data=None):
        """(status, answer, CPU time) of a request."""
        start = time.process_time()
        if data is None:
            response = self.client.post(UPDATE, json=body)
        else:
            response = self.client.post(UPDATE, data=data, content_type="application/json")
        return response.status_code, response.data, time.process_time() - start


def dropped(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    return "data:;base64," + base64.b64encode(data).decode()


def hostile(folder: Path) -> list[str]:
    """Texts that name something on the server or elsewhere."""
    path = str(folder / "stranger.py")
    return [
        path, f"file:{path}", "file:../stranger.py", "/etc/passwd", "file:/etc/passwd", "stranger_module:attack",
        "os:abort", "stranger-org/stranger-model", "stranger-org/stranger-model@main", str(folder),
        f"{folder}/stranger.json", f"{folder}/stranger.yaml", "..", "http://127.0.0.1:9/stranger",
        f"file:{path}\x00.json", "~/stranger.json",
        f"{folder}/stranger.gguf", f"{folder}/stranger.safetensors", f"{folder}/stranger.sqlite",
    ]  # fmt: skip


def hostile_techniques(folder: Path) -> list[str]:
    """Techniques with each such text in each of their parameters that is a text."""
    given = {"speculative": "draft=gpt2,gamma=2,alpha=0.5,", "prompt-compression": "scorer=gpt2,"}
    return [
        f"{name}:{re.sub(rf'{f.name}=[^,]*,', '', given.get(name, ''))}{f.name}={value}"
        for name, kind in techniques().items()
        for f in fields(kind)
        if "str" in str(f.type) and not declaration(f).choices
        for value in hostile(folder)
    ]


NUMBERS = (
    0, -1, 1, 2**31, 2**53, 2**63, 10**30, 10**400, 1e308, -1e308, float("nan"), float("inf"), 0.5, True, False, None,
    65536, 4_194_304, 8_388_608, 1024, 64,
)  # fmt: skip
STRANGE = (
    "", " ", "x", "\0", "\ud800", "x" * 20_000, "1e999", "nan", "W4A16g128", "W999", "|" * 200, "a=b&c=d", "%00",
    "speculative:draft=llama-68m,gamma=64,alpha=0.99", "best-of:n=131072", "beam:width=131072", "\N{SNOWMAN}" * 40,
    "layers.0-999999=W4", "weights=1,kv=1@storage", "__proto__", "batch=65536&prompt=4194304", "llama-3.1-405b", "gpt2",
    "chunked-prefill:size=1", "prefix-cache:tokens=99", "tpot=1e-300", "h100-sxm:memory.bandwidth=1e300x",
    "h100-sxm:memory.capacity=0", "skeleton:points=99", "medusa:heads=64", "lookahead",
)  # fmt: skip


def _nested(deep: int) -> list:
    found = []
    for _ in range(deep):
        found = [found]
    return found


def strange(rng: random.Random):
    """A value of any type."""
    kind = rng.randrange(9)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 6:
        return rng.choice(STRANGE)
    return copy.deepcopy(rng.choice((
        [], {}, [None], [[]], {"a": {}}, [1, 2], ["a", 3], [{"data": 5}], [{"data": {"device": 1}}], _nested(40),
        [["x.json"]], [["../x.json", "{}"]], [["x.json", "{}"]] * 20, ["llama-2-7b"] * 70, {"pin": 1}, [{"pin": "x"}],
        [["tiny.json", CONFIG], ["own.yaml", DEVICE]], [["x.json", 7]], [["x.json", "x" * 1_100_000]],
    )))  # fmt: skip


def mutate(body, rng: random.Random):
    """A copy of a JSON value with one or a few of its parts replaced, left out or doubled."""
    body = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = []

        def walk(part, places=places):
            for key in list(part) if isinstance(part, dict) else range(len(part)):
                places.append((part, key))
                if isinstance(part[key], dict | list):
                    walk(part[key])

        walk(body)
        if not places:
            break
        values = [one for one in places if one[1] == "value"]
        part, key = rng.choice(values if values and rng.random() < 0.7 else places)
        how = rng.random()
        if how < 0.1:
            del part[key]
        elif how < 0.2 and isinstance(part, list):
            part.insert(key, copy.deepcopy(part[key]))
        elif isinstance(part[key], str) and how < 0.5:
            part[key] = text(part[key], rng)
        else:
            part[key] = strange(rng)
    return body


def text(given: str, rng: random.Random) -> str:
    """A text with characters left out, doubled or replaced."""
    letters = list(given[:3000])
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(letters) + 1)
        piece = rng.choice(
            ("", "0", "9" * 20, "-", ":", ",", "=", "|", "&", "{", "[", '"', "\n", ".", "e308", "null", "*", " ")
        )
        letters[at : at + rng.randint(0, 3)] = piece
    return "".join(letters)


def link(rng: random.Random) -> str:
    """A link with fields of any value, most of which a page could have."""
    said = {}
    for name in rng.sample([*FIELD_TYPES], rng.randint(1, 7)):
        kind = FIELD_TYPES[name]
        if isinstance(kind, IntegerField | RealField):
            said[name] = rng.choice((kind.minimum, kind.maximum, rng.choice(NUMBERS), 2 ** rng.randint(0, 22)))
        elif isinstance(kind, OneOf):
            said[name] = rng.choice(
                (*kind.choices(), *(["file:tiny.json", "file:own.yaml"] if kind.allows_file else []))
            )
        elif name == "on":
            said[name] = "|".join(
                rng.sample(
                    ("h100-sxm", "l4", "mi300x", "t4", "a100-sxm-80gb", "file:own.yaml", "m5"), rng.randint(1, 5)
                )
            )
        elif name == "techniques":
            said[name] = "|".join(rng.choice([*techniques(), *STRANGE]) for _ in range(rng.randint(1, 3)))
        elif name == "pins":
            said[name] = "|".join(
                rng.choice(("batch=4", "tp=2", "model=gpt2", "quant=zzz", "gen=65536")) for _ in range(3)
            )
        else:
            said[name] = rng.choice(STRANGE)
    return "?" + urlencode(said, errors="replace")


def requests(server: Server, rng: random.Random):
    """Requests without end: of pages at links, mutated in their values, texts and files."""
    files = [["tiny.json", CONFIG], ["own.yaml", DEVICE]]
    contents = {
        ("model-file", "contents"): [CONFIG, DESCRIPTION], ("on-file", "contents"): [DEVICE],
        ("trace", "contents"): [TRACE, (ROOT / "reports" / "examples" / "timeline.csv").read_text()],
        ("measurements", "contents"): [TABLE],
    }  # fmt: skip
    names = {
        "model-file": ("a.json", "a.yaml"),
        "on-file": ("a.yaml",),
        "trace": ("t.json", "t.csv"),
        "measurements": ("m.csv", "m.parquet"),
    }
    while True:
        at = rng.choice(LINKS) if rng.random() < 0.6 else link(rng)
        values = {("files", "data"): files if rng.random() < 0.5 else []}
        changed = None
        if rng.random() < 0.3:
            place = rng.choice([*contents])
            whole = rng.choice(contents[place])
            for _ in range(rng.randint(0, 3)):
                whole = text(whole, rng)
            data = whole.encode(errors="replace")
            values[place] = dropped(gzip.compress(data) if place[0] == "trace" and rng.random() < 0.3 else data)
            values[place[0], "filename"] = rng.choice(names[place[0]])
            changed = f"{place[0]}.contents"
        output = rng.choice([*server.callbacks])
        if changed:
            output = next(
                key
                for key, one in server.callbacks.items()
                if any(f"{s['id']}.{s['property']}" == changed for s in one["inputs"])
            )
        elif "url.search" in output or "link.data" in output:
            name = rng.choice([*CONTROLS, "tab", "set"])
            values[name, "value"] = strange(rng) if rng.random() < 0.6 else rng.choice(STRANGE)
            changed = f"{name}.value" if rng.random() < 0.8 else "url.search"
        body = next(one for one in server.with_link(at, values, changed) if one["output"] == output)
        if changed is None or rng.random() < 0.4:
            first = body["inputs"][0]
            if not changed and isinstance(first, dict):
                body["changedPropIds"] = [f"{first['id']}.{first['property']}"]
        yield mutate(body, rng) if rng.random() < 0.7 else body


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    server, watch = Server(), Watch("stranger")
    for body in server.with_link(""):
        server.post(body)
    begun, statuses, bad = time.process_time(), {}, 0
    for i, body in enumerate(requests(server, random.Random(given.seed))):
        if i >= given.number or time.process_time() - begun > given.seconds:
            break
        server.faults.found.clear()
        with watch.watching():
            status, _, cpu_s = server.post(body)
        statuses[status] = statuses.get(status, 0) + 1
        problems = [*map(str, watch.hits), *server.faults.found]
        problems += [f"{cpu_s:.1f} s of CPU"] * (cpu_s > MOST_CPU_S) + [f"status {status}"] * (status not in ANSWERED)
        if problems:
            bad += 1
            sys.stdout.write("\n".join((f"--- {i}", *problems, json.dumps(body)[:3000], "")))
            sys.stdout.flush()
    cpu_s = time.process_time() - begun
    sys.stdout.write(f"{i} requests, {cpu_s:.0f} s of CPU, statuses {statuses}, {bad} with a problem\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
