"""Block hashes from Python. The golden values are what vLLM 0.32.0's ``sha256_cbor`` gives (cbor2 6.3.0)."""

import hashlib

import numpy as np
import pytest

from looseleaf import (
    BlockHasher,
    BlockKeys,
    BlockPool,
    ExtraKey,
    GroupSpec,
    KVCacheManager,
    LayerSpec,
    errors,
)

FIRST = "58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111"
SECOND = "e1bc29393a2da9fd798f35ff04d215f846aee6df4b803ce3d43b57df56b58fb1"
SALTED = "0e172de9010f20a975885630390148d0769af6bbe75a732d3b66b62598433cae"


@pytest.mark.parametrize(
    "kind", [list, tuple, *(lambda ids, t=t: np.array(ids, t) for t in ("i4", "u4", "i8"))]
)
def test_hashes_equal_vllms_from_any_kind_of_token_ids(kind):
    keys = BlockHasher(4).hash_blocks(kind([1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert [key.hex() for key in (keys[0], keys[1])] == [FIRST, SECOND]
    assert len(keys) == 2


def test_a_chain_can_be_continued_and_a_salt_changes_it_from_the_first_block_on():
    hasher = BlockHasher(4)
    assert hasher.hash_blocks([5, 6, 7, 8], parent=bytes.fromhex(FIRST))[0].hex() == SECOND
    assert hasher.hash_blocks([1, 2, 3, 4], cache_salt="tenant-a")[0].hex() == SALTED
    assert hasher.hash_blocks([1, 2, 3, 4], cache_salt="")[0].hex() == FIRST


def test_packed_keys_and_bytes_find_the_same_blocks():
    pool, keys = BlockPool(8), BlockHasher(4).hash_blocks(list(range(12)))
    blocks = pool.allocate(3)
    for block, key in zip(blocks, [keys[0], keys[1], keys[-1]], strict=True):
        assert pool.publish(block, key) == "cached"
    assert pool.match_prefix(keys).ids == pool.match_prefix([keys[0], keys[1], keys[2]]).ids == blocks.ids


def test_128_bit_keys_fit_both_widths_and_256_bit_keys_only_theirs():
    narrow = BlockHasher(4, hash_algo="xxh3").hash_blocks([1, 2, 3, 4])
    wide = BlockHasher(4).hash_blocks([1, 2, 3, 4])
    assert (len(narrow[0]), len(wide[0])) == (16, 32)
    assert len(BlockPool(8, key_bits=256).match_prefix(narrow)) == 0
    with pytest.raises(errors.InvalidConfigError, match="16 bytes, found 32"):
        BlockPool(8, key_bits=128).match_prefix(wide)


def test_packed_keys_are_a_sequence_of_bytes():
    keys = BlockHasher(4).hash_blocks(list(range(20)))
    as_bytes = list(keys)
    assert as_bytes == [keys[i] for i in range(5)] == [keys[i] for i in range(-5, 0)]
    assert BlockKeys(as_bytes) == keys
    assert hash(BlockKeys(as_bytes)) == hash(keys)
    for part in (slice(1, 3), slice(None, None, -2), slice(7, None), slice(-2, None)):
        assert list(keys[part]) == as_bytes[part]
    assert keys[:2] != keys[:3]
    assert len(BlockKeys([])) == 0
    with pytest.raises(IndexError, match="index 5 is outside BlockKeys of 5"):
        keys[5]


@pytest.mark.parametrize(
    ("keys", "found"), [([b"short"], 5), ([bytes(32), bytes(16)], 16), ([bytes(16), b""], 0)]
)
def test_hashes_of_a_wrong_length_are_not_packed(keys, found):
    with pytest.raises(errors.InvalidConfigError, match=f"found {found}$"):
        BlockKeys(keys)


def test_extra_keys_equal_vllms():
    """An adapter's digest is vLLM's; one of a media item is the digest of the CBOR that vLLM's rule gives."""
    hasher = BlockHasher(4)
    lora = ExtraKey.lora("ad1", "/p/ad1")
    keys = hasher.hash_blocks([1, 2, 3, 4], extra_keys=[lora])
    assert keys[0].hex() == "34017ae803d9774bc037051698bcc89617264517b552878f0852c5117ade8f3b"
    # [none_hash, [5, 6, 7, 8], [["mm", "img", 2]]], the item beginning two tokens into the block
    none_hash = bytes.fromhex("9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0")
    cbor = (
        b"\x83\x58\x20" + none_hash + bytes.fromhex("8405060708" + "81" + "83" + "626d6d" + "63696d67" + "02")
    )
    keys = hasher.hash_blocks([5, 6, 7, 8], extra_keys=[ExtraKey.media("img", start=2, length=3)])
    assert keys[0] == hashlib.sha256(cbor).digest()


def test_extra_keys_keep_apart_what_they_tell_apart():
    hasher, tokens = BlockHasher(4), list(range(16))
    embeds = {"dtype": "bfloat16", "shape": [4, 8], "mask": bytes([1, 1, 0, 0]), "start": 4, "length": 4}
    first = {}
    for extra_keys in (
        [],
        [ExtraKey.lora("a", "")],
        [ExtraKey.lora("", "a")],
        [ExtraKey.media("a", 4, 4)],
        [ExtraKey.media("a", 5, 3)],
        [ExtraKey.embeds(bytes(32), **embeds)],
        [ExtraKey.embeds(bytes([1] * 32), **embeds)],
        [ExtraKey.embeds(bytes(32), **embeds | {"mask": bytes([0, 1, 1, 0])})],
    ):
        keys = hasher.hash_blocks(tokens, extra_keys=extra_keys)
        assert keys[1] not in first, (extra_keys, first[keys[1]])
        first[keys[1]] = extra_keys
    with pytest.raises(errors.InvalidConfigError, match="at least 1 token, found 0"):
        ExtraKey.media("a", 4, 0)


def test_a_manager_hashes_extra_keys_like_the_hasher():
    groups = [GroupSpec([LayerSpec(kv_heads=1, head_size_k=8)], block_size=4)]
    pool = BlockPool(16)
    manager = KVCacheManager(pool, groups, max_num_seqs=2, max_model_len=32, max_num_batched_tokens=32)
    tokens, extra_keys = list(range(9)), [ExtraKey.media("img", 2, 5), ExtraKey.lora("a", "b")]
    handle = manager.open(tokens, extra_keys=extra_keys, cache_salt="s")
    manager.admit(handle)
    manager.append(handle, 9)
    manager.commit(handle, 5)
    keys = BlockHasher(4).hash_blocks(tokens, extra_keys=extra_keys, cache_salt="s")
    assert [pool.key_of(block) for block in manager.block_ids(handle)[:2]] == list(keys)


def test_blake3_differs_by_key_and_demands_one():
    one, other = (BlockHasher(4, hash_algo="blake3", hash_key=bytes([n] * 32)) for n in (1, 2))
    assert one.hash_blocks([1, 2, 3, 4])[0] != other.hash_blocks([1, 2, 3, 4])[0]
    with pytest.raises(errors.InvalidConfigError, match="needs hash_key, 32 secret bytes"):
        BlockHasher(4, hash_algo="blake3")
    with pytest.raises(errors.InvalidConfigError, match="belongs to hash_algo 'blake3'"):
        BlockHasher(4, hash_key=bytes(32))
    with pytest.raises(errors.InvalidConfigError, match="found 'md5'"):
        BlockHasher(4, hash_algo="md5")
    with pytest.raises(errors.InvalidConfigError, match="block_size"):
        BlockHasher(0)
