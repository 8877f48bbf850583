"""Pools: what they tell, what they refuse, how they end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

import perdure
import pytest


def test_version_is_the_librarys() -> None:
    assert perdure.__version__.count(".") == 2


def test_tells_what_it_has(pool: perdure.Pool, path: Path) -> None:
    pool.create_index("words", "plush", str, int)
    pool.create_store("records", ordered=True)
    assert list(pool) == ["words", "records"]
    assert "words" in pool and "none" not in pool
    words, records = pool.structures()
    assert words == perdure.StructureInfo("words", "plush", bytes, int)
    assert records.structure == "rstore+ordered"
    info = pool.info()
    assert info.capacity_bytes == 128 << 20 and not info.read_only and len(info.uuid) == 32
    assert info.durability in ("process", "power") and info.domain in ("page", "line", "byte")
    assert pool.path == str(path)
    pool.sync()


def test_catalog() -> None:
    by_name = {entry.name: entry for entry in perdure.catalog()}
    assert by_name["fptree"].ordered and not by_name["plush"].ordered
    assert (bytes, int) in by_name["plush"].kinds
    assert by_name["rstore"].kinds == {(bytes, bytes)}


def test_errors_have_classes_and_codes(pool: perdure.Pool, path: Path, tmp_path: Path) -> None:
    with pytest.raises(perdure.ExistsError) as info:
        perdure.Pool.create(path)
    assert info.value.code is perdure.ErrorCode.EXISTS and str(path) in str(info.value)
    assert isinstance(info.value, perdure.Error)
    with pytest.raises(perdure.LockedError):
        perdure.Pool.open(path)
    with pytest.raises(perdure.NotFoundError):
        perdure.Pool.open(tmp_path / "none")
    with pytest.raises(perdure.NoSuchNameError):
        pool.open_index("none")
    pool.create_index("words", "plush", int, int).close()
    with pytest.raises(perdure.NameExistsError):
        pool.create_index("words", "plush", int, int)
    with pytest.raises(perdure.InvalidArgumentError):
        pool.create_index("others", "no such structure")
    with pytest.raises(ValueError):
        pool.create_index("others", "plush", bytes, bytes, no_such_option=1)
    with pytest.raises(TypeError):
        pool.open_index("words", str, int)
    with pytest.raises(TypeError):
        pool.create_index("floats", "plush", float, int)  # type: ignore[type-var]
    with pytest.raises(perdure.WrongTypeError):
        pool.create_index("words of a store", "rstore", int, int)
    assert list(pool) == ["words"]
    (tmp_path / "text").write_text("no pool at all" * 1000)
    with pytest.raises(perdure.Error):
        perdure.Pool.open(tmp_path / "text")
    assert {one.code for one in perdure.Error.__subclasses__()} == set(perdure.ErrorCode)


def test_drops_and_renames(pool: perdure.Pool) -> None:
    words = pool.create_index("words", "fptree", str, str)
    words.update({str(i): "x" * 200 for i in range(2000)})
    for call in (lambda: pool.drop("words"), lambda: pool.rename("words", "w")):
        with pytest.raises(perdure.InUseError):
            call()
    words.close()
    pool.rename("words", "w")
    assert list(pool) == ["w"] and len(pool.open_index("w")) == 2000
    pool.create_store("taken")
    with pytest.raises(perdure.NoSuchNameError):
        pool.rename("words", "x")
    with pytest.raises(perdure.NoSuchNameError):
        pool.drop("words")
    pool.create_index("other").close()
    with pytest.raises(perdure.NameExistsError):
        pool.rename("other", "w")
    before = pool.info().allocated_bytes
    assert pool.drop("other") > 0
    assert pool.info().allocated_bytes < before and "other" not in pool
    with pytest.raises(ValueError):
        pool.drop("a\0b")


def test_shrinks(pool: perdure.Pool, path: Path) -> None:
    kept = pool.create_index("kept", "fptree", int, int)
    kept[1] = 2
    words = pool.create_index("words", "fptree", str, str)
    words.update({str(i): "x" * 500 for i in range(40_000)})
    words.close()
    pool.drop("words")
    with pytest.raises(perdure.InUseError):
        pool.shrink()
    kept.close()
    before = path.stat().st_size
    shrunk = pool.shrink()
    assert shrunk > 10 << 20 and path.stat().st_size == before - shrunk
    assert pool.open_index("kept")[1] == 2


def test_raises_the_capacity(path: Path) -> None:
    with perdure.Pool.create(path, capacity=4 << 20) as pool:
        words = pool.create_index("words", "fptree", str, str)
        with pytest.raises(perdure.PoolFullError):
            for i in range(100_000):
                words[str(i)] = "x" * 500
        held = len(words)
    with pytest.raises(perdure.InvalidArgumentError):
        perdure.Pool.open(path, read_only=True, capacity_at_least=64 << 20)
    with perdure.Pool.open(path, capacity_at_least=64 << 20) as pool:
        assert pool.info().capacity_bytes == 64 << 20
        words = pool.open_index("words", str, str)
        for i in range(held, 2 * held):
            words[str(i)] = "x" * 500
    with perdure.Pool.open(path) as pool:
        assert pool.info().capacity_bytes == 64 << 20
        assert len(pool.open_index("words")) == 2 * held
        assert pool.check() == []


def test_backs_up_what_another_process_writes(path: Path, tmp_path: Path) -> None:
    writer = run(
        """
        import sys, perdure
        with perdure.Pool.create(sys.argv[1], capacity=16 << 20, serve_backups=True) as pool:
            counts = pool.create_index("counts", "fptree", int, int)
            for i in range(1000):
                counts[i] = i
            print("ready", flush=True)
            i = 0
            while True:
                counts[i % 1000] = i
                i += 1
        """,
        path,
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"ready\n"
    with pytest.raises(perdure.LockedError):
        perdure.Pool.open(path, read_only=True)
    perdure.Pool.backup_live(path, tmp_path / "full")
    perdure.Pool.backup_live(path, tmp_path / "next", tmp_path / "full")
    assert writer.poll() is None
    writer.kill()
    writer.wait()
    for backup in ("full", "next"):
        with perdure.Pool.open(tmp_path / backup, read_only=True) as pool:
            counts = pool.open_index("counts")
            # Each write came after the one before.
            newest = max(counts.values())
            assert sorted(counts.values()) == list(range(max(newest - 999, 0), newest + 1))
    with perdure.Pool.open(path), pytest.raises(perdure.LockedError):
        perdure.Pool.backup_live(path, tmp_path / "full")


def test_backs_up_while_others_write_and_restores(
    pool: perdure.Pool, path: Path, tmp_path: Path
) -> None:
    counts = pool.create_index("counts", "fptree", int, int)
    counts.update({i: i for i in range(20_000)})
    stop = threading.Event()
    written = [0]

    def write() -> None:
        while not stop.is_set() and written[0] < 5000:  # few beside those that the first backup has
            counts[100_000 + written[0]] = written[0]
            written[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        acknowledged = written[0]
        pool.backup(tmp_path / "full")
        begun = written[0]
    finally:
        stop.set()
        thread.join()
    counts[7] = 8
    pool.backup(tmp_path / "next", base=tmp_path / "full")
    assert (tmp_path / "next").stat().st_size < (tmp_path / "full").stat().st_size
    with pytest.raises(perdure.ExistsError):
        pool.backup(path)  # which is no backup
    with pytest.raises(perdure.ExistsError):
        perdure.Pool.restore(tmp_path / "full", path)
    perdure.Pool.restore(tmp_path / "full", tmp_path / "a.pool")
    with perdure.Pool.open(tmp_path / "a.pool") as copy:
        found = dict(copy.open_index("counts", int, int))
        assert [found.pop(i) for i in range(20_000)] == list(range(20_000))
        assert acknowledged <= len(found) <= begun + 1
        assert found == {100_000 + i: i for i in range(len(found))}  # a whole beginning
    perdure.Pool.restore(str(tmp_path / "next"), tmp_path / "b.pool")
    with perdure.Pool.open(tmp_path / "b.pool") as copy:
        assert dict(copy.open_index("counts", int, int)) == dict(counts)
    changed = bytearray((tmp_path / "full").read_bytes())
    changed[len(changed) // 2] ^= 1
    (tmp_path / "full").write_bytes(changed)
    with pytest.raises(perdure.CorruptError):
        perdure.Pool.restore(tmp_path / "full", tmp_path / "c.pool")
    assert not (tmp_path / "c.pool").exists()


def test_a_structure_is_open_once(pool: perdure.Pool) -> None:
    index = pool.create_index("words", "plush", int, int)
    with pytest.raises(perdure.InUseError):
        pool.open_index("words")
    index.close()
    index.close()
    again = pool.open_index("words")
    assert index != again and index == index and len({index, again}) == 2


def test_what_is_closed_says_so(path: Path) -> None:
    pool = perdure.Pool.create(path, capacity=64 << 20)
    index = pool.create_index("words", "fptree", int, int)
    store = pool.create_store("store")
    index[1] = 2
    walk = iter(index)
    pool.close()
    pool.close()
    assert pool.closed and index.closed and store.closed
    for call in (
        lambda: index[1], lambda: len(index), lambda: next(walk), lambda: store.get(b"a"),
        lambda: store.put(b"a", b"b"), lambda: pool.structures(), lambda: pool.create_store("s"),
        lambda: index.update({1: 2}), lambda: store.update({b"a": b"b"}),
    ):  # fmt: skip
        with pytest.raises(perdure.ClosedError):
            call()
    assert "closed" in repr(pool) and "closed" in repr(index) and "closed" in repr(store)


def test_closing_waits_for_calls_of_other_threads(path: Path) -> None:
    pool = perdure.Pool.create(path, capacity=64 << 20)
    index = pool.create_index("words", "plush", int, int)
    started = threading.Barrier(4)
    done: list[int] = []

    def work(thread: int) -> None:
        started.wait()
        count = 0
        try:
            while True:
                index[4 * count + thread] = count
                count += 1
        except perdure.ClosedError:
            done.append(count)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    pool.close()
    for thread in threads:
        thread.join()
    with perdure.Pool.open(path) as again:
        assert again.info().clean
        assert len(again.open_index("words")) == sum(done)


def test_what_nobody_holds_is_closed(path: Path) -> None:
    pool = perdure.Pool.create(path, capacity=64 << 20)
    index = pool.create_index("words", "plush", int, int)
    index[1] = 2
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert index[1] == 2  # it keeps its pool
    del index
    gc.collect()
    assert gone() is None
    with perdure.Pool.open(path) as pool:
        assert pool.info().clean


def test_read_only(path: Path) -> None:
    with perdure.Pool.create(path, capacity=64 << 20) as pool:
        pool.create_index("words", "plush", int, int)[1] = 2
    with perdure.Pool.open(path, read_only=True, verify=True) as pool:
        words = pool.open_index("words")
        assert words[1] == 2 and pool.info().read_only
        with pytest.raises(perdure.ReadOnlyError):
            words[1] = 3


def test_is_looked_at_beside_a_writer(pool: perdure.Pool, path: Path, tmp_path: Path) -> None:
    index = pool.create_index("words", "fptree", int, int)
    index[1] = 2
    ask = (
        "import perdure, sys; found = perdure.Pool.inspect(sys.argv[1]); "
        "print(found.open_to_write, [one.name for one in found.structures], found.info.uuid)"
    )
    told = subprocess.run(
        [sys.executable, "-c", ask, str(path)], check=True, capture_output=True, text=True
    )
    assert told.stdout.strip() == f"True ['words'] {pool.info().uuid}"
    with pytest.raises(perdure.LockedError):
        perdure.Pool.open(path, read_only=True)
    # A backup is read where it lies.
    backup = tmp_path / "backup"
    pool.backup(backup)
    index[1] = 3
    with perdure.Pool.open(backup, read_only=True) as copy:
        assert copy.open_index("words", int, int)[1] == 2
    index.close()
    pool.close()
    assert not perdure.Pool.inspect(path).open_to_write
    with pytest.raises(perdure.NotFoundError):
        perdure.Pool.inspect(tmp_path / "none")


def test_a_full_pool_refuses_and_keeps_what_it_has() -> None:
    with perdure.Pool.anonymous(capacity=4 << 20) as pool:
        index = pool.create_index("words", "cceh", int, bytes)
        count = 0
        with pytest.raises(perdure.PoolFullError):
            while True:
                index[count] = b"%d" % count * 100
                count += 1
        assert count > 100
        assert all(index[i] == b"%d" % i * 100 for i in range(count))
        assert count not in index
        assert pool.check() == [] and index.check() == []


def run(program: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        stdout=subprocess.PIPE,
    )


def test_a_killed_counter_keeps_what_was_acknowledged(path: Path) -> None:
    program = """
        import sys, perdure
        pool = perdure.Pool.create(sys.argv[1], capacity=64 << 20)
        counts = pool.create_index("counts", "fptree", str, int)
        while True:
            print(counts.increment("word"), flush=True)
    """
    with run(program, path) as child:
        assert child.stdout is not None
        told = [int(child.stdout.readline()) for _ in range(500)]
        child.send_signal(signal.SIGKILL)
        told += [int(line) for line in child.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
    assert told == list(range(1, len(told) + 1))
    with perdure.Pool.open(path) as pool:
        assert not pool.info().clean
        assert pool.check() == []
        counts = pool.open_index("counts", str, int)
        assert counts["word"] - len(told) in (0, 1)
        assert counts.check() == []


def test_the_interpreter_closes_what_it_leaves_open(path: Path) -> None:
    program = """
        import sys, perdure
        pool = perdure.Pool.create(sys.argv[1], capacity=64 << 20)
        pool.create_index("words", "plush", str, int)["a"] = 1
    """
    with run(program, path) as child:
        pass
    assert child.returncode == 0
    with perdure.Pool.open(path) as pool:
        assert pool.info().clean and pool.open_index("words")[b"a"] == 1


def test_paths_of_any_kind(tmp_path: Path) -> None:
    for name in ("words.pool", "wörter.pool", os.fsdecode(b"\xff.pool")):
        with perdure.Pool.create(tmp_path / name, capacity=16 << 20):
            pass
        with perdure.Pool.open(str(tmp_path / name)) as pool:
            assert list(pool) == []
    with pytest.raises(ValueError):
        perdure.Pool.create(tmp_path / "a\0b")
    with perdure.Pool.anonymous(16 << 20) as pool:
        with pytest.raises(ValueError):
            pool.create_index("a\0b")
        with pytest.raises(perdure.Error):
            pool.create_index("")
    for wrong in ({"durability": "none"}, {"domain": "word"}):
        with pytest.raises(ValueError):
            perdure.Pool.create(tmp_path / "no", **wrong)  # type: ignore[arg-type]


def test_events(path: Path) -> None:
    events: list[perdure.PoolEvent] = []
    with perdure.Pool.create(
        path, capacity=16 << 20, growth=1 << 20, on_event=events.append, nearly_full_percent=50
    ) as pool:
        assert [one.kind for one in events] == ["opened"]
        assert events[0].path == str(path)
        words = pool.create_index("words", "cceh", int, int)
        with pytest.raises(perdure.PoolFullError):
            for i in range(10**7):
                words[i] = i
    kinds = [one.kind for one in events]
    assert kinds.count("grown") > 1
    assert kinds.count("nearly-full") == 1
    assert all(one.used_bytes <= one.size_bytes <= one.capacity_bytes for one in events)
    events.clear()
    with perdure.Pool.open(path, on_event=events.append, nearly_full_percent=0):
        assert [one.kind for one in events] == ["opened"]
    with pytest.raises(ValueError):
        perdure.Pool.open(path, on_event=events.append, nearly_full_percent=101)


def test_nothing_is_closed_in_the_midst_of_an_event(path: Path) -> None:
    """Neither by the garbage collector, which waits for the end of it, nor on purpose: it would wait for itself."""
    others: list[perdure.Index[int, int]] = []
    told = 0

    def on_event(event: perdure.PoolEvent) -> None:
        nonlocal told
        gc.collect()
        for other in others:
            with pytest.raises(perdure.InUseError, match="on_event"):
                other.close()
            told += 1

    with perdure.Pool.create(path, capacity=16 << 20, growth=1 << 20, on_event=on_event) as pool:
        others.append(pool.create_index("other", "fptree", int, int))
        gc.disable()
        try:
            for structure in ("plush", "fptree", "sheaf"):
                circle: list[Any] = [pool.create_index(structure, structure, int, int)]
                circle.append(circle)
                circle[0][1] = 2
                del circle
            words = pool.create_index("words", "cceh", int, int)
            words.update((i, i) for i in range(200_000))
        finally:
            gc.enable()
        assert told > 1
        assert others[0].get(1) is None
        others.clear()
        assert pool.open_index("plush", int, int)[1] == 2
