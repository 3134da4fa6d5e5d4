//! Block hashes: computed by `BlockHasher`, carried by `BlockKeys`, and as `bytes` one by one.

use std::hash::{DefaultHasher, Hash, Hasher};

use looseleaf::{BlockKey, HashAlgo, KeyWidth};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyIterator, PySlice, PyTuple, PyType};

use crate::errors::invalid_config;
use crate::extra_keys::{ExtraKey, spanned};
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
    /// Packs hashes that were computed elsewhere.
    #[new]
    fn new(keys: Vec<PyBackedBytes>) -> PyResult<Self> {
        let width = match keys.first().map(|key| key.len()) {
            None | Some(32) => KeyWidth::Bits256,
            Some(16) => KeyWidth::Bits128,
            Some(other) => {
                return Err(invalid_config(format!(
                    "a block hash has 16 or 32 bytes, found {other}"
                )));
            }
        };
        let keys = parse_keys(&keys, width)?;
        Ok(Self { keys, width })
    }

    fn __len__(&self) -> usize {
        self.keys.len()
    }

    /// One hash as `bytes`, or the `BlockKeys` of a slice.
    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: KeyIndex<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match index {
            KeyIndex::One(index) => {
                let len = self.keys.len();
                let position = if index < 0 {
                    index + len as isize
                } else {
                    index
                };
                let key = usize::try_from(position)
                    .ok()
                    .and_then(|at| self.keys.get(at));
                let key = key.ok_or_else(|| {
                    PyIndexError::new_err(format!("index {index} is outside BlockKeys of {len}"))
                })?;
                Ok(key_bytes(py, key, self.width).into_any())
            }
            KeyIndex::Slice(slice) => {
                let part = slice.indices(self.keys.len() as isize)?;
                let places = (0..part.slicelength).map(|i| part.start + i as isize * part.step);
                let keys = places.map(|at| self.keys[at as usize]).collect();
                let width = self.width;
                Ok(Bound::new(py, Self { keys, width })?.into_any())
            }
        }
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        let keys = self.keys.iter();
        let keys = PyTuple::new(py, keys.map(|key| key_bytes(py, key, self.width)))?;
        keys.try_iter()
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.keys == other.keys
    }

    fn __hash__(&self) -> u64 {
        let mut state = DefaultHasher::new();
        self.keys.hash(&mut state);
        state.finish()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> Reduced<'py> {
        let (py, keys) = (slf.py(), slf.get());
        let bytes = keys.keys.iter().map(|key| key_bytes(py, key, keys.width));
        (slf.get_type(), (bytes.collect(),))
    }

    fn __repr__(&self) -> String {
        format!(
            "BlockKeys({} of {} bytes)",
            self.keys.len(),
            key_len(self.width)
        )
    }
}

/// What makes an equal object again, for `pickle` and `copy`.
type Reduced<'py> = (Bound<'py, PyType>, (Vec<Bound<'py, PyBytes>>,));

#[derive(FromPyObject)]
enum KeyIndex<'py> {
    One(isize),
    Slice(Bound<'py, PySlice>),
}

fn parse_keys(keys: &[PyBackedBytes], width: KeyWidth) -> PyResult<Vec<BlockKey>> {
    keys.iter().map(|key| parse_key(key, width)).collect()
}

/// Hashes where a call takes them: a `BlockKeys`, or a sequence of `bytes`.
pub enum KeysArg<'py> {
    Packed(PyRef<'py, BlockKeys>),
    Bytes(Vec<PyBackedBytes>),
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
            Self::Packed(keys) if keys.width.bits() <= width.bits() || keys.keys.is_empty() => {
                Ok(use_keys(&keys.keys))
            }
            Self::Packed(keys) => Err(invalid_config(format!(
                "a block hash of this pool has {} bytes, found {}",
                key_len(width),
                key_len(keys.width)
            ))),
            Self::Bytes(bytes) => {
                let keys = parse_keys(bytes, width)?;
                Ok(use_keys(&keys))
            }
        }
    }
}

/// Computes the chained hashes of a sequence's full blocks.
#[pyclass(frozen, module = "looseleaf._core")]
pub struct BlockHasher {
    inner: looseleaf::BlockHasher,
    block_size: u32,
}

#[pymethods]
impl BlockHasher {
    #[new]
    #[pyo3(signature = (block_size, *, hash_algo = "sha256_cbor", hash_key = None, hash_seed = None))]
    fn new(
        block_size: u32,
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
    #[pyo3(signature = (token_ids, *, parent = None, cache_salt = None, extra_keys = Vec::new()))]
    fn hash_blocks(
        &self,
        py: Python<'_>,
        token_ids: TokenIds,
        parent: Option<&[u8]>,
        cache_salt: Option<&str>,
        extra_keys: Vec<ExtraKey>,
    ) -> PyResult<BlockKeys> {
        let width = self.inner.algo().key_width();
        let parent = parent.map(|bytes| parse_key(bytes, width)).transpose()?;
        let extra_keys = spanned(extra_keys);
        let tokens = &token_ids.0;
        let hash = || {
            self.inner
                .hash_prefix(tokens, self.block_size, parent, cache_salt, &extra_keys)
        };
        let keys = if token_ids.is_long() {
            py.detach(hash)
        } else {
            hash()
        };
        Ok(BlockKeys { keys, width })
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
