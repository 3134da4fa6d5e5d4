//! What `BlockPool.drain_events` returns.

use std::sync::{Arc, Mutex, TryLockError};

use looseleaf::{BlockKey, Event, EventReader, KeyWidth, PoolError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{events_in_use, pool_error};
use crate::keys::key_bytes;

/// A block hash can be hit from now on.
#[pyclass(frozen, module = "looseleaf._core")]
pub struct BlockStored {
    key: BlockKey,
    parent: Option<BlockKey>,
    tokens: Box<[u32]>,
    width: KeyWidth,
    /// The KV-cache group whose layers the block holds.
    #[pyo3(get)]
    group_idx: u32,
}

#[pymethods]
impl BlockStored {
    #[getter]
    fn block_hash<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        key_bytes(py, &self.key, self.width)
    }

    #[getter]
    fn parent_block_hash<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.parent
            .as_ref()
            .map(|parent| key_bytes(py, parent, self.width))
    }

    #[getter]
    fn token_ids(&self) -> Vec<u32> {
        self.tokens.to_vec()
    }

    fn __repr__(&self) -> String {
        let hash = short_hex(&self.key);
        let parent = self.parent.as_ref().map_or("None".into(), short_hex);
        let (tokens, group) = (self.tokens.len(), self.group_idx);
        format!(
            "BlockStored(block_hash={hash}, parent_block_hash={parent}, {tokens} tokens, group_idx={group})"
        )
    }
}

/// A block hash cannot be hit any more.
#[pyclass(frozen, module = "looseleaf._core")]
pub struct BlockRemoved {
    key: BlockKey,
    width: KeyWidth,
    #[pyo3(get)]
    group_idx: u32,
}

#[pymethods]
impl BlockRemoved {
    #[getter]
    fn block_hash<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        key_bytes(py, &self.key, self.width)
    }

    fn __repr__(&self) -> String {
        let (hash, group) = (short_hex(&self.key), self.group_idx);
        format!("BlockRemoved(block_hash={hash}, group_idx={group})")
    }
}

/// No block hash can be hit but those that are stored from here on.
#[pyclass(frozen, get_all, module = "looseleaf._core")]
pub struct AllBlocksCleared {
    /// Whether earlier events are missing; otherwise the prefix cache was reset.
    resync: bool,
}

#[pymethods]
impl AllBlocksCleared {
    fn __repr__(&self) -> &'static str {
        if self.resync {
            "AllBlocksCleared(resync=True)"
        } else {
            "AllBlocksCleared(resync=False)"
        }
    }
}

/// The one reader of a pool's events.
pub struct Events {
    reader: Mutex<EventReader<Arc<looseleaf::BlockPool>>>,
    width: KeyWidth,
}

impl Events {
    /// None if the pool was built without events.
    pub fn new(pool: &Arc<looseleaf::BlockPool>) -> PyResult<Option<Self>> {
        let width = pool.config().key_width;
        match EventReader::new(Arc::clone(pool)) {
            Ok(reader) => Ok(Some(Self {
                reader: Mutex::new(reader),
                width,
            })),
            Err(PoolError::NoEvents) => Ok(None),
            Err(error) => Err(pool_error(error)),
        }
    }

    /// What has changed since the last call. A second call at the same time raises.
    pub fn drain(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let mut events = vec![];
        {
            let mut reader = match self.reader.try_lock() {
                Ok(reader) => reader,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return Err(events_in_use()),
            };
            let (reader, events) = (&mut *reader, &mut events);
            py.detach(move || reader.drain(events));
        }
        let objects = events
            .into_iter()
            .map(|event| to_object(py, event, self.width));
        objects.collect()
    }
}

fn to_object(py: Python<'_>, event: Event, width: KeyWidth) -> PyResult<Py<PyAny>> {
    Ok(match event {
        Event::Stored {
            key,
            parent,
            tokens,
            group,
        } => Py::new(
            py,
            BlockStored {
                key,
                parent,
                tokens,
                width,
                group_idx: group,
            },
        )?
        .into_any(),
        Event::Removed { key, group } => Py::new(
            py,
            BlockRemoved {
                key,
                width,
                group_idx: group,
            },
        )?
        .into_any(),
        Event::Cleared { resync } => Py::new(py, AllBlocksCleared { resync })?.into_any(),
    })
}

/// Enough of a hash to tell it from others by eye.
fn short_hex(key: &BlockKey) -> String {
    format!("{:016x}…", key.0[0])
}
