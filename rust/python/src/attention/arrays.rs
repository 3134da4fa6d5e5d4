//! Arrays of other libraries, as slices.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{self, NonNull};

use looseleaf_attention::Bf16;
use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::prelude::*;

use crate::errors::invalid_buffer;

/// A number that an array can hold. Every bit pattern is a valid value.
pub trait Number: Copy + Send + Sync {
    /// What the array's dtype should be.
    const DTYPE: &'static str;

    fn is(format: ElementType) -> bool;
}

impl Number for f32 {
    const DTYPE: &'static str = "float32";

    fn is(format: ElementType) -> bool {
        format == ElementType::Float { bytes: 4 }
    }
}

impl Number for Bf16 {
    const DTYPE: &'static str = "bfloat16, viewed as int16 or uint16";

    fn is(format: ElementType) -> bool {
        // The buffer protocol has no code for bfloat16.
        matches!(
            format,
            ElementType::SignedInteger { bytes: 2 } | ElementType::UnsignedInteger { bytes: 2 }
        )
    }
}

impl Number for i32 {
    const DTYPE: &'static str = "int32";

    fn is(format: ElementType) -> bool {
        format == ElementType::SignedInteger { bytes: 4 }
    }
}

impl Number for i64 {
    const DTYPE: &'static str = "int64";

    fn is(format: ElementType) -> bool {
        format == ElementType::SignedInteger { bytes: 8 }
    }
}

/// An array whose memory stays where it is as long as this value lives.
pub struct Array<T> {
    name: &'static str,
    buffer: PyUntypedBuffer,
    /// Numbers from the start of one index of the first axis to the next.
    stride: usize,
    number: PhantomData<T>,
}

impl<T: Number> Array<T> {
    /// An array of numbers that follow one another without gaps.
    pub fn new(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let array = Self::of_any_layout(name, object)?;
        if array.buffer.is_c_contiguous() {
            return Ok(array);
        }
        Err(array.refuse("strides", array.buffer.strides(), "a C-contiguous array"))
    }

    /// A two-dimensional array whose rows may have gaps between them.
    pub fn with_gaps(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut array = Self::of_any_layout(name, object)?;
        let &[rows, columns] = array.buffer.shape() else {
            return Err(array.refuse("shape", array.buffer.shape(), "2 dimensions"));
        };
        array.stride = columns;
        if array.buffer.is_c_contiguous() {
            return Ok(array);
        }
        let number = size_of::<T>() as isize;
        match *array.buffer.strides() {
            [row, column]
                if (column == number || columns <= 1)
                    && row >= columns as isize * number
                    && row % number == 0 =>
            {
                array.stride = (row / number) as usize;
                Ok(array)
            }
            _ if rows <= 1 && columns <= 1 => Ok(array),
            ref strides => {
                Err(array.refuse("strides", strides, "rows of neighbouring numbers, in order"))
            }
        }
    }

    fn of_any_layout(name: &'static str, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object).map_err(|error| {
            invalid_buffer(format!(
                "{name}: required an array of {}: {error}",
                T::DTYPE
            ))
        })?;
        let format = buffer.format();
        // A byte order mark other than ours is as foreign as another dtype.
        let swapped = matches!(format.to_bytes(), [b'>' | b'!', ..]);
        if swapped
            || !T::is(ElementType::from_format(format))
            || buffer.item_size() != size_of::<T>()
        {
            let format = format.to_string_lossy();
            return Err(invalid_buffer(format!(
                "{name}: found dtype {format:?}, required {}",
                T::DTYPE
            )));
        }
        if !buffer.buf_ptr().cast::<T>().is_aligned() {
            return Err(invalid_buffer(format!(
                "{name}: its memory is not aligned to its numbers"
            )));
        }
        Ok(Self {
            name,
            buffer,
            stride: 0,
            number: PhantomData,
        })
    }

    fn refuse(&self, what: &str, found: impl std::fmt::Debug, required: &str) -> PyErr {
        invalid_buffer(format!(
            "{}: found {what} {found:?}, required {required}",
            self.name
        ))
    }

    /// Numbers along each axis.
    pub fn shape(&self) -> &[usize] {
        self.buffer.shape()
    }

    /// Numbers from one row to the next of an array [`Array::with_gaps`].
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The lengths of the axes, if there are `N`.
    pub fn axes<const N: usize>(&self) -> PyResult<[usize; N]> {
        let found = self.shape().try_into();
        found.map_err(|_| self.refuse("shape", self.shape(), &format!("{N} dimensions")))
    }

    pub fn check_shape(&self, required: &[usize]) -> PyResult<()> {
        if self.shape() == required {
            return Ok(());
        }
        Err(self.refuse("shape", self.shape(), &format!("shape {required:?}")))
    }

    pub fn check_writable(&self) -> PyResult<()> {
        if self.buffer.readonly() {
            return Err(invalid_buffer(format!(
                "{}: found a read-only array, required a writable one",
                self.name
            )));
        }
        Ok(())
    }

    /// That no number of this array is one of the other's.
    pub fn check_apart<U: Number>(&self, other: &Array<U>) -> PyResult<()> {
        let (ours, theirs) = (self.addresses(), other.addresses());
        if ours.start < theirs.end && theirs.start < ours.end {
            let names = format!("{} and {}", self.name, other.name);
            return Err(invalid_buffer(format!(
                "{names}: found memory in common, required separate arrays"
            )));
        }
        Ok(())
    }

    fn addresses(&self) -> Range<usize> {
        let start = self.buffer.buf_ptr() as usize;
        start..start + self.len() * size_of::<T>()
    }

    /// Numbers from the first to the last, gaps included.
    fn len(&self) -> usize {
        match *self.shape() {
            [rows, columns] if rows > 0 && self.stride > columns => {
                (rows - 1) * self.stride + columns
            }
            _ => self.buffer.item_count(),
        }
    }

    /// The numbers, gaps included: valid, aligned and in place as long as `self` lives.
    ///
    /// Not whether others use them meanwhile: that is for the caller to know before making a reference of it.
    pub fn as_ptr(&self) -> *mut [T] {
        match self.len() {
            // An empty array need not have an address.
            0 => ptr::slice_from_raw_parts_mut(NonNull::dangling().as_ptr(), 0),
            len => ptr::slice_from_raw_parts_mut(self.buffer.buf_ptr().cast(), len),
        }
    }
}
