"""Objects that stand for blocks of memory do not cross processes, interpreters or copies: they say so."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import textwrap

import pytest

from looseleaf import BlockHasher, BlockPool, GroupSpec, KVCacheManager, LayerSpec


def new_manager(pool: BlockPool) -> KVCacheManager:
    groups = [GroupSpec([LayerSpec(kv_heads=1, head_size_k=8)], block_size=4)]
    return KVCacheManager(pool, groups, max_num_seqs=2, max_model_len=32, max_num_batched_tokens=32)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_pickling_and_copying_are_refused_with_a_sentence(duplicate):
    pool = BlockPool(8)
    blocks = pool.allocate(2)
    for thing in (pool, blocks, new_manager(pool)):
        with pytest.raises(
            TypeError, match=f"a {type(thing).__name__} cannot be pickled or copied: it stands"
        ):
            duplicate(thing)
    blocks.release()
    assert pool.num_free == 7


def test_keys_are_plain_data_and_can_be_copied():
    for hash_algo in ("sha256_cbor", "xxh3"):
        keys = BlockHasher(4, hash_algo=hash_algo).hash_blocks(range(12))
        assert pickle.loads(pickle.dumps(keys)) == copy.deepcopy(keys) == keys


IN_A_FORKED_CHILD = """
import os, sys
from looseleaf import BlockPool, GroupSpec, KVCacheManager, LayerSpec, errors

pool = BlockPool(8)
blocks = pool.allocate(2)
groups = [GroupSpec([LayerSpec(kv_heads=1, head_size_k=8)], block_size=4)]
manager = KVCacheManager(pool, groups, max_num_seqs=2, max_model_len=32, max_num_batched_tokens=32)
handle = manager.open([1, 2, 3])
child = os.fork()
if child == 0:
    uses = [
        lambda: pool.allocate(1), lambda: pool.try_allocate(1), lambda: pool.num_free, lambda: pool.stats(),
        lambda: pool.match_prefix([]), lambda: pool.release([1]), lambda: pool.check_invariants(),
        blocks.release, blocks.share, blocks.into_ids,
        lambda: manager.admit(handle), lambda: manager.num_open,
        lambda: KVCacheManager(pool, groups, max_num_seqs=2, max_model_len=32, max_num_batched_tokens=32),
    ]
    refused = 0
    for use in uses:
        try:
            use()
        except errors.UseAfterForkError as error:
            refused += "belongs to the process that was forked" in str(error)
    assert refused == len(uses), refused
    assert len(BlockPool(8).allocate(3)) == 3
    repr(pool), repr(blocks)
    del blocks
    os._exit(17)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
blocks.release()
manager.close(handle)
assert pool.num_free == 7
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_use_after_a_fork_is_refused_in_the_child_and_changes_nothing_in_the_parent():
    run(IN_A_FORKED_CHILD)


IN_A_SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ModuleNotFoundError:
    import _xxsubinterpreters as interpreters
import looseleaf._core

interpreter = interpreters.create()
code = '''
try:
    import looseleaf._core
except ImportError as error:
    assert "subinterpreter" in str(error), error
else:
    raise AssertionError("imported")
'''
failure = interpreters.run_string(interpreter, code)
assert failure is None, failure
"""


def test_a_subinterpreter_cannot_import_the_extension():
    run(IN_A_SUBINTERPRETER)


def run(program: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
