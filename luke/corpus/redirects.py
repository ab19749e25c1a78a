"""The redirects of a page store's shards -> one file: chains followed to their end, cycles dropped."""

import errno
from pathlib import Path

from luke.corpus.page_store import REDIRECTS_FILE, count_redirects


def redirect_part(shard: int) -> str:
    """The name of a shard's redirects, which lie beside its pages until they are joined."""
    return f"redirects-{shard:05d}.part"


def resolve_redirects(work: Path) -> int:
    """Joins the shards' redirects to one file. Returns their number."""
    path = work / REDIRECTS_FILE
    parts = sorted(work.glob(redirect_part(0).replace("00000", "*")))
    if not path.exists():  # else a run was killed between here and the end, when some parts may be gone already
        temporary = path.with_name(f".{path.name}.tmp")
        _write_resolved(parts, temporary)
        temporary.replace(path)
    for part in parts:
        part.unlink()
    return count_redirects(path)


def _write_resolved(parts: list[Path], output: Path) -> None:
    import duckdb

    try:
        with duckdb.connect() as database:
            database.execute("SET memory_limit = '2GB'")
            database.execute("SET temp_directory = ?", [str(output.with_name(".duckdb.tmp"))])
            database.execute(
                "CREATE TABLE resolved AS SELECT source, min(target) AS target FROM read_parquet(?) GROUP BY source",
                [[str(part) for part in parts]],
            )
            unfinished = None
            while True:  # each round doubles how far a redirect reaches; what goes round in a circle never ends
                count = database.execute(
                    "SELECT count(*) FROM resolved WHERE target IN (SELECT source FROM resolved)"
                ).fetchone()
                if count is None or count[0] in (0, unfinished):
                    break
                unfinished = count[0]
                database.execute(
                    "CREATE OR REPLACE TABLE resolved AS SELECT hop.source, coalesce(next.target, hop.target) AS target "
                    "FROM resolved AS hop LEFT JOIN resolved AS next ON hop.target = next.source"
                )
            database.execute("DELETE FROM resolved WHERE target IN (SELECT source FROM resolved) OR target = ''")
            database.execute("SET threads = 1")  # the file's row groups do not depend on the machine
            database.execute(f"COPY (FROM resolved ORDER BY source) TO '{_sql(output)}' (FORMAT parquet, COMPRESSION zstd)")
    except duckdb.IOException as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, "No space left on device", str(output)) from None
        raise


def _sql(path: Path) -> str:
    return str(path).replace("'", "''")
