"""Block hashes from Python. The golden values are what vLLM 0.32.0's ``sha256_cbor`` gives (cbor2 6.3.0)."""

import numpy as np
import pytest

from looseleaf import BlockHasher, BlockPool, errors

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
