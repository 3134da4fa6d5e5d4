//! Token and block ids arrive as any sequence of integers, or as a buffer, which costs no object per id.

use std::sync::Arc;

use looseleaf::{BlockId, BlockPool};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::block_list::BlockList;
use crate::errors::{foreign_blocks, request_error};

/// Token ids of a request.
pub struct TokenIds(pub Vec<u32>);

impl TokenIds {
    /// Hashing so many takes much longer than letting other Python threads run meanwhile.
    pub fn is_long(&self) -> bool {
        self.0.len() >= 4096
    }
}

impl<'py> FromPyObject<'_, 'py> for TokenIds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(buffer) = PyBuffer::<u32>::get(&object) {
            return Ok(Self(buffer.to_vec(object.py())?));
        }
        if let Ok(buffer) = PyBuffer::<i32>::get(&object) {
            let ids = buffer.to_vec(object.py())?;
            check_each(&ids)?;
            return Ok(Self(ids.into_iter().map(i32::cast_unsigned).collect()));
        }
        if let Ok(buffer) = PyBuffer::<i64>::get(&object) {
            let ids = buffer.to_vec(object.py())?;
            check_each(&ids)?;
            return Ok(Self(ids.into_iter().map(|id| id as u32).collect()));
        }
        let ids: Vec<i64> = object.extract()?;
        ids.into_iter()
            .map(token_id)
            .collect::<PyResult<_>>()
            .map(Self)
    }
}

/// The tokens that a sequence accepts: one as an integer, which is the usual case and needs no list, or many.
pub enum AcceptedIds {
    One(u32),
    Many(Vec<u32>),
}

impl AcceptedIds {
    pub fn as_slice(&self) -> &[u32] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(ids) => ids,
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for AcceptedIds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyInt>() {
            return token_id(object.extract()?).map(Self::One);
        }
        TokenIds::extract(object).map(|ids| Self::Many(ids.0))
    }
}

/// The tokens that a step sampled.
pub struct SampledIds(pub Vec<i32>);

impl<'py> FromPyObject<'_, 'py> for SampledIds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match PyBuffer::<i32>::get(&object) {
            Ok(buffer) => buffer.to_vec(object.py()).map(Self),
            Err(_) => object.extract().map(Self),
        }
    }
}

/// Counts first: a loop with no way out of it compiles to vector instructions.
fn check_each<T: Copy + Into<i64>>(ids: &[T]) -> PyResult<()> {
    let is_invalid = |id: &T| u32::try_from((*id).into()).is_err();
    if ids.iter().filter(|id| is_invalid(id)).count() == 0 {
        return Ok(());
    }
    ids.iter()
        .try_for_each(|id| token_id((*id).into()).map(drop))
}

fn token_id(id: i64) -> PyResult<u32> {
    u32::try_from(id)
        .map_err(|_| request_error(format!("token ids are from 0 to {}, found {id}", u32::MAX)))
}

/// Block ids of a call, from an int32 buffer or any sequence of integers, or of a `BlockList`.
pub struct BlockIds {
    pub ids: Vec<BlockId>,
    /// Whose they are, if they came in a `BlockList`.
    owner: Option<Arc<BlockPool>>,
}

impl BlockIds {
    /// The ids, unless they are blocks of another pool.
    pub fn of(self, pool: &Arc<BlockPool>) -> PyResult<Vec<BlockId>> {
        match &self.owner {
            Some(owner) if !Arc::ptr_eq(owner, pool) => Err(foreign_blocks(
                "the BlockList holds blocks of another pool".into(),
            )),
            _ => Ok(self.ids),
        }
    }

    /// The ids of references that no `BlockList` owns.
    pub fn unowned(self) -> PyResult<Vec<BlockId>> {
        match self.owner {
            Some(_) => Err(foreign_blocks(
                "a BlockList gives its references back itself: call its release(), or take them over with into_ids()"
                    .into(),
            )),
            None => Ok(self.ids),
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for BlockIds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(list) = object.cast::<BlockList>() {
            let (ids, owner) = (list.get().ids(), Some(list.get().pool().clone()));
            return Ok(Self { ids, owner });
        }
        let ids = match PyBuffer::<i32>::get(&object) {
            Ok(buffer) => unsigned(buffer.to_vec(object.py())?)?,
            Err(_) => object.extract()?,
        };
        Ok(Self { ids, owner: None })
    }
}

fn unsigned(ids: Vec<i32>) -> PyResult<Vec<BlockId>> {
    match ids.iter().find(|id| **id < 0) {
        Some(id) => Err(PyOverflowError::new_err(format!(
            "block ids are not negative, found {id}"
        ))),
        None => Ok(ids.into_iter().map(i32::cast_unsigned).collect()),
    }
}
