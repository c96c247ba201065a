"""Opening, migrating and sharing a database."""

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from experience_samples import graph, measured, method
from sqlalchemy import create_engine

from agent.experience import database, schema
from agent.experience.store import Store
from compiler.errors import InputError
from compiler.target import Target

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes: "list[subprocess.Popen[str]]") -> list[str]:
    """Outputs of processes that must all succeed."""
    out = []
    for process in processes:
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        out.append(stdout)
    return out


def test_migrations_and_metadata_are_equal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    Store.open(url).close()
    engine = create_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []
    engine.dispose()


def test_the_known_revisions_are_those_of_the_migrations() -> None:
    scripts = ScriptDirectory(str(database._MIGRATIONS))
    assert tuple(s.revision for s in reversed(list(scripts.walk_revisions()))) == schema.REVISIONS
    assert scripts.get_current_head() == schema.HEAD


def test_folder_and_file_are_created_and_survive(tmp_path: Path, target: Target) -> None:
    url = f"sqlite:///{tmp_path / 'new folder' / '100% ours' / 'e.db'}"
    with Store.open(url) as store:
        store.target(target)
    with Store.open(url) as store:
        assert store.counts()["targets"] == 1
    with sqlite3.connect(tmp_path / "new folder" / "100% ours" / "e.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_store_in_memory(target: Target) -> None:
    with Store.open("sqlite:///:memory:") as store:
        store.target(target)
        assert store.counts()["targets"] == 1


def test_alembic_is_not_imported_for_a_database_at_head(tmp_path: Path) -> None:
    code = "import sys, agent.experience.store as s; s.Store.open(sys.argv[1]).close(); print('alembic' in sys.modules)"
    url = f"sqlite:///{tmp_path / 'e.db'}"
    assert finish([start("-c", code, url)]) == ["True\n"]
    assert finish([start("-c", code, url)]) == ["False\n"]


def test_values_need_no_sqlalchemy() -> None:
    code = "import sys, agent.experience.records; print('sqlalchemy' in sys.modules)"
    assert finish([start("-c", code)]) == ["False\n"]


def test_six_processes_open_a_fresh_database_and_lose_no_row(tmp_path: Path, target: Target) -> None:
    url, count = f"sqlite:///{tmp_path / 'sub' / 'e.db'}", 20
    writers = [start(str(HERE / "writer.py"), url, str(n), str(count)) for n in range(6)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n", finish([writer])
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    finish(writers)
    with Store.open(url) as store:
        assert store.counts() == {
            "schedules": 7 * count, "targets": 1, "workloads": 1, "evaluations": 7 * count, "runs": 6 * count,
            "trials": 12 * count,
        }  # fmt: skip
        assert store.verify() == []
        best = store.incumbent(graph().id, method(target))
        assert best is not None and best.latency_s == 1e-3


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "not a database URL"),
        ("experience.db", "not a database URL"),
        ("nosuch://user:secret@host/db", "unknown kind of database 'nosuch'"),
        ("postgresql+nosuch://user:secret@host/db", "unknown kind of database"),
        ("mysql://user:secret@host/db", "not supported"),
        ("sqlite+aiosqlite:///e.db", "not supported"),
        ("postgresql://user:secret@host:port/db", "not a database URL"),
        ("postgresql+psycopg://user:secret@localhost:1/db?password=secret", "postgresql"),
        ("sqlite://", "no path"),
        ("sqlite://host/e.db", "no path"),
        ("sqlite:///e.db?speed=fast", "unknown option speed"),
        ("sqlite:///TMP", "is a directory"),
        ("sqlite:////dev/null", "not a regular file"),
        ("sqlite:///TMP/text.txt/e.db", "cannot create its folder"),
        ("sqlite:///TMP/nul\0/e.db", "null character"),
        ("sqlite:///TMP/text.txt", "not an SQLite database"),
        ("sqlite:///TMP/other.db", "a database of something else: it has songs"),
        ("sqlite:////proc/version", "cannot be opened"),
    ],
)
def test_a_bad_url_is_an_input_error_and_shows_no_password(tmp_path: Path, url: str, message: str) -> None:
    text, other = tmp_path / "text.txt", tmp_path / "other.db"
    text.write_text("not a database, but long enough to be mistaken for the header of one\n" * 20)
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(InputError) as caught:
        Store.open(url.replace("TMP", str(tmp_path)), timeout_s=1)
    assert message in str(caught.value) and "secret" not in str(caught.value)
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path, url: str, target: Target) -> None:
    with Store.open(url) as store:
        store.target(target)
    path = Path(url.removeprefix("sqlite:///"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.execute("ALTER TABLE targets ADD COLUMN colour TEXT DEFAULT 'red'")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="'9999' is newer than this version of rdutune, which knows up to 0001"):
        Store.open(url)
    assert path.read_bytes() == before


def test_a_migration_that_did_not_finish_is_done_again(url: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    connection.close()
    with Store.open(url) as store:
        assert store.counts()["runs"] == 0


def test_locked_beyond_the_timeout(url: str, target: Target) -> None:
    with Store.open(url, timeout_s=0.2) as store:
        holder = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(InputError, match="locked by another process"):
            store.target(target)
        with pytest.raises(InputError, match="locked by another process"):
            Store.open(url, timeout_s=0.2)
        assert store.counts()["targets"] == 0  # readers do not wait
        holder.execute("ROLLBACK")
        holder.close()
        store.target(target)
        assert store.counts()["targets"] == 1


def test_opening_waits_for_the_process_that_creates_the_database(url: str) -> None:
    holder = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.3, lambda: holder.execute("ROLLBACK"))
    release.start()
    Store.open(url, timeout_s=10).close()
    assert release.finished.is_set()  # not before the other is done
    release.join()
    holder.close()


def test_unwritable_is_found_on_opening(url: str) -> None:
    Store.open(url).close()
    path = url.removeprefix("sqlite:///")
    with pytest.raises(InputError, match="cannot be written"):
        Store.open(f"sqlite:///file:{path}?mode=ro&uri=true")


def test_a_damaged_file_is_an_input_error(url: str, target: Target) -> None:
    with Store.open(url) as store:
        store.workload(graph())
        store.target(target)
        store.put_evaluations(measured(graph().id, n, method(target), 1e-3) for n in range(200))
    path = Path(url.removeprefix("sqlite:///"))
    raw = path.read_bytes()
    path.write_bytes(raw[: 4096 * 3] + b"\xff" * (len(raw) - 4096 * 3))
    with pytest.raises(InputError, match="experience store"), Store.open(url) as store:
        store.verify()
