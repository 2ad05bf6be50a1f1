"""Models from the Hugging Face hub, tested against a local server with the hub's paths."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

pytest.importorskip("huggingface_hub")

CONFIG = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 100,
}
FP8 = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_local"
FILES = {  # (repository, revision, file): what it holds
    ("org/plain", "main", "config.json"): json.dumps(CONFIG),
    ("org/plain", "v2", "config.json"): json.dumps({**CONFIG, "num_hidden_layers": 3}),
    ("org/private", "main", "config.json"): json.dumps(CONFIG),
    ("org/quantized", "main", "config.json"): json.dumps(CONFIG),
    ("org/quantized", "main", "hf_quant_config.json"): json.dumps(FP8),
    ("org/embedder", "main", "config.json"): json.dumps({**CONFIG, "architectures": ["LlamaForCausalLM"]}),
    ("org/embedder", "main", "modules.json"): json.dumps([{"idx": 1, "type": "sentence_transformers.models.Pooling"}]),
    ("org/broken", "main", "config.json"): "{",
    ("org/unknown", "main", "config.json"): json.dumps({**CONFIG, "model_type": "quantum"}),
    ("org/code", "main", "config.json"): json.dumps({**CONFIG, "auto_map": {"AutoConfig": "configuration_evil.Evil"}}),
    ("org/code", "main", "configuration_evil.py"): "raise SystemExit('ran')",
    ("org/weights", "main", "model.safetensors"): "",
    ("org/adapter", "main", "adapter_config.json"): json.dumps(
        {
            "peft_type": "LORA",
            "base_model_name_or_path": "org/plain",
            "r": 16,
            "target_modules": ["q_proj"],
        }
    ),
    ("org/long", "main", "config.json"): " " * (2**26 + 1),
    ("org/nowhere", "main", "config.json"): json.dumps(CONFIG),
    **{(f"org/{name}", "main", "config.json"): "{}" for name in ("endless", "packed", "slow")},
}
ENDLESS = {  # headers of a response that never ends; what HEAD tells of it is false
    "org/endless": {},
    "org/packed": {"Content-Encoding": "gzip"},
    "org/slow": {"Content-Length": "1000000"},
}


class Hub(BaseHTTPRequestHandler):
    """/{repository}/resolve/{revision}/{file}, with the headers and errors of the hub."""

    asked: ClassVar[list[str]] = []

    def do_HEAD(self):
        self._answer(with_body=False)

    def do_GET(self):
        self._answer(with_body=True)

    def _answer(self, *, with_body):
        Hub.asked.append(self.path)
        parts = self.path.strip("/").split("/")
        if len(parts) != 5 or parts[2] != "resolve":
            return self._end(404, {}, b"", with_body=with_body)
        repository, revision, file = "/".join(parts[:2]), parts[3], parts[4]
        allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repository == "org/gated":
            said = "Access to model org/gated is restricted."
            return self._end(
                403 if allowed else 401,
                {"X-Error-Code": "GatedRepo", "X-Error-Message": said},
                b"",
                with_body=with_body,
            )
        if repository == "org/down":
            return self._end(500, {}, b"", with_body=with_body)
        held = {key for key in FILES if key[0] == repository}
        if not held or (repository == "org/private" and not allowed):
            return self._end(401, {"X-Error-Code": "RepoNotFound"}, b"", with_body=with_body)
        if revision not in {key[1] for key in held} | {COMMIT}:
            return self._end(404, {"X-Error-Code": "RevisionNotFound"}, b"", with_body=with_body)
        text = FILES.get((repository, "main" if revision == COMMIT else revision, file))
        commit = {"X-Repo-Commit": COMMIT if revision != "v2" else COMMIT[::-1]}
        if text is None:
            return self._end(404, {"X-Error-Code": "EntryNotFound", **commit}, b"", with_body=with_body)
        body = text.encode()
        etag = {"ETag": f'"{hashlib.sha1(body).hexdigest()}"'}
        if with_body and repository in ENDLESS:
            return self._endless(ENDLESS[repository], {**commit, **etag})
        if repository == "org/nowhere":
            commit = {"X-Repo-Commit": "../../../escaped"}
        return self._end(200, {**commit, **etag}, body, with_body=with_body)

    def _end(self, status, headers, body, *, with_body):
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _endless(self, headers, own):
        """A body that never ends, whatever length it claims to have; slow, if it has a length."""
        self.send_response(200)
        for key, value in {**headers, **own}.items():
            self.send_header(key, value)
        self.end_headers()
        zeros = zlib.compressobj(wbits=31)
        slow, packed = "Content-Length" in headers, "Content-Encoding" in headers
        while True:
            piece = b" " * (1 if slow else 2**22)
            try:
                self.wfile.write(zeros.compress(piece) if packed else piece)
                self.wfile.flush()
            except OSError:
                return
            if slow:
                time.sleep(0.2)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def endpoint():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def models(endpoint, tmp_path):
    """Runs `llmviewer models NAME` in a process of its own, as huggingface_hub reads its variables once."""

    def run(name, **variables):
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING_FACE"))}
        given = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1", **variables}
        command = [sys.executable, "-m", "llmviewer", "models", name, "--format", "json"]
        return subprocess.run(
            command, env={**kept, **given}, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
        )

    return run


def _facts(done):
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def _error(done):
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("llmviewer: ")
    assert done.stderr.count("\n") == 1
    return done.stderr.removeprefix("llmviewer: ").rstrip("\n")


def test_a_repository_is_a_model(models):
    facts = _facts(models("org/plain"))
    assert (facts["name"], facts["title"], facts["layers"]) == ("plain", "org/plain", 2)
    assert facts["source"] == "org/plain config.json"


def test_a_revision_of_a_repository(models):
    assert _facts(models("org/plain@v2"))["layers"] == 3
    assert _error(models("org/plain@v3")) == "org/plain@v3: org/plain has no revision 'v3' on the hub"


@pytest.mark.slow("fetches in a process of its own")
def test_fetched_configs_are_cached_for_offline_use(models, endpoint):
    _facts(models("org/plain"))
    Hub.asked.clear()
    assert _facts(models("org/plain", HF_HUB_OFFLINE="1"))["layers"] == 2
    assert not Hub.asked
    assert _facts(models("org/plain", HF_ENDPOINT="http://127.0.0.1:9"))["layers"] == 2


@pytest.mark.slow("fetches in a process of its own")
def test_modelopt_file_is_fetched_when_the_config_has_no_quantization(models):
    Hub.asked.clear()
    _facts(models("org/quantized"))
    assert "/org/quantized/resolve/main/hf_quant_config.json" in Hub.asked


@pytest.mark.slow("fetches in a process of its own")
def test_embedder_identified_by_its_module_list_has_no_head(models):
    plain, embedder = _facts(models("org/plain")), _facts(models("org/embedder"))
    assert embedder["parameters"] == plain["parameters"] - CONFIG["vocab_size"] * CONFIG["hidden_size"]
    assert not embedder["generates"]


@pytest.mark.slow("fetches in a process of its own")
def test_token_grants_access_to_private_repositories(models, endpoint):
    error = _error(models("org/private"))
    assert error.startswith(f"no model 'org/private' at {endpoint}, or it is private and HF_TOKEN may not read it; ")
    assert _facts(models("org/private", HF_TOKEN=TOKEN))["layers"] == 2


@pytest.mark.slow("fetches in a process of its own")
def test_error_for_a_missing_repository_suggests_shipped_models(models, endpoint):
    error = _error(models("org/llama-2-7b"))
    said = f"no model 'org/llama-2-7b' at {endpoint}, or it is private and HF_TOKEN may not read it; "
    assert error.startswith(f"{said}of those that ship, ")
    assert "llama-2-7b" in error.removeprefix(said)


@pytest.mark.slow("fetches in a process of its own")
@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("", "; accept its conditions at {}/org/gated and set HF_TOKEN"),
        (TOKEN, ", and your token has no access; accept its conditions at {}/org/gated"),
    ],
)
def test_a_gated_repository(models, endpoint, token, said):
    assert _error(models("org/gated", HF_TOKEN=token)) == f"org/gated: is gated{said.format(endpoint)}"


@pytest.mark.slow("fetches in a process of its own")
def test_a_repository_without_a_config(models):
    error = _error(models("org/weights"))
    assert error.startswith("org/weights: has no config.json on the hub, which a model for transformers has; of those ")


@pytest.mark.slow("fetches in a process of its own")
def test_an_adapter_is_no_model(models):
    said = "is a LoRA adapter, not a model; give its base model, org/plain, --with lora:rank=16,targets=q_proj"
    assert _error(models("org/adapter")) == f"org/adapter: {said}"


@pytest.mark.slow("fetches in a process of its own")
def test_offline_and_not_in_the_cache(models, tmp_path):
    where = tmp_path / "hf" / "hub"
    error = f"org/plain: its config.json is not in the cache {where}, and HF_HUB_OFFLINE is set; unset it"
    assert _error(models("org/plain", HF_HUB_OFFLINE="1")) == error


@pytest.mark.slow("fetches in a process of its own")
def test_no_network_and_not_in_the_cache(models, tmp_path):
    where = tmp_path / "hf" / "hub"
    error = _error(models("org/plain", HF_ENDPOINT="http://127.0.0.1:9"))
    assert error == (
        f"org/plain: cannot reach http://127.0.0.1:9, and its config.json is not in the cache {where}; "
        "give the path of a config.json, or the name of a model that ships"
    )


@pytest.mark.slow("fetches in a process of its own")
def test_a_server_that_fails(models, endpoint):
    error = f"org/down: {endpoint} answers '500 Internal Server Error' for config.json"
    assert _error(models("org/down")) == error


@pytest.mark.slow("fetches in a process of its own")
def test_a_config_that_is_not_json(models):
    said = "org/broken config.json:1:2: is not JSON: Expecting property name enclosed in double quotes"
    assert _error(models("org/broken")) == said


@pytest.mark.slow("fetches in a process of its own")
def test_a_config_that_is_too_long_is_not_fetched(models, endpoint):
    Hub.asked.clear()
    assert _error(models("org/long")) == "org/long: config.json must have at most 67108864 bytes; has 67108865"
    assert len(Hub.asked) == 1


@pytest.mark.slow("fetches in a process of its own")
@pytest.mark.parametrize("name", ["org/endless", "org/packed"])
def test_a_file_is_not_longer_than_allowed_whatever_the_server_claims(models, tmp_path, name):
    assert _error(models(name)) == f"{name}: config.json must have at most 67108864 bytes; has more"
    assert not any(path.is_file() for path in (tmp_path / "hf").rglob("*config.json*"))


def test_a_server_that_sends_a_byte_now_and_then_is_not_waited_for(endpoint, tmp_path):
    code = (
        "import llmviewer.hub as hub; hub._DEADLINE_S = 1.0\n"
        "from llmviewer.cli import main; raise SystemExit(main(['models', 'org/slow']))"
    )
    given = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=False)
    said = "config.json was not sent within 1 s; try again, or give the path of a config.json"
    assert _error(done) == f"org/slow: {said}"


@pytest.mark.slow("fetches in a process of its own")
def test_the_server_names_no_path(models, tmp_path):
    error = "org/nowhere: config.json cannot be fetched: the server names no commit"
    assert _error(models("org/nowhere")) == error
    assert not list(tmp_path.rglob("*escaped*"))
    assert "must be org/name@revision with a branch, tag or commit" in _error(models("org/plain@../../x"))


@pytest.mark.slow("fetches in a process of its own")
def test_an_architecture_that_is_not_known(models):
    error = _error(models("org/unknown"))
    assert error.startswith("org/unknown config.json: model_type: no architecture for 'quantum'; ")


@pytest.mark.slow("fetches in a process of its own")
def test_code_of_a_repository_is_neither_fetched_nor_run(models):
    Hub.asked.clear()
    assert _facts(models("org/code"))["layers"] == 2
    assert {path.rpartition("/")[2] for path in Hub.asked} == {"config.json", "hf_quant_config.json"}


@pytest.mark.slow("fetches in a process of its own")
def test_without_the_package_the_extra_is_named(models, tmp_path):
    (tmp_path / "huggingface_hub.py").write_text("raise ImportError", encoding="utf-8")
    assert _error(models("org/plain", PYTHONPATH=str(tmp_path))) == (
        "org/plain: models of the Hugging Face hub need the package huggingface_hub; pip install 'llmviewer[hub]', "
        "or give the path of a config.json"
    )


@pytest.mark.parametrize("name", ["a/b/c", "./here", "org/", "/abs", "org/na me", "../up"])
def test_invalid_hub_names_are_not_looked_up(models, name):
    said = f"{name}: there is no such file or folder" if name[0] in "./" else f"no model {name!r}: "
    assert _error(models(name, HF_ENDPOINT="http://127.0.0.1:9")).startswith(said)


def test_names_that_ship_do_not_import_the_hub(tmp_path):
    code = "import sys; from llmviewer.analyzing.analysis import analyze; analyze('gpt2', 't4')"
    asked = f"{code}; print('huggingface_hub' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "False\n"
