//! Hashing one block of 16 tokens behind another.
//!
//! SHA-256 and BLAKE3 ask the processor what it can do, and under callgrind they see the one that it
//! emulates, which has no instructions for SHA-256 whatever the machine has. So their counts say how
//! much work there is without such instructions, and nothing is asserted of them.

use std::hint::black_box;

use looseleaf::{BlockHasher, HashAlgo};

use crate::{Call, Row};

pub const ROWS: &[Row] = &[
    Row {
        is_portable: false,
        ..Row::new("hash a block, sha256_cbor", 500, sha256)
    },
    Row {
        is_portable: false,
        ..Row::new("hash a block, blake3", 500, blake3)
    },
    Row::new("hash a block, xxh3", 500, xxh3),
];

fn sha256(_: usize) -> Call {
    hash(HashAlgo::Sha256Cbor)
}

fn blake3(_: usize) -> Call {
    hash(HashAlgo::Blake3Keyed([7; 32]))
}

fn xxh3(_: usize) -> Call {
    hash(HashAlgo::Xxh3)
}

fn hash(algo: HashAlgo) -> Call {
    let hasher = BlockHasher::new(algo, None);
    // As token ids of today's vocabularies are: most need three bytes or more.
    let tokens: Vec<u32> = (0..16).map(|at| 1 + 7919 * at).collect();
    let mut parent = hasher.none_hash();
    Box::new(move |_| parent = hasher.hash_block(Some(&parent), black_box(&tokens), &[]))
}
