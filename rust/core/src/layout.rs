//! What one block holds, in bytes: the layers that share a block table, and their shapes.
//!
//! Copies, swaps and tiers treat a block as so many bytes, scales included, so the arithmetic
//! lives here once.

use crate::manager_error::ManagerError;

/// The number format of cached keys and values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KvDtype {
    /// IEEE single precision, 4 bytes.
    F32,
    /// IEEE half precision, 2 bytes.
    F16,
    /// bfloat16, 2 bytes.
    Bf16,
    /// 8-bit float with 4 exponent and 3 mantissa bits, 1 byte.
    Fp8E4m3,
}

impl KvDtype {
    /// Size of one number in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8E4m3 => 1,
        }
    }
}

/// The cached state of one attention layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerSpec {
    /// Key/value heads; with grouped queries fewer than the query heads.
    pub kv_heads: u32,
    /// Numbers per key of one head.
    pub head_size_k: u32,
    /// Numbers per value of one head; 0 where values are read out of the keys (latent attention).
    pub head_size_v: u32,
    /// Format of each number.
    pub dtype: KvDtype,
    /// Bytes of quantisation scales stored with each token; 0 where scales are kept elsewhere.
    pub scale_bytes: u32,
}

impl LayerSpec {
    /// Bytes one token takes in this layer: `kv_heads · (head_size_k + head_size_v) · bytes per
    /// number + scale_bytes`.
    pub fn bytes_per_token(&self) -> u64 {
        self.wide_bytes_per_token().try_into().unwrap_or(u64::MAX)
    }

    fn wide_bytes_per_token(&self) -> u128 {
        let numbers = u128::from(self.kv_heads)
            * (u128::from(self.head_size_k) + u128::from(self.head_size_v));
        numbers * u128::from(self.dtype.bytes()) + u128::from(self.scale_bytes)
    }
}

/// How a group's layers look back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupKind {
    /// Every token's keys and values stay; a window, if there is one, is applied by mask.
    Full,
}

/// Layers that share one block table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupSpec {
    /// How the layers look back.
    pub kind: GroupKind,
    /// The layers, in the order in which a block stores them; may be empty where only block counts
    /// matter, as in a simulation.
    pub layers: Vec<LayerSpec>,
    /// Tokens per block.
    pub block_size: u32,
    /// Attention window in tokens, where the model has one.
    pub sliding_window: Option<u32>,
}

impl GroupSpec {
    /// Bytes one token takes over all layers of the group.
    pub fn bytes_per_token(&self) -> u64 {
        self.wide_bytes_per_token().try_into().unwrap_or(u64::MAX)
    }

    /// Bytes one block takes over all layers of the group.
    pub fn bytes_per_block(&self) -> u64 {
        self.wide_bytes_per_block().try_into().unwrap_or(u64::MAX)
    }

    fn wide_bytes_per_token(&self) -> u128 {
        self.layers
            .iter()
            .map(LayerSpec::wide_bytes_per_token)
            .sum()
    }

    fn wide_bytes_per_block(&self) -> u128 {
        self.wide_bytes_per_token()
            .saturating_mul(u128::from(self.block_size))
    }

    /// Checks that the sizes make sense, so that the arithmetic above is exact.
    pub(crate) fn validate(&self) -> Result<(), ManagerError> {
        let refuse = |field, found: u64, allowed| {
            Err(ManagerError::InvalidConfig {
                field,
                found,
                allowed,
            })
        };
        if self.block_size == 0 {
            return refuse("block_size", 0, "at least 1");
        }
        if self.sliding_window == Some(0) {
            return refuse("sliding_window", 0, "at least 1, or none");
        }
        for layer in &self.layers {
            if layer.kv_heads == 0 {
                return refuse("kv_heads", 0, "at least 1");
            }
            if layer.head_size_k == 0 {
                return refuse("head_size_k", 0, "at least 1");
            }
        }
        if self.wide_bytes_per_block() > u128::from(u64::MAX) {
            return refuse("bytes_per_block", u64::MAX, "a number of bytes below 2^64");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn llama3_8b() -> GroupSpec {
        let layer = LayerSpec {
            kv_heads: 8,
            head_size_k: 128,
            head_size_v: 128,
            dtype: KvDtype::Bf16,
            scale_bytes: 0,
        };
        GroupSpec {
            kind: GroupKind::Full,
            layers: vec![layer; 32],
            block_size: 16,
            sliding_window: None,
        }
    }

    /// 2 · 32 layers · 8 heads · 128 numbers · 2 bytes = 128 KiB, the figure published for this model.
    #[test]
    fn a_token_of_llama_3_8b_takes_128_kib() {
        assert_eq!(llama3_8b().bytes_per_token(), 131_072);
        assert_eq!(llama3_8b().bytes_per_block(), 16 * 131_072);
    }

    #[test]
    fn scales_and_unequal_key_and_value_sizes_are_counted() {
        let layer = LayerSpec {
            kv_heads: 1,
            head_size_k: 192,
            head_size_v: 128,
            dtype: KvDtype::Fp8E4m3,
            scale_bytes: 8,
        };
        assert_eq!(layer.bytes_per_token(), 192 + 128 + 8);
    }

    #[test]
    fn sizes_that_overflow_are_refused_and_never_wrap() {
        let mut group = llama3_8b();
        group.layers[0].kv_heads = u32::MAX;
        group.layers[0].head_size_k = u32::MAX;
        group.layers[0].head_size_v = u32::MAX;
        assert_eq!(group.bytes_per_block(), u64::MAX);
        let error = group.validate().unwrap_err();
        assert!(matches!(
            error,
            ManagerError::InvalidConfig {
                field: "bytes_per_block",
                ..
            }
        ));
    }

    #[test]
    fn sizes_of_zero_are_refused_by_name() {
        let mut group = llama3_8b();
        group.block_size = 0;
        assert!(
            group
                .validate()
                .unwrap_err()
                .to_string()
                .contains("block_size")
        );
        group = llama3_8b();
        group.layers[3].kv_heads = 0;
        assert!(
            group
                .validate()
                .unwrap_err()
                .to_string()
                .contains("kv_heads")
        );
        group = llama3_8b();
        group.sliding_window = Some(0);
        assert!(
            group
                .validate()
                .unwrap_err()
                .to_string()
                .contains("sliding_window")
        );
    }
}
