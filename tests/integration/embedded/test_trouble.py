"""What keeps a server from starting is one clear line."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path

import pytest
from harness.servers import (
    answer,
    small_disk,
    write_a_row,
)

from headrace.embedded import EmbeddedPostgres
from headrace.errors import SetupError


def test_data_of_another_version_are_refused(empty_home: Path) -> None:
    (empty_home / "postgres").mkdir()
    (empty_home / "postgres" / "PG_VERSION").write_text("16\n")

    with pytest.raises(SetupError, match=r"was made by Postgres 16, this program brings 18: upgrade"):
        EmbeddedPostgres(empty_home).start()


def test_somebody_elses_folder_is_left_alone(empty_home: Path) -> None:
    (empty_home / "postgres").mkdir()
    (empty_home / "postgres" / "diary.txt").write_text("mine")

    with pytest.raises(SetupError, match="isn't a data folder of Postgres"):
        EmbeddedPostgres(empty_home).start()
    assert (empty_home / "postgres" / "diary.txt").read_text() == "mine"


def test_a_file_in_the_place_of_the_home_is_one_clear_line(empty_home: Path) -> None:
    (empty_home / "file").write_text("")

    with pytest.raises(SetupError) as caught:
        EmbeddedPostgres(empty_home / "file").start()
    assert str(empty_home / "file") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_broken_configuration_is_one_clear_line(home: Path) -> None:
    with EmbeddedPostgres(home):
        pass
    with (home / "postgres" / "postgresql.conf").open("a") as file:
        file.write("nonsense = yes\n")

    with pytest.raises(SetupError) as caught:
        EmbeddedPostgres(home).start()
    assert "the embedded Postgres doesn't start: " in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (home / "run" / "postgres.holders").exists()
    with (home / "run" / "postgres.holders").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a failed start holds nothing


@pytest.mark.parametrize("size", ["16m", "40m"])
def test_a_disk_too_small_for_the_data_is_one_clear_line(size: str) -> None:
    with small_disk(size) as disk:
        with pytest.raises(SetupError) as caught:
            EmbeddedPostgres(disk / "home").start()
        assert f"the disk that holds {disk / 'home'}" in str(caught.value)
        assert "is full" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not (disk / "home" / "postgres.new").exists()


def test_a_disk_that_is_full_at_the_start_is_one_clear_line() -> None:
    with small_disk("80m") as disk:
        with EmbeddedPostgres(disk / "home") as postgres:
            write_a_row(postgres.url)
        with contextlib.suppress(OSError), (disk / "fill").open("wb", buffering=0) as fill:
            while True:
                fill.write(bytes(4096))

        with pytest.raises(
            SetupError, match=r"^the embedded Postgres doesn't start: the disk .* is full; free"
        ):
            EmbeddedPostgres(disk / "home").start()

        (disk / "fill").unlink()
        with EmbeddedPostgres(disk / "home") as postgres:
            assert answer(postgres.url, "SELECT value FROM kept") == 42
