"""Counts the words of files, one thread for each, durably: python count_words.py POOL FILE...

Every count is durable when increment() returns, and exact however many threads count. Run it again, and it adds to
what is there; kill it, and what was counted stays counted."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import perdure


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    path, *files = sys.argv[1:]
    if Path(path).exists():
        pool = perdure.Pool.open(path)
    else:
        pool = perdure.Pool.create(path, capacity=256 << 20)
    with pool:
        if "counts" not in pool:
            pool.create_index("counts", "fptree", str, int).close()
        counts = pool.open_index("counts", str, int)

        def count(file: str) -> int:
            words = re.findall(r"\w+", Path(file).read_text(errors="replace").lower())
            for word in words:
                counts.increment(word)
            return len(words)

        with ThreadPoolExecutor() as threads:
            total = sum(threads.map(count, files))
        print(f"counted {total} words; {len(counts)} different ones are there. The most frequent:")
        for word, times in sorted(counts.items(), key=lambda one: -one[1])[:10]:
            print(f"{times:8} {word}")
        print("In the order of the alphabet, from 'p':")
        for word, times in counts.range("p", limit=5):
            print(f"{times:8} {word}")


if __name__ == "__main__":
    main()
