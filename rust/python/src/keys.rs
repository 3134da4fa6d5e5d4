//! Block hashes: computed by `BlockHasher`, carried by `BlockKeys`, and as `bytes` one by one.

use looseleaf::{BlockKey, ExtraKey, HashAlgo, KeyWidth};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::invalid_config;
use crate::tokens::TokenIds;

pub fn key_len(width: KeyWidth) -> usize {
    match width {
        KeyWidth::Bits128 => 16,
        KeyWidth::Bits256 => 32,
    }
}

pub fn parse_key(bytes: &[u8], width: KeyWidth) -> PyResult<BlockKey> {
    let wanted = key_len(width);
    if bytes.len() != wanted {
        return Err(invalid_config(format!(
            "a block hash of this pool has {wanted} bytes, found {}",
            bytes.len()
        )));
    }
    let mut digest = [0; 32];
    digest[..wanted].copy_from_slice(bytes);
    Ok(BlockKey::from_bytes(&digest))
}

pub fn key_bytes<'py>(py: Python<'py>, key: &BlockKey, width: KeyWidth) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &key.to_bytes()[..key_len(width)])
}

/// Hashes of consecutive blocks, kept as the pool reads them.
#[pyclass(frozen, module = "looseleaf._core")]
pub struct BlockKeys {
    keys: Vec<BlockKey>,
    width: KeyWidth,
}

#[pymethods]
impl BlockKeys {
    fn __len__(&self) -> usize {
        self.keys.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyBytes>> {
        let position = if index < 0 {
            index + self.keys.len() as isize
        } else {
            index
        };
        let key = usize::try_from(position)
            .ok()
            .and_then(|at| self.keys.get(at));
        let key = key.ok_or_else(|| {
            PyIndexError::new_err(format!(
                "index {index} is outside BlockKeys of {}",
                self.keys.len()
            ))
        })?;
        Ok(key_bytes(py, key, self.width))
    }

    fn __repr__(&self) -> String {
        format!(
            "BlockKeys({} of {} bytes)",
            self.keys.len(),
            key_len(self.width)
        )
    }
}

/// Hashes where a call takes them: a `BlockKeys`, or a sequence of `bytes`.
pub enum KeysArg<'py> {
    Packed(PyRef<'py, BlockKeys>),
    Bytes(Vec<Vec<u8>>),
}

impl<'py> FromPyObject<'_, 'py> for KeysArg<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.cast::<BlockKeys>() {
            Ok(keys) => Ok(Self::Packed(keys.borrow())),
            Err(_) => object.extract().map(Self::Bytes),
        }
    }
}

impl KeysArg<'_> {
    /// Calls `use_keys` with the keys, once all are known to have the pool's width.
    pub fn with<R>(&self, width: KeyWidth, use_keys: impl FnOnce(&[BlockKey]) -> R) -> PyResult<R> {
        match self {
            Self::Packed(keys) if keys.keys.iter().all(|key| key.fits(width)) => {
                Ok(use_keys(&keys.keys))
            }
            Self::Packed(keys) => Err(invalid_config(format!(
                "a block hash of this pool has {} bytes, found {}",
                key_len(width),
                key_len(keys.width)
            ))),
            Self::Bytes(bytes) => {
                let keys: Vec<_> = bytes
                    .iter()
                    .map(|key| parse_key(key, width))
                    .collect::<PyResult<_>>()?;
                Ok(use_keys(&keys))
            }
        }
    }
}

/// Computes the chained hashes of a sequence's full blocks.
#[pyclass(frozen, module = "looseleaf._core")]
pub struct BlockHasher {
    inner: looseleaf::BlockHasher,
    block_size: usize,
}

#[pymethods]
impl BlockHasher {
    #[new]
    #[pyo3(signature = (block_size, *, hash_algo = "sha256_cbor", hash_key = None, hash_seed = None))]
    fn new(
        block_size: usize,
        hash_algo: &str,
        hash_key: Option<[u8; 32]>,
        hash_seed: Option<&str>,
    ) -> PyResult<Self> {
        if block_size == 0 {
            return Err(invalid_config(
                "block_size must be at least 1 token, found 0".into(),
            ));
        }
        let algo = parse_hash_algo(hash_algo, hash_key)?;
        Ok(Self {
            inner: looseleaf::BlockHasher::new(algo, hash_seed),
            block_size,
        })
    }

    /// The hashes of all full blocks; tokens after the last full block are not hashed.
    #[pyo3(signature = (token_ids, *, parent = None, cache_salt = None))]
    fn hash_blocks(
        &self,
        py: Python<'_>,
        token_ids: TokenIds,
        parent: Option<&[u8]>,
        cache_salt: Option<&str>,
    ) -> PyResult<BlockKeys> {
        let width = self.inner.algo().key_width();
        let parent = parent.map(|bytes| parse_key(bytes, width)).transpose()?;
        let salt = cache_salt
            .filter(|salt| !salt.is_empty())
            .map(|salt| ExtraKey::Salt(salt.to_owned()));
        let hash = || self.chain(&token_ids.0, parent, salt.as_slice());
        let keys = if token_ids.is_long() {
            py.detach(hash)
        } else {
            hash()
        };
        Ok(BlockKeys { keys, width })
    }
}

impl BlockHasher {
    fn chain(
        &self,
        tokens: &[u32],
        parent: Option<BlockKey>,
        first_extra: &[ExtraKey],
    ) -> Vec<BlockKey> {
        let blocks = tokens.chunks_exact(self.block_size);
        let mut keys = Vec::with_capacity(blocks.len());
        for block in blocks {
            let extra = if keys.is_empty() { first_extra } else { &[] };
            let parent = keys.last().or(parent.as_ref());
            keys.push(self.inner.hash_block(parent, block, extra));
        }
        keys
    }
}

/// The algorithm that a name and, for `blake3`, a key stand for.
pub fn parse_hash_algo(name: &str, key: Option<[u8; 32]>) -> PyResult<HashAlgo> {
    match (name, key) {
        ("sha256_cbor" | "sha256", None) => Ok(HashAlgo::Sha256Cbor),
        ("xxh3", None) => Ok(HashAlgo::Xxh3),
        ("blake3", Some(key)) => Ok(HashAlgo::Blake3Keyed(key)),
        ("blake3", None) => Err(invalid_config(
            "hash_algo 'blake3' needs hash_key, 32 secret bytes: os.urandom(32), or the same in every process that \
             shares blocks"
                .into(),
        )),
        ("sha256_cbor" | "sha256" | "xxh3", Some(_)) => {
            Err(invalid_config(format!("hash_key belongs to hash_algo 'blake3', found '{name}'")))
        }
        _ => Err(invalid_config(format!(
            "hash_algo must be one of 'sha256_cbor', 'sha256' (the same), 'blake3', 'xxh3', found '{name}'"
        ))),
    }
}
