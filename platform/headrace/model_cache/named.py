"""What a setting that names a model means: a folder or file, or a model of a hub that was fetched before."""

from __future__ import annotations

from pathlib import Path

from headrace.model_cache.folders import cache_folder, is_whole
from headrace.model_cache.hub import HubModel


def located(named: str, setting: str) -> Path:
    """Where the model is. No network is reached.

    Args:
        named: a path, or `organisation/name@commit` of a model that is in the cache.
        setting: the environment variable that says so, for messages.

    Raises:
        FileNotFoundError: it isn't there; the message says how to get it.
        ValueError: it may be a model of a hub, but no commit is pinned.
    """
    path = Path(named).expanduser()
    if path.exists():
        return path
    model = HubModel.parsed(named)
    if model is None:
        raise FileNotFoundError(f"{setting}={named}: there is no such file or folder")
    if not model.is_pinned:
        raise ValueError(
            f"{setting}={named}: there is no such folder, and a model of a hub needs its commit, 40 "
            f"hexadecimal digits, as in {model.name}@1a2b...: `headrace models fetch {named}` fetches it and "
            "prints the whole"
        )
    folder = model.folder(cache_folder())
    if is_whole(folder):
        return folder
    what = "is damaged" if folder.exists() else "isn't there"
    raise FileNotFoundError(
        f"{setting}={named}: {folder} {what}: `headrace models fetch {named}` fetches it; where there is no "
        f"network, copy a folder with the model here and set {setting} to it"
    )
