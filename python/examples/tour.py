# A tour in cells: run it as a program (`python tour.py [FOLDER]`), or open it as a notebook (Jupyter with jupytext, Visual
# Studio Code, Spyder): each `# %%` begins a cell.

# %% [markdown]
# # Perdure, a tour in cells
# Mappings that are durable when the call returns. The pool is a file; on persistent memory or tmpfs it is the same.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import perdure

folder = Path(sys.argv[1] if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir() else tempfile.mkdtemp())
pool = perdure.Pool.create(folder / "tour.pool", capacity=256 << 20)
print(pool.info().medium, pool.info().domain, pool.info().durability)

# %% [markdown]
# Which structures there are, and which keep their keys in order:

# %%
for entry in perdure.catalog():
    print(f"{entry.name:18} {entry.family:12} {'ordered' if entry.ordered else ''}")

# %% [markdown]
# ## A mapping in the order of its keys
# `str`, `bytes` and `int` are keys and values.

# %%
words = pool.create_index("words", "p-hot+vl", str, str)
words["perdure"] = "to last, to go on existing"  # durable now
words.update({"pool": "a file that holds structures", "persist": "to flush, and to fence"})
for word, meaning in words.range(prefix="pe"):
    print(word, "-", meaning)
print(list(reversed(words)))

# %% [markdown]
# ## Counting, exactly
# Read and written in one step, however many threads do so.

# %%
counts = pool.create_index("counts", "fptree", str, int)
for word in "the quick brown fox jumps over the lazy dog".split():
    counts.increment(word)
print(counts["the"], counts.compare_exchange("the", 2, 20), counts["the"])

# %% [markdown]
# ## Several structures, all or nothing

# %%
with pool.transaction() as t:
    t[counts].increment("the", -5)
    t[words]["the"] = "an article"
print(counts["the"], words["the"])

# %% [markdown]
# ## Values where they lie
# A memoryview of the bytes in the pool, for the time of the call.

# %%
blobs = pool.create_index("blobs", "plush", int, bytes)
blobs[1] = bytes(range(256)) * 4096
print(blobs.visit(1, len), blobs.visit(1, lambda view: bytes(view[:4])))

# %% [markdown]
# ## NumPy, in and out

# %%
try:
    import numpy

    squares = pool.create_index("squares", "sheaf", int, int)
    keys = numpy.arange(100_000, dtype=numpy.uint64)
    squares.upsert_array(keys, keys * keys)
    values, found = squares.lookup_array(keys[:5])
    print(values, found.all(), squares.scan_array(10, 3))
except ImportError:
    print("without NumPy")

# %% [markdown]
# ## A backup of one instant

# %%
pool.backup(folder / "monday.backup")
words["tuesday"] = "the day after"
pool.backup(folder / "tuesday.backup", base=folder / "monday.backup")  # what has changed
perdure.Pool.restore(folder / "tuesday.backup", folder / "copy.pool")
with perdure.Pool.open(folder / "copy.pool", read_only=True) as copy:
    print("tuesday" in copy.open_index("words", str, str))
pool.close()

# %% [markdown]
# ## A crash
# A process that is killed in the midst of writing has lost nothing that it was told to be stored.

# %%
writer = f"""
import perdure
pool = perdure.Pool.open({str(folder / "tour.pool")!r})
counts = pool.open_index("counts", str, int)
while True:
    print(counts.increment("crash"), flush=True)
"""
child = subprocess.Popen([sys.executable, "-c", writer], stdout=subprocess.PIPE, text=True)
assert child.stdout is not None
acknowledged = 0
while acknowledged < 1000:
    acknowledged = int(child.stdout.readline())
child.kill()
rest = child.communicate()[0].split("\n")[:-1]
acknowledged = int(rest[-1]) if rest else acknowledged
with perdure.Pool.open(folder / "tour.pool") as pool:
    there = pool.open_index("counts", str, int)["crash"]
    print(f"acknowledged {acknowledged}, there are {there}")
    assert there in (acknowledged, acknowledged + 1)
