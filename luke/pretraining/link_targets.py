"""Title -> entity id, redirects resolved, in one memory-mapped table that all workers share.

The redirects of the English Wikipedia alone are some ten million titles; a dict of them in each worker would take gigabytes.
The table holds 128-bit hashes in order, 20 bytes a title, so that equal hashes of unequal titles need not be thought of.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from luke.artifacts import replace_file

_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("entity_id", "<i4")])
_CACHED_TITLES = 1 << 18


def write_link_targets(path: Path, entity_ids: dict[str, int], redirects_file: Path) -> None:
    """Writes the table: each title of ``entity_ids``, and each redirect that leads to one.

    Args:
        path: The ``.npy`` file to write.
        entity_ids: Title -> entity id.
        redirects_file: Parquet with ``source`` and ``target``, chains resolved.
    """
    import duckdb

    titles = pa.table({"title": pa.array(list(entity_ids), pa.string()), "id": pa.array(entity_ids.values(), pa.int32())})
    with duckdb.connect() as database:
        database.register("titles", titles)
        # A redirect wins over an entity of its own name, as it does where links are counted.
        found = database.execute(
            """
            SELECT coalesce(source, title) AS title, id FROM titles JOIN read_parquet(?) ON title = target
            UNION ALL
            SELECT title, id FROM titles ANTI JOIN read_parquet(?) ON title = source
            """,
            [str(redirects_file), str(redirects_file)],
        )
        parts = []
        while rows := found.fetchmany(1 << 16):
            parts.append(np.array([(*_hash(title), entity_id) for title, entity_id in rows], _ROW))
    table = np.concatenate([np.zeros(0, _ROW), *parts])
    table.sort(order=("high", "low"))
    with replace_file(path) as stream:
        np.save(stream, table)


def _hash(title: str) -> tuple[int, int]:
    digest = hashlib.blake2b(title.encode(errors="surrogatepass"), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


class LinkTargets:
    """The table that `write_link_targets` wrote.

    Args:
        path: Its file.
        default: What `ids` gives titles outside the table.
    """

    def __init__(self, path: Path, default: int) -> None:
        self._table: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        self._high = np.ascontiguousarray(self._table["high"])
        self._default = default
        self._cache = _Lookup(self)

    def ids(self, titles: Sequence[str]) -> npt.NDArray[np.int64]:
        """Entity ids (N,) of N link titles."""
        if len(self._cache) > _CACHED_TITLES:
            self._cache = _Lookup(self)
        return np.fromiter(map(self._cache.__getitem__, titles), np.int64, len(titles))

    def page_ids(self, titles: Sequence[str]) -> npt.NDArray[np.int64]:
        """Entity ids (N,) of N pages; -1 for pages that are no entities."""
        return np.array([self.find(title, -1) for title in titles], np.int64)

    def find(self, title: str, default: int) -> int:
        """The entity id of one title."""
        high, low = _hash(title)
        row = int(np.searchsorted(self._high, np.uint64(high)))
        while row < len(self._high) and int(self._high[row]) == high:
            if int(self._table[row]["low"]) == low:
                return int(self._table[row]["entity_id"])
            row += 1
        return default


class _Lookup(dict[str, int]):
    """Link titles looked up so far."""

    def __init__(self, targets: LinkTargets) -> None:
        super().__init__()
        self._targets = targets

    def __missing__(self, title: str) -> int:
        entity_id = self[title] = self._targets.find(title, self._targets._default)
        return entity_id
