//! Why a call was refused.

use std::fmt;

/// A refused call; the cache and the output are as they were.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttentionError {
    /// A number that is out of range, or that these kernels do not do.
    Setting(Mismatch),
    /// An array whose length or contents contradict the cache or the other arguments.
    Array(Mismatch),
}

/// What was found where something else is needed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Argument or field at fault.
    pub argument: &'static str,
    /// What was found.
    pub found: String,
    /// What is needed.
    pub required: String,
}

impl Mismatch {
    fn new(argument: &'static str, found: impl ToString, required: impl ToString) -> Mismatch {
        Mismatch {
            argument,
            found: found.to_string(),
            required: required.to_string(),
        }
    }
}

impl AttentionError {
    pub(crate) fn setting(
        argument: &'static str,
        found: impl ToString,
        required: impl ToString,
    ) -> Self {
        AttentionError::Setting(Mismatch::new(argument, found, required))
    }

    pub(crate) fn array(
        argument: &'static str,
        found: impl ToString,
        required: impl ToString,
    ) -> Self {
        AttentionError::Array(Mismatch::new(argument, found, required))
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch {
            argument,
            found,
            required,
        } = self;
        write!(f, "{argument}: found {found}, required {required}")
    }
}

impl fmt::Display for AttentionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (AttentionError::Setting(mismatch) | AttentionError::Array(mismatch)) = self;
        mismatch.fmt(f)
    }
}

impl std::error::Error for AttentionError {}
