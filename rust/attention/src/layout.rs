//! Where a token's keys and values lie in the cache.
//!
//! The cache is one run of numbers, block-major: `[num_blocks][num_layers][num_kv_heads][2 · head_size · block_size]`.
//! The last part holds, for one block, layer and head, the keys transposed, `[head_size][block_size]`, and right
//! behind them the values, `[block_size][head_size]`. Transposed keys give the scores of neighbouring tokens in
//! neighbouring lanes, with no sum across a vector; keys and values side by side make one run to read.

use crate::element::Element;
use crate::error::AttentionError;

/// Largest supported head size.
pub const MAX_HEAD_SIZE: usize = 256;

/// Head sizes and block sizes are multiples of this.
pub const GRAIN: usize = 8;

/// The shape of a cache: every layer alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheShape {
    /// Blocks, the null block included.
    pub num_blocks: usize,
    /// Layers in each block.
    pub num_layers: usize,
    /// Tokens in each block, a multiple of 8.
    pub block_size: usize,
    /// Key/value heads of a layer.
    pub num_kv_heads: usize,
    /// Numbers in one head of a token, a multiple of 8 up to 256.
    pub head_size: usize,
}

/// A [`CacheShape`] that was checked, and the arithmetic on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    shape: CacheShape,
    num_elements: usize,
}

impl Layout {
    /// Checks the shape.
    ///
    /// # Errors
    /// [`AttentionError::Setting`] when a size is zero, not a multiple of 8 where it has to be, or
    /// over the limit, or when the whole does not fit in the address space.
    pub fn new(shape: CacheShape) -> Result<Layout, AttentionError> {
        let CacheShape {
            num_blocks,
            num_layers,
            block_size,
            num_kv_heads,
            head_size,
        } = shape;
        let grained = |size: usize| size > 0 && size.is_multiple_of(GRAIN);
        if !grained(head_size) || head_size > MAX_HEAD_SIZE {
            return Err(AttentionError::setting(
                "head_size",
                head_size,
                "a multiple of 8 from 8 to 256",
            ));
        }
        if !grained(block_size) {
            return Err(AttentionError::setting(
                "block_size",
                block_size,
                "a multiple of 8 from 8 up",
            ));
        }
        // Block ids are int32.
        if num_blocks == 0 || i32::try_from(num_blocks).is_err() {
            return Err(AttentionError::setting(
                "num_blocks",
                num_blocks,
                "1 to 2147483647",
            ));
        }
        for (field, count) in [("num_layers", num_layers), ("num_kv_heads", num_kv_heads)] {
            if count == 0 {
                return Err(AttentionError::setting(field, count, "1 or more"));
            }
        }
        let num_elements = [
            2,
            head_size,
            block_size,
            num_kv_heads,
            num_layers,
            num_blocks,
        ]
        .into_iter()
        .try_fold(1usize, usize::checked_mul)
        .filter(|&elements| elements <= isize::MAX as usize / size_of::<f32>());
        let too_large = || {
            AttentionError::setting(
                "num_blocks",
                num_blocks,
                "a cache that fits in the address space",
            )
        };
        Ok(Layout {
            shape,
            num_elements: num_elements.ok_or_else(too_large)?,
        })
    }

    /// The shape this layout is for.
    pub fn shape(&self) -> &CacheShape {
        &self.shape
    }

    /// Numbers in the whole cache.
    pub fn num_elements(&self) -> usize {
        self.num_elements
    }

    /// Numbers in one block, all layers.
    pub fn block_elements(&self) -> usize {
        self.num_elements / self.shape.num_blocks
    }

    /// Keys, or values, of one block, layer and head.
    fn half(&self) -> usize {
        self.shape.head_size * self.shape.block_size
    }

    /// First element of (block, layer, head).
    fn head_start(&self, block: usize, layer: usize, head: usize) -> usize {
        ((block * self.shape.num_layers + layer) * self.shape.num_kv_heads + head) * 2 * self.half()
    }

    /// One token's keys and values, `[num_kv_heads][head_size]`, into its slot, which is within the cache.
    pub(crate) fn store<E: Element>(&self, cache: &mut [E], slot: Slot, keys: &[E], values: &[E]) {
        let CacheShape {
            block_size,
            head_size,
            ..
        } = self.shape;
        let heads = keys
            .chunks_exact(head_size)
            .zip(values.chunks_exact(head_size));
        for (head, (key, value)) in heads.enumerate() {
            let start = self.head_start(slot.block, slot.layer, head);
            let (keys, values) = cache[start..start + 2 * self.half()].split_at_mut(self.half());
            for (row, &element) in keys.chunks_exact_mut(block_size).zip(key) {
                row[slot.offset] = element;
            }
            values[slot.offset * head_size..][..head_size].copy_from_slice(value);
        }
    }

    /// One layer and head of the cache, to be read. `layer` and `head` are in range.
    pub(crate) fn head<'a, E: Element>(
        &'a self,
        cache: &'a [E],
        layer: usize,
        head: usize,
    ) -> HeadCache<'a, E> {
        HeadCache {
            layout: self,
            cache,
            layer,
            head,
        }
    }
}

/// A token's place in one layer of the cache.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) block: usize,
    pub(crate) layer: usize,
    pub(crate) offset: usize,
}

/// The blocks of one layer and head.
#[derive(Clone, Copy)]
pub(crate) struct HeadCache<'a, E> {
    layout: &'a Layout,
    cache: &'a [E],
    layer: usize,
    head: usize,
}

impl<'a, E: Element> HeadCache<'a, E> {
    #[inline(always)]
    pub(crate) fn block_size(&self) -> usize {
        self.layout.shape.block_size
    }

    #[inline(always)]
    pub(crate) fn head_size(&self) -> usize {
        self.layout.shape.head_size
    }

    /// The keys, `[head_size][block_size]`, and values, `[block_size][head_size]`, of a block.
    #[inline(always)]
    pub(crate) fn block(&self, block: usize) -> (&'a [E], &'a [E]) {
        let half = self.layout.half();
        let start = self.layout.head_start(block, self.layer, self.head);
        self.cache[start..start + 2 * half].split_at(half)
    }
}

#[cfg(test)]
mod tests {
    use super::{CacheShape, Layout};
    use crate::error::{AttentionError, Mismatch};

    const SHAPE: CacheShape = CacheShape {
        num_blocks: 2,
        num_layers: 3,
        block_size: 16,
        num_kv_heads: 4,
        head_size: 64,
    };

    fn refusal(shape: CacheShape) -> Mismatch {
        match Layout::new(shape) {
            Err(AttentionError::Setting(mismatch)) => mismatch,
            _ => panic!("{shape:?} was not refused as a setting"),
        }
    }

    #[test]
    fn sizes_that_the_kernels_cannot_do_are_refused_with_those_they_can() {
        for head_size in [0, 4, 60, 264, 512] {
            let found = refusal(CacheShape { head_size, ..SHAPE }).to_string();
            let required = "required a multiple of 8 from 8 to 256";
            assert_eq!(found, format!("head_size: found {head_size}, {required}"));
        }
        for block_size in [0, 1, 12] {
            let found = refusal(CacheShape {
                block_size,
                ..SHAPE
            })
            .to_string();
            assert_eq!(
                found,
                format!("block_size: found {block_size}, required a multiple of 8 from 8 up")
            );
        }
    }

    #[test]
    fn counts_that_are_zero_or_too_large_are_refused() {
        assert_eq!(
            refusal(CacheShape {
                num_blocks: 0,
                ..SHAPE
            })
            .argument,
            "num_blocks"
        );
        assert_eq!(
            refusal(CacheShape {
                num_blocks: 1 << 31,
                ..SHAPE
            })
            .argument,
            "num_blocks"
        );
        assert_eq!(
            refusal(CacheShape {
                num_layers: 0,
                ..SHAPE
            })
            .argument,
            "num_layers"
        );
        assert_eq!(
            refusal(CacheShape {
                num_kv_heads: 0,
                ..SHAPE
            })
            .argument,
            "num_kv_heads"
        );
        let huge = refusal(CacheShape {
            num_layers: usize::MAX,
            ..SHAPE
        });
        assert_eq!(huge.required, "a cache that fits in the address space");
    }

    #[test]
    fn blocks_layers_and_heads_tile_the_cache_without_gaps() {
        let layout = Layout::new(SHAPE).unwrap();
        let cache: Vec<f32> = (0..layout.num_elements())
            .map(|element| element as f32)
            .collect();
        let mut next = 0.0;
        for block in 0..SHAPE.num_blocks {
            for layer in 0..SHAPE.num_layers {
                for head in 0..SHAPE.num_kv_heads {
                    let (keys, values) = layout.head(&cache, layer, head).block(block);
                    assert_eq!((keys[0], values[0]), (next, next + 1024.0));
                    next += (keys.len() + values.len()) as f32;
                }
            }
        }
        assert_eq!(next as usize, layout.num_elements());
        assert_eq!(
            layout.block_elements() * SHAPE.num_blocks,
            layout.num_elements()
        );
    }
}
