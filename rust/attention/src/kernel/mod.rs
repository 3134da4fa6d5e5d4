//! Attention of one query tile to one stretch of the cache: the code that is compiled once per instruction set.
//!
//! Everything here is inlined into the functions of `isa.rs`, which are compiled for one set each.

mod chunk;
mod math;
mod products;
mod shapes;
mod simd;
mod softmax;
mod state;
mod tile;

pub(crate) use simd::*;
pub(crate) use state::State;
pub(crate) use tile::{Scratch, Terms, Tile, accumulate};
