"""Models of a hub, fetched into the cache when asked for: Hugging Face's, or what `HF_ENDPOINT` names.

What is fetched is one commit, and what can't run code: weights as safetensors, or GGUF, with tokenizer and
configuration. Each file is compared with the hash that the hub says. Files that came whole before a process
was killed aren't fetched again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self

from headrace.errors import SetupError
from headrace.model_cache.folders import Tell, is_whole, make, problems, sha256, size_of

_MODEL: Final = re.compile(r"(?P<name>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_WANTED: Final = frozenset({".json", ".txt", ".model", ".jinja", ".md", ".tiktoken", ".spm", ".bpe"})
_WEIGHTS: Final = (".safetensors", ".gguf")
# Other forms of the same weights, for other engines.
_OTHER_ENGINES: Final = frozenset({"onnx", "openvino", "coreml", "tflite", "flax", ".cache"})
_LOOK_EVERY_S: Final = 0.5
_ASKED_FOR_S: Final = 15.0
_KEPT_BY_LIBRARY: Final = ".cache"


@dataclass(frozen=True)
class HubModel:
    """A model of a hub.

    Args:
        name: `organisation/name`.
        revision: a commit, branch or tag; empty: what is newest.
    """

    name: str
    revision: str = ""

    @classmethod
    def parsed(cls, text: str) -> Self | None:
        """The model that a text such as `organisation/name@commit` names; None where it names none."""
        found = _MODEL.fullmatch(text)
        return cls(found["name"], found["revision"] or "") if found else None

    @property
    def is_pinned(self) -> bool:
        """Whether it is a commit, which never changes: branches and tags do."""
        return _COMMIT.fullmatch(self.revision) is not None

    def folder(self, cache: Path) -> Path:
        """Where it is kept, once it is fetched."""
        return cache / f"{self.name.replace('/', '--')}@{self.revision}"

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name


def latest(model: HubModel) -> HubModel:
    """The commit that a model's revision is now: asks the hub.

    Raises:
        SetupError: the hub can't be reached, or has no such model.
    """
    return HubModel(model.name, _info(model).sha)


def fetch_hub(model: HubModel, cache: Path, tell: Tell) -> Path:
    """The folder with a model, fetched unless it is there with nothing wrong in it.

    Args:
        model: a pinned one.
        cache: the model cache.
        tell: takes how far it is.

    Raises:
        SetupError: it can't be fetched; files that are whole stay, and the next try goes on with the others.
        OSError: the cache can't be written.
    """
    assert model.is_pinned

    def fill(folder: Path, note: Tell) -> None:
        def both(text: str) -> None:
            note(text)
            tell(text)

        _download(model, folder, both)

    return make(
        model.folder(cache),
        fill,
        source=f"hub {model}",
        is_good=lambda folder: is_whole(folder) and not problems(folder),
        goes_on=True,
    )


def _download(model: HubModel, folder: Path, tell: Tell) -> None:
    files = _chosen(model, _info(model).siblings)
    for half in (folder / _KEPT_BY_LIBRARY).rglob("*.incomplete"):  # the library has another name each time
        half.unlink()
    total = sum(file.size or 0 for file in files)
    library = _library()
    with _told(folder, total, tell), _reached(model):
        library.snapshot_download(
            model.name,
            revision=model.revision,
            local_dir=folder,
            cache_dir=folder / _KEPT_BY_LIBRARY / "hub",
            allow_patterns=[file.rfilename for file in files],
            etag_timeout=_ASKED_FOR_S,
            tqdm_class=_silent_bar(),
        )
    tell("checking")
    for file in files:
        _check(model, file, folder / file.rfilename)
    shutil.rmtree(folder / _KEPT_BY_LIBRARY)
    for path in sorted(folder.rglob("*"), reverse=True):  # what an earlier try may have chosen otherwise
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in {file.rfilename for file in files}:
            path.unlink()


def _chosen(model: HubModel, files: Sequence[Any]) -> list[Any]:
    """The files that are wanted.

    Raises:
        SetupError: there are no weights that can be read safely, or several GGUF files.
    """
    mine = [
        file
        for file in files
        if not _OTHER_ENGINES & set(PurePosixPath(file.rfilename).parts[:-1]) and _is_inside(file.rfilename)
    ]
    for kind in _WEIGHTS:
        weights = [file for file in mine if file.rfilename.endswith(kind)]
        if kind == ".gguf" and len(weights) > 1:
            raise SetupError(
                f"{model} has {len(weights)} GGUF files: download the one you want, and name that file in "
                "the function's setting"
            )
        if weights:
            return weights + [file for file in mine if _is_wanted(file.rfilename)]
    raise SetupError(
        f"{model} has no weights as safetensors or GGUF; other forms can run code when they are read, and "
        "aren't fetched"
    )


def _is_inside(name: str) -> bool:
    """Whether a file of that name stays in its folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name and path.parts != ()


def _is_wanted(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix in _WANTED or path.name.upper().startswith(("LICENSE", "NOTICE"))


def _check(model: HubModel, said: Any, file: Path) -> None:
    """Compare a file with the hash that the hub says: SHA-256 of large ones, git's own of the others."""
    if said.lfs is not None:
        is_same = file.is_file() and sha256(file) == said.lfs.sha256
    else:
        content = file.read_bytes() if file.is_file() else b""
        git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        is_same = file.is_file() and (said.blob_id is None or git.hexdigest() == said.blob_id)
    if not is_same:
        file.unlink(missing_ok=True)
        raise SetupError(f"{said.rfilename} of {model} isn't what the hub says it is; fetch it again")


# ---------------------------------------------------------------------- the library


def _library() -> Any:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        import huggingface_hub  # noqa: PLC0415 - slow to load, and a gateway has none
    except ModuleNotFoundError:
        raise SetupError(
            "fetching from a hub needs the package huggingface_hub: pip install 'headrace[runner]'"
        ) from None
    return huggingface_hub


def _silent_bar() -> Any:
    """The library's progress bar, which shows nothing: what is on the disk is told instead."""
    from huggingface_hub.utils import tqdm  # noqa: PLC0415 - as above

    class Silent(tqdm):  # pyright: ignore[reportMissingTypeArgument, reportUnknownVariableType]
        def __init__(self, *given: Any, **options: Any) -> None:
            options["disable"] = True
            super().__init__(*given, **options)  # pyright: ignore[reportUnknownMemberType]

    return Silent


def _info(model: HubModel) -> Any:
    library = _library()
    with _reached(model):
        return library.HfApi().model_info(
            model.name, revision=model.revision or None, files_metadata=True, timeout=_ASKED_FOR_S
        )


@contextmanager
def _reached(model: HubModel) -> Generator[None]:
    """Say in one sentence what went wrong, and what can be done.

    Raises:
        SetupError: anything did.
    """
    from huggingface_hub import errors  # noqa: PLC0415 - as above

    try:
        yield
    except errors.GatedRepoError:
        raise SetupError(f"{model} is for those who accepted its terms: do, and set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise SetupError(f"the hub has no model {model.name}, or it wants a token: set HF_TOKEN") from None
    except (errors.RevisionNotFoundError, errors.RevisionResolutionError):
        raise SetupError(f"{model.name} has no revision {model.revision}") from None
    except errors.OfflineModeIsEnabled:
        raise SetupError(f"{model} isn't fetched, as HF_HUB_OFFLINE is set") from None
    except Exception as error:
        # Errors of the connection come from whatever client the library uses.
        if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
            raise  # of the disk
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise SetupError(
            f"{model} can't be fetched: {reason}\n"
            "where the hub can't be reached, copy a folder with the model here, and name that folder in the "
            "function's setting"
        ) from error


@contextmanager
def _told(folder: Path, total: int, tell: Tell) -> Generator[None]:
    """Tell meanwhile how much is on the disk."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_EVERY_S):
            tell(share(size_of(folder), total))

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def share(done: int, total: int) -> str:
    """Such as `45% of 260 MB`."""
    return f"{min(100, 100 * done // max(1, total))}% of {total / 1e6:.0f} MB"
