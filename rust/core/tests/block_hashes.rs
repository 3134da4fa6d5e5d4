//! Block hashes against vectors from outside.
//!
//! The SHA-256 vectors were computed by vLLM 0.32.0's own functions (`vllm/v1/core/kv_cache_utils.py`
//! with `sha256_cbor`, cbor2 6.3.0, Python 3.11.7; `PYTHONHASHSEED` unset unless a seed is given).
//! The others were computed with hashlib, xxhash 4.1.0 and blake3 1.0.11 over cbor2 6.3.0's canonical
//! encoding of the same tuples.
#![cfg(not(any(loom, shuttle)))]

use looseleaf::{BlockHasher, BlockKey, ExtraKey, HashAlgo, KeyWidth};

fn hex(key: BlockKey) -> String {
    key.to_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn sha256() -> BlockHasher {
    BlockHasher::new(HashAlgo::Sha256Cbor, None)
}

fn salt(salt: &str) -> ExtraKey {
    ExtraKey::Salt(salt.into())
}

#[test]
fn the_chain_starts_from_the_hash_of_the_seed() {
    let start = |seed| hex(BlockHasher::new(HashAlgo::Sha256Cbor, seed).none_hash());
    assert_eq!(
        start(None),
        "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0"
    );
    assert_eq!(
        start(Some("0")),
        "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"
    );
    assert_eq!(
        start(Some("42")),
        "9fa6eb003f14425eb9c8e6baacfbcaab26257357b829c7bfa74ffcc4f31c1780"
    );
}

#[test]
fn text_blocks_hash_as_in_vllm() {
    let hasher = sha256();
    let first = hasher.hash_block(None, &[1, 2, 3, 4], &[]);
    assert_eq!(
        hex(first),
        "58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111"
    );
    assert_eq!(first.0[3], 9_561_501_211_280_363_793);
    let second = hasher.hash_block(Some(&first), &[5, 6, 7, 8], &[]);
    assert_eq!(
        hex(second),
        "e1bc29393a2da9fd798f35ff04d215f846aee6df4b803ce3d43b57df56b58fb1"
    );
    assert_eq!(second.0[3], 15_292_913_576_410_714_033);
    let sixteen: Vec<u32> = (0..16).collect();
    assert_eq!(
        hex(hasher.hash_block(None, &sixteen, &[])),
        "dc918a88b139e5afe60b88eda27508d4aee16c10fdc354791efea06206ac0749"
    );
}

#[test]
fn token_ids_of_every_width_hash_as_in_vllm() {
    let edges = [0, 23, 24, 255, 256, 65_535, 65_536, (1 << 31) - 1];
    assert_eq!(
        hex(sha256().hash_block(None, &[edges, edges].concat(), &[])),
        "036b9f7235623fa171d4a2dc23a88fac5c62372054938603f0f77c6b59a8323d"
    );
}

#[test]
fn extra_keys_hash_as_in_vllm() {
    let hash = |extra: &[ExtraKey]| hex(sha256().hash_block(None, &[1, 2, 3, 4], extra));
    assert_eq!(
        hash(&[salt("tenant-a")]),
        "0e172de9010f20a975885630390148d0769af6bbe75a732d3b66b62598433cae"
    );
    assert_eq!(
        hash(&[ExtraKey::Lora {
            name: "ad1".into(),
            path: "/p/ad1".into()
        }]),
        "34017ae803d9774bc037051698bcc89617264517b552878f0852c5117ade8f3b"
    );
    assert_eq!(
        hash(&[
            ExtraKey::Media {
                identifier: "abc".into(),
                offset: -2
            },
            salt("s")
        ]),
        "ef4709607f80d7442a51489918263f35764b3ba2bbfee1caa2cbc26157f496a2"
    );
}

#[test]
fn media_offsets_of_every_width_hash_as_cbor2_encodes_them() {
    let media = |identifier: &str, offset| ExtraKey::Media {
        identifier: identifier.into(),
        offset,
    };
    let extra = [
        media("abc", -300),
        media("d", 70_000),
        media("e", -(1 << 40)),
    ];
    assert_eq!(
        hex(sha256().hash_block(None, &[1, 2, 3, 4], &extra)),
        "dc9bae264ca04963e344fa81d1a23281b62608ecc15ee26321751da531df8724"
    );
}

#[test]
fn embeddings_that_differ_in_shape_type_or_mask_differ() {
    let embeds = |dtype: &str, shape: &[u64], mask: &[u8]| {
        let extra = ExtraKey::Embeds {
            sha256: [7; 32],
            dtype: dtype.into(),
            shape: shape.to_vec(),
            mask: mask.to_vec(),
        };
        sha256().hash_block(None, &[0; 4], &[extra])
    };
    let base = embeds("bfloat16", &[4, 8], &[1, 1, 1, 1]);
    assert_ne!(base, embeds("float16", &[4, 8], &[1, 1, 1, 1]));
    assert_ne!(base, embeds("bfloat16", &[8, 4], &[1, 1, 1, 1]));
    assert_ne!(base, embeds("bfloat16", &[4, 8], &[0, 1, 1, 1]));
}

#[test]
fn text_longer_than_any_buffer_hashes_like_its_bytes() {
    let hash = |text: &str| sha256().hash_block(None, &[1], &[salt(text)]);
    let long = "x".repeat(1000);
    assert_eq!(
        hex(hash(&long)),
        "c1b2b307b733ddeec6eba42d593344bff57f0f452157c53bafae35650d4deebf"
    );
    assert_ne!(hash(&long), hash(&long[1..]));
}

#[test]
fn narrow_algorithms_fill_two_words() {
    for algo in [HashAlgo::Xxh3, HashAlgo::Blake3Keyed([9; 32])] {
        let hasher = BlockHasher::new(algo, None);
        assert!(hasher.none_hash().fits(KeyWidth::Bits128));
        assert!(
            hasher
                .hash_block(None, &[1, 2], &[])
                .fits(KeyWidth::Bits128)
        );
    }
}

#[test]
fn xxh3_and_keyed_blake3_match_their_reference_packages() {
    let chain = |algo| {
        let hasher = BlockHasher::new(algo, None);
        let first = hasher.hash_block(None, &[1, 2, 3, 4], &[]);
        hex(hasher.hash_block(Some(&first), &[5, 6, 7, 8], &[salt("tenant-a")]))
    };
    assert_eq!(
        chain(HashAlgo::Xxh3)[..32],
        *"d4ae3d030a49a9c1c8e0cf6061755b19"
    );
    let mut secret = [0; 32];
    secret.iter_mut().zip(0..).for_each(|(byte, i)| *byte = i);
    assert_eq!(
        chain(HashAlgo::Blake3Keyed(secret))[..32],
        *"f7db6189b6991cfe58b93eabcc90e332"
    );
}

#[test]
fn keys_give_their_digest_back() {
    let digest: [u8; 32] = std::array::from_fn(|i| i as u8);
    assert_eq!(BlockKey::from_bytes(&digest).to_bytes(), digest);
}

#[test]
fn groups_of_one_block_have_different_keys_and_group_zero_the_plain_one() {
    for key in [BlockKey([1, 2, 3, 4]), BlockKey([1, 2, 0, 0])] {
        assert_eq!(key.with_group(0), key);
        let groups: Vec<_> = (0..64).map(|group| key.with_group(group)).collect();
        assert!((0..64).all(|i| !groups[..i].contains(&groups[i])));
        let width = if key.0[3] == 0 {
            KeyWidth::Bits128
        } else {
            KeyWidth::Bits256
        };
        assert!(groups.iter().all(|group| group.fits(width)));
    }
}
