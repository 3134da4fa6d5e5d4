//! Chained block hashes: the key of a block covers its tokens, everything else that its keys and
//! values depend on, and, through its parent's key, the whole prefix before it.
//!
//! A key is the digest of the canonical CBOR encoding (RFC 8949, section 4.2) of
//! `[parent, [token, …], extra]`, where `extra` is null or an array of tagged arrays. With
//! [`HashAlgo::Sha256Cbor`] and the default seed, keys equal those of vLLM's `sha256_cbor` bit for
//! bit, for text, salts, adapters and media items.

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::Xxh3Default;

use crate::block_key::{BlockKey, KeyWidth};
use crate::prefix_contents::ExtraMarks;

/// Where the chain starts when no seed is given; vLLM's constant.
const DEFAULT_SEED: &str = "vllm-none-hash";

/// How keys are computed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum HashAlgo {
    /// SHA-256, 256-bit keys, equal to vLLM's `sha256_cbor`.
    #[default]
    Sha256Cbor,
    /// BLAKE3 keyed with a secret, 128-bit keys. Processes that share blocks must share the secret;
    /// without it collisions cannot be searched for.
    Blake3Keyed([u8; 32]),
    /// XXH3, 128-bit keys. Collisions can be constructed: only where all users trust each other.
    Xxh3,
    /// So many bits of XXH3, for tests: keys that collide all the time.
    #[doc(hidden)]
    FewBits(u32),
}

impl HashAlgo {
    /// How wide the keys are.
    pub fn key_width(&self) -> KeyWidth {
        match self {
            Self::Sha256Cbor => KeyWidth::Bits256,
            Self::Blake3Keyed(_) | Self::Xxh3 | Self::FewBits(_) => KeyWidth::Bits128,
        }
    }
}

/// What a block's content depends on beside its tokens. Each kind is tagged in the hash, so equal
/// values of different kinds differ. Pass them in the order of the variants.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ExtraKey {
    /// An adapter; on every block of the sequence.
    Lora {
        /// Its name, with whatever tells two versions of it apart.
        name: String,
        /// Where it was loaded from.
        path: String,
    },
    /// A media item that overlaps the block.
    Media {
        /// What identifies the item's content.
        identifier: String,
        /// Where the item begins, in tokens from the block's beginning; may be negative.
        offset: i64,
    },
    /// A secret that keeps tenants apart. Only on the first block; the chain carries it on.
    Salt(String),
    /// Embeddings in place of token ids.
    Embeds {
        /// SHA-256 of the raw bytes of the block's slice.
        sha256: [u8; 32],
        /// Element type, such as `bfloat16`.
        dtype: String,
        /// Shape of the block's slice.
        shape: Vec<u64>,
        /// One byte per position of the block: 1 where an embedding stands, 0 where a token does.
        mask: Vec<u8>,
    },
}

/// Computes the keys of a sequence's blocks.
#[derive(Clone, Debug)]
pub struct BlockHasher {
    algo: HashAlgo,
    none_hash: BlockKey,
    /// Only for chains whose blocks are looked for in a pool that verifies tokens.
    marks: Option<ExtraMarks>,
}

impl BlockHasher {
    /// A hasher whose chains start from `seed`, or from vLLM's fixed start without one.
    pub fn new(algo: HashAlgo, seed: Option<&str>) -> Self {
        let none_hash = algo.digest(|cbor| cbor.text(seed.unwrap_or(DEFAULT_SEED)));
        Self {
            algo,
            none_hash,
            marks: None,
        }
    }

    /// A hasher for a pool that verifies tokens.
    pub(crate) fn with_marks(self, marks: Option<ExtraMarks>) -> Self {
        Self { marks, ..self }
    }

    pub(crate) fn marks(&self) -> Option<&ExtraMarks> {
        self.marks.as_ref()
    }

    /// How keys are computed.
    pub fn algo(&self) -> &HashAlgo {
        &self.algo
    }

    /// The parent of every first block.
    pub fn none_hash(&self) -> BlockKey {
        self.none_hash
    }

    /// The key of a full block of `tokens` after `parent` (`None`: the block is a sequence's
    /// first).
    pub fn hash_block(
        &self,
        parent: Option<&BlockKey>,
        tokens: &[u32],
        extra: &[ExtraKey],
    ) -> BlockKey {
        let parent = parent.unwrap_or(&self.none_hash).to_bytes();
        let parent = match self.algo.key_width() {
            KeyWidth::Bits128 => &parent[..16],
            KeyWidth::Bits256 => &parent[..],
        };
        self.algo.digest(|cbor| {
            cbor.array(3);
            cbor.bytes(parent);
            cbor.array(tokens.len());
            for token in tokens {
                cbor.unsigned(u64::from(*token));
            }
            if extra.is_empty() {
                cbor.null();
            } else {
                cbor.array(extra.len());
                extra.iter().for_each(|key| key.encode(cbor));
            }
        })
    }
}

impl HashAlgo {
    fn digest(&self, encode: impl Fn(&mut Cbor<'_>)) -> BlockKey {
        match self {
            Self::Sha256Cbor => {
                let mut hash = Sha256::new();
                Cbor::write(&mut |bytes| hash.update(bytes), encode);
                BlockKey::from_bytes(&hash.finalize().into())
            }
            Self::Blake3Keyed(secret) => {
                let mut hash = blake3::Hasher::new_keyed(secret);
                Cbor::write(&mut |bytes| _ = hash.update(bytes), encode);
                let BlockKey([high, low, ..]) = BlockKey::from_bytes(hash.finalize().as_bytes());
                BlockKey([high, low, 0, 0])
            }
            Self::Xxh3 => {
                let mut hash = Xxh3Default::new();
                Cbor::write(&mut |bytes| hash.update(bytes), encode);
                let digest = hash.digest128();
                BlockKey([(digest >> 64) as u64, digest as u64, 0, 0])
            }
            Self::FewBits(bits) => {
                let BlockKey([word, ..]) = Self::Xxh3.digest(encode);
                BlockKey([word & ((1 << bits) - 1), 0, 0, 0])
            }
        }
    }
}

impl ExtraKey {
    fn encode(&self, cbor: &mut Cbor<'_>) {
        match self {
            Self::Lora { name, path } => {
                cbor.array(3);
                cbor.text("lora");
                cbor.text(name);
                cbor.text(path);
            }
            Self::Media { identifier, offset } => {
                cbor.array(3);
                cbor.text("mm");
                cbor.text(identifier);
                cbor.signed(*offset);
            }
            Self::Salt(salt) => {
                cbor.array(2);
                cbor.text("cache_salt");
                cbor.text(salt);
            }
            Self::Embeds {
                sha256,
                dtype,
                shape,
                mask,
            } => {
                cbor.array(5);
                cbor.text("prompt_embeds");
                cbor.bytes(sha256);
                cbor.text(dtype);
                cbor.array(shape.len());
                shape.iter().for_each(|size| cbor.unsigned(*size));
                cbor.bytes(mask);
            }
        }
    }
}

/// Bytes gathered before the hash function is called: two blocks of SHA-256.
const BUFFER: usize = 128;

/// A canonical CBOR encoder for the few types that occur, streaming into a hash function.
struct Cbor<'a> {
    sink: &'a mut dyn FnMut(&[u8]),
    buffer: [u8; BUFFER],
    used: usize,
}

impl Cbor<'_> {
    fn write(sink: &mut dyn FnMut(&[u8]), encode: impl Fn(&mut Cbor<'_>)) {
        let mut cbor = Cbor {
            sink,
            buffer: [0; BUFFER],
            used: 0,
        };
        encode(&mut cbor);
        (cbor.sink)(&cbor.buffer[..cbor.used]);
    }

    fn unsigned(&mut self, value: u64) {
        self.head(0, value);
    }

    /// A negative number `n` is encoded as `-1 - n`, which is its bitwise complement.
    fn signed(&mut self, value: i64) {
        if value < 0 {
            self.head(1, !value as u64)
        } else {
            self.head(0, value as u64)
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.head(2, bytes.len() as u64);
        self.raw(bytes);
    }

    fn text(&mut self, text: &str) {
        self.head(3, text.len() as u64);
        self.raw(text.as_bytes());
    }

    fn array(&mut self, len: usize) {
        self.head(4, len as u64);
    }

    fn null(&mut self) {
        self.raw(&[0xF6]);
    }

    /// Major type and argument, the argument in the fewest bytes that hold it.
    fn head(&mut self, major: u8, argument: u64) {
        let major = major << 5;
        match argument {
            0..24 => self.raw(&[major | argument as u8]),
            24..0x100 => self.raw(&[major | 24, argument as u8]),
            0x100..0x1_0000 => {
                let [a, b] = (argument as u16).to_be_bytes();
                self.raw(&[major | 25, a, b]);
            }
            0x1_0000..0x1_0000_0000 => {
                let [a, b, c, d] = (argument as u32).to_be_bytes();
                self.raw(&[major | 26, a, b, c, d]);
            }
            _ => {
                self.raw(&[major | 27]);
                self.raw(&argument.to_be_bytes());
            }
        }
    }

    fn raw(&mut self, bytes: &[u8]) {
        if self.used + bytes.len() > BUFFER {
            (self.sink)(&self.buffer[..self.used]);
            self.used = 0;
        }
        if bytes.len() > BUFFER {
            (self.sink)(bytes);
        } else {
            self.buffer[self.used..self.used + bytes.len()].copy_from_slice(bytes);
            self.used += bytes.len();
        }
    }
}
