"""Files of models on the Hugging Face hub, through huggingface_hub, which is imported on first use.

HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE apply, and files are cached. Only data files are downloaded; code of a
repository is neither downloaded nor run.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any, Final

from .documents import MAX_DOCUMENT_BYTES
from .errors import InputError
from .writing import write

_NAME: Final = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(?:@([\w./-]+))?")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_DEADLINE_S: Final = 60.0  # for a file, answers of servers before it included
_TIMEOUT_S: Final = 10.0  # between two pieces of an answer
_PIECE: Final = 2**16  # bytes
_GZIP: Final = 16  # added to a size of the window, asks zlib for the gzip format
_ERROR: Final = 40  # level of the standard library's logging


class NotOnHubError(InputError):
    """The repository does not exist, or this user has no access to it."""


def is_repository(name: str) -> bool:
    """Whether `name` has the form of a hub name: org/name or org/name@revision."""
    return _NAME.fullmatch(name) is not None


def fetch(name: str, file: str) -> Path | None:
    """The path of a repository file, downloaded or cached; None if the repository lacks it.

    Raises InputError if it cannot be downloaded.
    """
    match = _NAME.fullmatch(name)
    assert match
    if ".." in Path(match[2] or "").parts or (match[2] or "").startswith("/"):
        raise InputError(f"{name}: must be org/name@revision with a branch, tag or commit")
    try:
        import_module("huggingface_hub")
    except ImportError:
        raise InputError(
            f"{name}: models of the Hugging Face hub need the package huggingface_hub; "
            "pip install 'llmviewer[hub]', or give the path of a config.json"
        ) from None
    with _silenced():
        return _within_deadline(lambda: _fetch(match[1], match[2], name, file), f"{name}: {file}")


def _within_deadline(fetch: Callable[[], Path | None], subject: str) -> Path | None:
    """The result of `fetch`, in a thread that is given up after `_DEADLINE_S`: timeouts of HTTP libraries are between
    two bytes, so a server that sends one now and then is waited for without end.
    """
    outcome: list[Path | BaseException | None] = []

    def run() -> None:
        try:
            outcome.append(fetch())
        except BaseException as error:  # noqa: BLE001  # raised by the caller
            outcome.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(_DEADLINE_S)
    if not outcome:
        raise InputError(
            f"{subject} was not sent within {_DEADLINE_S:g} s; try again, or give the path of a config.json"
        )
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _fetch(repository: str, revision: str | None, name: str, file: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        url, commit, size = _request_metadata(repository, revision, file)
    except Exception as error:  # noqa: BLE001  # its own, and those of the HTTP library that it uses
        return _cached_or_raise(error, name, file)
    if not _COMMIT.fullmatch(commit):
        raise InputError(f"{name}: {file} cannot be fetched: the server names no commit")
    if size > MAX_DOCUMENT_BYTES:
        raise _too_long(name, file, str(size))
    cached = try_to_load_from_cache(repository, file, revision=commit)
    if isinstance(cached, str):
        return Path(cached)
    try:
        data = _download(url, name, file)
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001
        reason = " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())
        raise InputError(f"{name}: {file} cannot be fetched: {reason}") from None
    return _add_to_cache(data, repository, revision or "main", commit, file)


def _too_long(name: str, file: str, size: str) -> InputError:
    return InputError(f"{name}: {file} must have at most {MAX_DOCUMENT_BYTES} bytes; has {size}")


def _request_metadata(repository: str, revision: str | None, file: str) -> tuple[str, str, int]:
    """Address, commit and size of a file as the server claims, by a single request without retries."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(repository, file, revision=revision)
    metadata = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    return url, metadata.commit_hash or "", metadata.size or 0


def _download(url: str, name: str, file: str) -> bytes:
    """The contents of a file, of which no more than MAX_DOCUMENT_BYTES are taken, whatever length the server claims."""
    utils: Any = import_module("huggingface_hub.utils")
    data = bytearray()
    with _response(utils.get_session(), url, {**utils.build_hf_headers(), "Accept-Encoding": "identity"}) as response:
        utils.hf_raise_for_status(response)
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding not in ("identity", "gzip"):
            raise InputError(f"{name}: {file} cannot be fetched: it is sent with the encoding {encoding!r}")
        unpack = zlib.decompressobj(wbits=zlib.MAX_WBITS | _GZIP).decompress
        pieces = response.iter_raw() if hasattr(response, "iter_raw") else response.raw.stream(_PIECE)
        for piece in pieces:
            data += unpack(piece, MAX_DOCUMENT_BYTES + 1) if encoding == "gzip" else piece
            if len(data) > MAX_DOCUMENT_BYTES:
                raise _too_long(name, file, "more")
    return bytes(data)


@contextmanager
def _response(session: Any, url: str, headers: Mapping[str, str]) -> Iterator[Any]:
    """The response of a session of huggingface_hub: of httpx, or of requests before 1.0."""
    if hasattr(session, "stream"):
        with session.stream("GET", url, headers=headers, follow_redirects=True, timeout=_TIMEOUT_S) as response:
            yield response
    else:
        with session.get(url, headers=headers, stream=True, timeout=_TIMEOUT_S) as response:
            yield response


def _add_to_cache(data: bytes, repository: str, revision: str, commit: str, file: str) -> Path:
    """The path of a file written to the cache of huggingface_hub, where its other users find it."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    path = folder / "snapshots" / commit / file
    _write(path, data)
    if revision != commit:
        _write(folder / "refs" / revision, commit.encode())
    return path


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path.parent}: must be a folder that can be written to: {error.strerror}") from None
    write(path, lambda temporary: temporary.write_bytes(data))


@contextmanager
def _silenced() -> Iterator[None]:
    """Suppresses progress bars and logs of the library."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shows_bars, verbosity = not are_progress_bars_disabled(), logging.get_verbosity()
    if shows_bars:
        disable_progress_bars()
    logging.set_verbosity(_ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shows_bars:
            enable_progress_bars()


def _cached_or_raise(error: Exception, name: str, file: str) -> Path | None:
    """The cached path of a file that the hub did not return, or None if the repository lacks it.

    Raises InputError if it is not cached either.
    """
    from huggingface_hub import errors, try_to_load_from_cache

    repository, _, revision = name.partition("@")
    if isinstance(error, errors.EntryNotFoundError):
        return None
    try:
        cached = try_to_load_from_cache(repository, file, revision=revision or None)
    except errors.HFValidationError:
        raise _refused(error, name) from None
    refusals = (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError)
    if cached is None and isinstance(error, refusals):
        raise _refused(error, name) from None
    if cached is None:
        raise InputError(_why_unreachable(error, name, file)) from None
    return Path(cached) if isinstance(cached, str) else None


def _refused(error: Exception, name: str) -> InputError:
    from huggingface_hub import constants, errors, get_token

    repository, _, revision = name.partition("@")
    if isinstance(error, errors.GatedRepoError):
        where = f"{constants.ENDPOINT}/{repository}"
        if get_token():
            return InputError(f"{name}: is gated, and your token has no access; accept its conditions at {where}")
        return InputError(f"{name}: is gated; accept its conditions at {where} and set HF_TOKEN")
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError(f"{name}: {repository} has no revision {revision!r} on the hub")
    return NotOnHubError(f"no model {name!r} at {constants.ENDPOINT}")


def _why_unreachable(error: Exception, name: str, file: str) -> str:
    """Why a file is neither cached nor downloadable: offline mode, an unexpected response, or no response."""
    from huggingface_hub import constants, errors

    where, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{name}: its {file} is not in the cache {cache}, and HF_HUB_OFFLINE is set; unset it"
    if isinstance(error, errors.HfHubHTTPError):
        hint = "; set HF_TOKEN to a token that may read it" if error.response.status_code in (401, 403) else ""
        answer = error.response  # httpx; requests in huggingface_hub before 1.0
        phrase = getattr(answer, "reason_phrase", "") or getattr(answer, "reason", "")
        status = f"{error.response.status_code} {phrase}".strip()
        return f"{name}: {where} answers {status!r} for {file}{hint}"
    return (
        f"{name}: cannot reach {where}, and its {file} is not in the cache {cache}; "
        "give the path of a config.json, or the name of a model that ships"
    )
