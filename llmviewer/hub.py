"""Files of models on the Hugging Face hub, through huggingface_hub, which is imported on first use.

HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE apply, and files are cached. Only data files are downloaded; code of a
repository is neither downloaded nor run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .documents import MOST_BYTES
from .errors import InputError

_NAME: Final = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*?)(?:@([\w./-]+))?")
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
    try:
        import huggingface_hub
    except ImportError:
        raise InputError(
            f"{name}: models of the Hugging Face hub need the package huggingface_hub; "
            "pip install 'llmviewer[hub]', or give the path of a config.json"
        ) from None
    with _quiet():
        try:
            size = _ask(match[1], match[2], file)
        except Exception as error:  # noqa: BLE001  # its own, and those of the HTTP library that it uses
            return _instead(error, name, file)
        if size > MOST_BYTES:
            raise InputError(f"{name}: {file} must have at most {MOST_BYTES} bytes; has {size}")
        try:
            return Path(huggingface_hub.hf_hub_download(match[1], file, revision=match[2]))
        except Exception as error:  # noqa: BLE001
            said = " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())
            raise InputError(f"{name}: {file} cannot be fetched: {said}") from None


def _ask(repository: str, revision: str | None, file: str) -> int:
    """The size of a file, by a single request; hf_hub_download() retries for half a minute before it fails."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(repository, file, revision=revision)
    return get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT).size or 0


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses progress bars and logs of the library."""
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown, verbosity = not are_progress_bars_disabled(), logging.get_verbosity()
    if shown:
        disable_progress_bars()
    logging.set_verbosity(_ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            enable_progress_bars()


def _instead(error: Exception, name: str, file: str) -> Path | None:
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
        raise InputError(_unreached(error, name, file)) from None
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


def _unreached(error: Exception, name: str, file: str) -> str:
    """Why a file is neither cached nor downloadable: offline mode, an unexpected response, or no response."""
    from huggingface_hub import constants, errors

    where, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{name}: its {file} is not in the cache {cache}, and HF_HUB_OFFLINE is set; unset it"
    if isinstance(error, errors.HfHubHTTPError):
        hint = "; set HF_TOKEN to a token that may read it" if error.response.status_code in (401, 403) else ""
        answer = error.response  # httpx; requests in huggingface_hub before 1.0
        phrase = getattr(answer, "reason_phrase", "") or getattr(answer, "reason", "")
        said = f"{error.response.status_code} {phrase}".strip()
        return f"{name}: {where} answers {said!r} for {file}{hint}"
    return (
        f"{name}: cannot reach {where}, and its {file} is not in the cache {cache}; "
        "give the path of a config.json, or the name of a model that ships"
    )
