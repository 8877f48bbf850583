"""Transactions over several indexes."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import perdure
import pytest

Accounts = tuple["perdure.Index[str, int]", "perdure.Index[int, str]"]


@pytest.fixture
def accounts(pool: perdure.Pool) -> Accounts:
    balances = pool.create_index("balances", "fast-fair", str, int)
    balances.update({"alice": 100, "bob": 0})
    return balances, pool.create_index("audit", "plush", int, str)


def test_a_pool_is_not_closed_by_its_own_transaction(pool: perdure.Pool) -> None:
    words = pool.create_index("words", "fptree", int, int)

    def work(transaction: perdure.Transaction) -> None:
        transaction[words][1] = 2
        pool.close()

    with pytest.raises(perdure.Error):
        pool.transact(work)
    assert not pool.closed


def test_all_of_it_or_nothing(pool: perdure.Pool, accounts: Accounts) -> None:
    balances, audit = accounts
    with pool.transaction() as t:
        assert t[balances].increment("alice", -10) == 90
        assert t[balances].increment("bob", 10) == 10
        t[audit][1] = "10 from alice to bob"
        assert t[audit][1] == "10 from alice to bob" and 1 in t[audit]
        assert 1 not in audit and balances["alice"] == 100  # nobody else sees it yet
    assert t.closed
    assert dict(balances) == {"alice": 90, "bob": 10} and dict(audit) == {1: "10 from alice to bob"}
    with pytest.raises(ZeroDivisionError):
        with pool.transaction() as t:
            t[balances]["alice"] = 0
            del t[audit][1]
            assert 1 not in t[audit]
            raise ZeroDivisionError
    with pool.transaction() as t:
        t[balances]["alice"] = 0
        t.abort()
        t.abort()
    assert dict(balances) == {"alice": 90, "bob": 10} and dict(audit) == {1: "10 from alice to bob"}


def test_has_the_calls_of_an_index(pool: perdure.Pool, accounts: Accounts) -> None:
    balances, audit = accounts
    with pool.transaction() as t:
        part = t[balances]
        assert part.insert("carol", 5) and not part.insert("carol", 6)
        assert part.replace("carol", 7) and not part.replace("dave", 1)
        assert part.get("carol") == 7 and part.get("dave") is None and part.get("dave", 3) == 3
        assert part.discard("bob") and not part.discard("bob")
        with pytest.raises(KeyError):
            part["dave"]
        with pytest.raises(KeyError):
            del part["dave"]
        with pytest.raises(OverflowError):
            part["dave"] = -1
        with pytest.raises(perdure.WrongTypeError):
            t[audit].increment(1)
    assert dict(balances) == {"alice": 100, "carol": 7} and dict(audit) == {}


def test_a_conflict_changes_nothing(pool: perdure.Pool, accounts: Accounts) -> None:
    balances, audit = accounts
    with pytest.raises(perdure.ConflictError) as info:
        with pool.transaction() as t:
            t[balances].increment("alice", -10)
            t[audit][1] = "never"
            balances["alice"] = 50
    assert info.value.code is perdure.ErrorCode.CONFLICT and "balances" in str(info.value)
    assert t.closed and balances["alice"] == 50 and 1 not in audit
    # A write that was not read is none.
    with pool.transaction() as t:
        t[balances]["alice"] = 1
        balances["alice"] = 2
    assert balances["alice"] == 1


def test_transact_tries_again(pool: perdure.Pool, accounts: Accounts) -> None:
    balances, audit = accounts
    attempts = []

    def work(t: perdure.Transaction) -> int:
        attempts.append(t)
        left = t[balances].increment("alice", -1)
        t[audit][len(attempts)] = "attempt"
        if len(attempts) <= 12:  # also those that others wait for
            balances.increment("alice", 10)
        return left

    assert pool.transact(work) == 219
    assert len(attempts) == 13 and balances["alice"] == 219 and dict(audit) == {13: "attempt"}
    with pytest.raises(perdure.ClosedError):
        attempts[0][balances]["alice"]

    def fail(t: perdure.Transaction) -> None:
        t[balances]["alice"] = 0
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pool.transact(fail)
    for end in (perdure.Transaction.commit, perdure.Transaction.abort):
        with pytest.raises(perdure.InvalidArgumentError):
            pool.transact(end)
    assert balances["alice"] == 219


def test_threads_lose_nothing(pool: perdure.Pool, accounts: Accounts) -> None:
    balances, audit = accounts
    balances["alice"] = balances["bob"] = 10_000

    def work(thread: int) -> None:
        names = ("alice", "bob") if thread % 2 else ("bob", "alice")
        for i in range(150):

            def transfer(t: perdure.Transaction) -> None:
                t[balances].increment(names[0], -1)
                t[balances].increment(names[1], 1)
                t[audit][1000 * thread + i] = names[0]

            pool.transact(transfer)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for one in threads:
        one.start()
    while any(one.is_alive() for one in threads):
        with pool.transaction() as t:  # commits, or conflicts: a sum is of one moment
            total = t[balances]["alice"] + t[balances]["bob"]
            t.abort()
        assert 19_000 < total < 21_000

        def both(t: perdure.Transaction) -> int:
            return t[balances]["alice"] + t[balances]["bob"]

        assert pool.transact(both) == 20_000
    assert len(audit) == 600 and balances["alice"] == balances["bob"] == 10_000


def test_what_is_closed_says_so(pool: perdure.Pool, accounts: Accounts) -> None:
    balances, audit = accounts
    other = pool.create_index("other", "plush", int, int)
    t = pool.transaction()
    t[other][1] = 1
    t[audit][1] = "x"
    other.close()
    for call in (lambda: t[other][1], lambda: t[audit][1], t.commit):
        with pytest.raises(perdure.ClosedError):
            call()
    assert t.closed and 1 not in audit
    t = pool.transaction()
    t[audit][1] = "x"
    pool.close()
    with pytest.raises(perdure.ClosedError):
        t.commit()
    with pytest.raises(perdure.ClosedError):
        pool.transaction()
    with pytest.raises(perdure.ClosedError):
        pool.transact(lambda t: None)


def test_what_takes_no_part_is_refused(pool: perdure.Pool, accounts: Accounts) -> None:
    balances, _ = accounts
    store = pool.create_store("store")
    with perdure.Pool.anonymous(16 << 20) as elsewhere:
        foreign = elsewhere.create_index("foreign", "plush", int, int)
        with pool.transaction() as t:
            with pytest.raises(TypeError):
                t[store]  # type: ignore[index]
            with pytest.raises(perdure.InvalidArgumentError):
                t[foreign][1] = 1
            t[balances]["alice"] = 1
    store.close()
    records = pool.open_index("store", bytes, bytes)
    with pool.transaction() as t:
        t[records][b"a"] = b"1"
        t[balances]["alice"] = 2
    assert records[b"a"] == b"1" and balances["alice"] == 2
    indexes = [pool.create_index(f"i{i}", "cceh", int, int, initial_depth=1) for i in range(65)]
    with pytest.raises(perdure.TooLargeError):
        with pool.transaction() as t:
            for index in indexes:
                t[index][1] = 1
    assert 1 not in indexes[0]


def test_a_killed_transfer_keeps_the_sum(path: Path) -> None:
    program = """
        import sys, perdure
        pool = perdure.Pool.create(sys.argv[1], capacity=64 << 20)
        left = pool.create_index("left", "fptree", int, int)
        right = pool.create_index("right", "plush", int, int)
        left[1] = 1 << 40
        right[1] = 0
        print("begun", flush=True)
        while True:
            with pool.transaction() as t:
                t[left].increment(1, -3)
                t[right].increment(1, 3)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(path)], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.5)
        child.send_signal(signal.SIGKILL)
    with perdure.Pool.open(path) as pool:
        left, right = pool.open_index("left", int, int), pool.open_index("right", int, int)
        assert right[1] > 0 and left[1] + right[1] == 1 << 40
