//! Cutting rows and columns into the shapes the products are compiled for.

use super::simd::Simd;
use std::ops::Range;

/// Most rows of a group, over all sets.
pub(crate) const MAX_ROWS: usize = 8;

/// Cuts rows into groups of `S::MAX_ROWS`, 4, 3, 2 and 1.
#[inline(always)]
pub(crate) fn row_groups<S: Simd>(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    const { assert!(S::MAX_ROWS <= MAX_ROWS) };
    cut(rows, |left| {
        if left >= S::MAX_ROWS {
            S::MAX_ROWS
        } else {
            left.min(4)
        }
    })
}

/// Cuts columns, a multiple of 8, into strips of two vectors (if `S::MAX_VECTORS` allows), one, and 8 columns.
#[inline(always)]
pub(crate) fn strips<S: Simd>(columns: usize) -> impl Iterator<Item = Range<usize>> {
    let widest = S::MAX_VECTORS * S::LANES;
    cut(0..columns, move |left| {
        if left >= widest {
            widest
        } else if left >= S::LANES {
            S::LANES
        } else {
            8
        }
    })
}

#[inline(always)]
fn cut(
    mut range: Range<usize>,
    next: impl Fn(usize) -> usize,
) -> impl Iterator<Item = Range<usize>> {
    std::iter::from_fn(move || {
        let start = range.start;
        (!range.is_empty()).then(|| {
            range.start += next(range.len());
            start..range.start
        })
    })
}

/// Calls `$product::<E, S, R, V>(simd, …)` for a group of `$rows` rows and a strip of `$columns` columns, with the
/// narrower set where the strip is less than a vector.
macro_rules! call_product {
    ($product:ident::<$E:ident, $S:ident>, $rows:expr, $columns:expr, $simd:ident, $($argument:expr),+ $(,)?) => {
        match $columns / $S::LANES {
            0 => call_product!(@rows $product, $E, $S, $S::Narrow, 1, $rows, $simd.narrow(), $($argument),+),
            1 => call_product!(@rows $product, $E, $S, $S, 1, $rows, $simd, $($argument),+),
            _ => call_product!(@rows $product, $E, $S, $S, 2, $rows, $simd, $($argument),+),
        }
    };
    (@rows $product:ident, $E:ident, $S:ident, $T:ty, $V:literal, $rows:expr, $($argument:expr),+) => {
        match $rows {
            8 if $S::MAX_ROWS >= 8 => $product::<$E, $T, 8, $V>($($argument),+),
            4 => $product::<$E, $T, 4, $V>($($argument),+),
            3 => $product::<$E, $T, 3, $V>($($argument),+),
            2 => $product::<$E, $T, 2, $V>($($argument),+),
            _ => $product::<$E, $T, 1, $V>($($argument),+),
        }
    };
}
pub(crate) use call_product;
