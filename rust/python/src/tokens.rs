//! Token and block ids arrive as any sequence of integers, or as a buffer, which costs no object per id.

use looseleaf::BlockId;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::block_list::BlockList;
use crate::errors::request_error;

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

/// Block ids of a call, from a `BlockList`, an int32 buffer or any sequence of integers.
pub struct BlockIds(pub Vec<BlockId>);

impl<'py> FromPyObject<'_, 'py> for BlockIds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(list) = object.cast::<BlockList>() {
            return Ok(Self(list.get().ids()));
        }
        let Ok(buffer) = PyBuffer::<i32>::get(&object) else {
            return object.extract().map(Self);
        };
        let ids = buffer.to_vec(object.py())?;
        if let Some(id) = ids.iter().find(|id| **id < 0) {
            return Err(PyOverflowError::new_err(format!(
                "block ids are not negative, found {id}"
            )));
        }
        Ok(Self(ids.into_iter().map(i32::cast_unsigned).collect()))
    }
}
