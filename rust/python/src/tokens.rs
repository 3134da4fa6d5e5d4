//! Token and block ids arrive as any sequence of integers, or as a buffer, which costs no object per id.

use looseleaf::BlockId;
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

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
        if let Some(ids) = from_buffer::<i32>(&object).or_else(|| from_buffer::<i64>(&object)) {
            return ids.map(Self);
        }
        let ids: Vec<i64> = object.extract()?;
        ids.into_iter()
            .map(token_id)
            .collect::<PyResult<_>>()
            .map(Self)
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

fn from_buffer<T: Element + Into<i64>>(object: &Bound<'_, PyAny>) -> Option<PyResult<Vec<u32>>> {
    let buffer = PyBuffer::<T>::get(object).ok()?;
    let ids = buffer.to_vec(object.py());
    Some(ids.and_then(|ids| ids.into_iter().map(|id| token_id(id.into())).collect()))
}

fn token_id(id: i64) -> PyResult<u32> {
    u32::try_from(id)
        .map_err(|_| request_error(format!("token ids are from 0 to {}, found {id}", u32::MAX)))
}

/// Block ids of a call, from an int32 buffer or any sequence of integers.
pub struct BlockIds(pub Vec<BlockId>);

impl<'py> FromPyObject<'_, 'py> for BlockIds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
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
