"""Open a database by URL: check it before touching it, bring its schema to head, and word every failure.

A database that is not ours, or whose schema is newer than this code, is left as it was. The migrations are the only
place a schema comes from; Alembic is imported only when there is something to migrate, since importing it is slow.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, select, table, update
from sqlalchemy import column as sql_column
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DataError, IntegrityError, NoSuchModuleError, ProgrammingError

from agent.experience.schema import HEAD, REVISIONS
from compiler.errors import InputError

RIGHT = "sqlite:///PATH (a file, created if missing), or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
#: Execution option of a connection whose transaction writes, so that SQLite takes the write lock at its start.
WRITE = "experience_write"
_MIGRATIONS = Path(__file__).parent / "migrations"
_VERSION = table("alembic_version", sql_column("version_num"))
#: SQLite's result codes by prefix: what is wrong, what would be right.
_SQLITE_ERRORS = (
    ("SQLITE_BUSY", "locked by another process for too long", "wait for that process to finish, or give another store"),
    ("SQLITE_READONLY", "cannot be written", "make the file and its folder writable, or give another store"),
    ("SQLITE_CANTOPEN", "cannot be opened", "check the path, and that its folder is writable"),
    ("SQLITE_PERM", "cannot be written", "make the file and its folder writable, or give another store"),
    ("SQLITE_NOTADB", "not an SQLite database", "give a new path, or that of an experience store"),
    ("SQLITE_CORRUPT", "the file is damaged", "restore a copy, or give a new path to start afresh"),
    ("SQLITE_FULL", "the disk is full", "free some space; the store is as it was before this command"),
)


def open_engine(url: str, timeout_s: float) -> tuple[Engine, str]:
    """An engine on the database at `url`, its schema at head and writable, and its name for messages (no password).

    InputError for everything a person can put right: the URL, the driver, the path, permissions, a lock held for longer
    than `timeout_s`, a database of something else, or a schema newer than this code.
    """
    parsed = _parse(url)
    where = f"experience store {shown(parsed)}"
    if parsed.get_backend_name() == "sqlite":
        _prepare_path(parsed, where)
    with database_errors(where):
        engine = _create(parsed, timeout_s, where)
        try:
            _try_connection(engine, where)
            revision = _checked_revision(engine, where)
            if engine.dialect.name == "sqlite":
                _use_wal(engine, timeout_s)
            if revision == HEAD:
                _check_writable(engine)
            else:
                _migrate(engine)
        except BaseException:
            engine.dispose()
            raise
    return engine, where


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that sees one state of the database."""
    with engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that is committed whole, or not at all when its body raises."""
    with engine.connect() as plain:
        connection = plain.execution_options(**{WRITE: True})
        with connection.begin():
            yield connection


@contextmanager
def database_errors(where: str) -> Iterator[None]:
    """Turn failures of the database itself into InputError. Failures of our statements (bugs) pass through."""
    try:
        yield
    except (IntegrityError, ProgrammingError, DataError):
        raise
    except DatabaseError as error:
        raise _input_error(where, error.orig) from None
    except sqlite3.DatabaseError as error:
        raise _input_error(where, error) from None


def shown(url: URL) -> str:
    """The URL without password and without options, which may hold secrets too."""
    if url.get_backend_name() == "sqlite" and url.database:
        return f"{url.drivername}:///{url.database}"
    return url.set(query={}).render_as_string(hide_password=True)


def _input_error(where: str, error: BaseException | None) -> InputError:
    name = getattr(error, "sqlite_errorname", "")
    for prefix, what, right in _SQLITE_ERRORS:
        if name.startswith(prefix):
            return InputError(where, what, right)
    lines = str(error).strip().splitlines() or ["the database failed"]
    return InputError(where, lines[0], "check that the database is reachable and is an experience store")


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        backend, driver = parsed.get_backend_name(), parsed.get_dialect().driver
    except NoSuchModuleError:
        raise InputError("experience store", f"unknown kind of database {make_url(url).drivername!r}", RIGHT) from None
    except ImportError:
        raise InputError("experience store", f"no driver {make_url(url).drivername!r} is installed", RIGHT) from None
    except (ArgumentError, ValueError):  # the text may hold a password: it is not repeated
        raise InputError("experience store", "not a database URL", RIGHT) from None
    if backend not in ("sqlite", "postgresql") or (backend == "sqlite" and driver != "pysqlite"):
        raise InputError(f"experience store {shown(parsed)}", f"{parsed.drivername} is not supported", RIGHT)
    return parsed


def _prepare_path(url: URL, where: str) -> None:
    """Create the folder of an SQLite file; refuse paths that cannot be one."""
    if url.query and "uri" not in url.query:
        raise InputError(where, f"unknown option {', '.join(sorted(url.query))}", RIGHT)
    if url.host or not url.database:
        raise InputError(where, "no path", f"{RIGHT}; three slashes, four for an absolute path")
    if "\0" in url.database:
        raise InputError(where, "the path has a null character", RIGHT)
    if url.database == ":memory:" or "uri" in url.query:
        return
    path = Path(url.database)
    try:
        if path.is_dir():
            raise InputError(where, "is a directory", f"give a file, such as sqlite:///{path / 'experience.db'}")
        if path.exists() and not path.is_file():
            raise InputError(where, "not a regular file", RIGHT)
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(where, f"cannot create its folder: {error.strerror}", RIGHT) from None


def _create(url: URL, timeout_s: float, where: str) -> Engine:
    try:
        if url.get_backend_name() != "sqlite":
            return create_engine(url, pool_pre_ping=True)
        engine = create_engine(url, connect_args={"timeout": timeout_s})
    except ImportError:
        raise InputError(
            where, f"the driver of {url.drivername} is not installed", "pip install 'psycopg[binary]'"
        ) from None
    except (ArgumentError, TypeError) as error:
        raise InputError(where, str(error).splitlines()[0], RIGHT) from None
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _try_connection(engine: Engine, where: str) -> None:
    """Options of the URL are checked by the driver, on the first connection."""
    try:
        engine.connect().close()
    except ProgrammingError as error:
        raise _input_error(where, error.orig) from None


def _on_connect(connection: Any, _record: Any) -> None:
    """SQLite: we begin transactions ourselves; bytes that are not UTF-8 reach the checks instead of failing a query."""
    connection.isolation_level = None
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.execute("PRAGMA foreign_keys=ON")


def _on_begin(connection: Connection) -> None:
    """SQLite: a writer takes the lock first, where it can wait; a reader that turned writer would fail at once."""
    write = connection.get_execution_options().get(WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _use_wal(engine: Engine, timeout_s: float) -> None:
    """Readers do not wait for a writer. The change of mode does not wait by itself for other processes; we do."""
    deadline = time.monotonic() + timeout_s
    raw = engine.raw_connection()
    try:
        while raw.driver_connection is not None:
            try:
                raw.driver_connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if not error.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)
    finally:
        raw.close()


def _checked_revision(engine: Engine, where: str) -> str | None:
    """The stored revision, None for an empty database; InputError for a newer schema or a foreign database."""
    with reading(engine) as connection:
        revision = _revision(connection)
        tables = inspect(connection).get_table_names() if revision is None else []
    others = [name for name in tables if name != _VERSION.name]
    if others:
        raise InputError(
            where, f"a database of something else: it has {', '.join(sorted(others)[:3])}", "give a new path"
        )
    if revision is not None and revision not in REVISIONS:
        raise InputError(
            where, f"its schema {revision!r} is newer than this version of rdutune, which knows up to {HEAD}",
            "upgrade rdutune, or give another store; nothing was changed",
        )  # fmt: skip
    return revision


def _check_writable(engine: Engine) -> None:
    """Find out now, not after an hour of tuning, that nothing can be written; leaves the database as it was."""
    with engine.connect() as connection:
        connection.execution_options(**{WRITE: True}).execute(update(_VERSION).values(version_num=HEAD))
        connection.rollback()


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSION.name):
        return None
    value = connection.execute(select(_VERSION.c.version_num)).scalars().first()
    return None if value is None else str(value)


def _migrate(engine: Engine) -> None:
    """Upgrade to head in one transaction. Another process may do so at the same time: then its result is ours."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    try:
        with writing(engine) as connection:
            if _revision(connection) != HEAD:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
    except DatabaseError:
        with reading(engine) as connection:
            if _revision(connection) != HEAD:
                raise
