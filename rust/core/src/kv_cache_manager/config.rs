//! What a manager and a sequence are made from.

use crate::HashAlgo;
use crate::hash_chain::SpannedKey;
use crate::layout::GroupSpec;
use crate::manager_error::ManagerError;

/// How a [`KVCacheManager`](crate::KVCacheManager) is built.
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// The KV-cache groups, each with a block table per sequence. Their block sizes must agree.
    pub groups: Vec<GroupSpec>,
    /// Rows of a step: sequences that can hold blocks at one time.
    pub max_num_seqs: u32,
    /// The most tokens a sequence can have, prompt and output together.
    pub max_model_len: u32,
    /// The most tokens one step can compute.
    pub max_num_batched_tokens: u32,
    /// Whether blocks are reused between sequences by content.
    pub enable_prefix_caching: bool,
    /// How content is hashed.
    pub hash_algo: HashAlgo,
    /// Where hash chains start; `None` for the algorithm's fixed start.
    pub hash_seed: Option<String>,
    /// Whether a hit compares the tokens of the whole prefix, and not only its hash. The pool must
    /// [verify tokens](crate::PoolConfig::verify_tokens) in blocks of this size.
    pub verify_tokens: bool,
    /// Steps that may be prepared and not yet committed: 1 or 2.
    pub max_steps_in_flight: u8,
}

impl ManagerConfig {
    pub(super) const MAX_GROUPS: usize = 64;
    const MAX_ROWS: u64 = 1 << 16;
    const MAX_I32: u64 = i32::MAX as u64;

    pub(super) fn validate(&self) -> Result<(), ManagerError> {
        let within = |field, found: u64, most: u64, allowed| {
            if (1..=most).contains(&found) {
                return Ok(());
            }
            Err(ManagerError::InvalidConfig {
                field,
                found,
                allowed,
            })
        };
        let (lens, batch) = (
            self.max_model_len.into(),
            self.max_num_batched_tokens.into(),
        );
        within(
            "groups",
            self.groups.len() as u64,
            Self::MAX_GROUPS as u64,
            "1 to 64",
        )?;
        within(
            "max_num_seqs",
            self.max_num_seqs.into(),
            Self::MAX_ROWS,
            "1 to 65,536",
        )?;
        within("max_model_len", lens, Self::MAX_I32, "1 to 2,147,483,647")?;
        within(
            "max_num_batched_tokens",
            batch,
            Self::MAX_I32,
            "1 to 2,147,483,647",
        )?;
        within(
            "max_steps_in_flight",
            self.max_steps_in_flight.into(),
            2,
            "1 or 2",
        )?;
        let expected = self.groups[0].block_size;
        for (group, spec) in self.groups.iter().enumerate() {
            spec.validate()?;
            if spec.block_size != expected {
                let found = spec.block_size;
                return Err(ManagerError::MixedBlockSizes {
                    group,
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }
}

/// What a sequence starts from.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenParams<'a> {
    /// The prompt, at least one token.
    pub tokens: &'a [u32],
    /// Sequences share cached blocks only within one salt.
    pub salt: Option<&'a str>,
    /// What else keys and values depend on: adapters, media, embeddings.
    pub extra_keys: &'a [SpannedKey],
    /// Compute every token, for callers that want the model's output at each; the blocks are cached
    /// for others as ever.
    pub skip_reading_prefix_cache: bool,
    /// Most tokens to generate, at least 1.
    pub max_tokens: u32,
    /// Tokens to generate before an end-of-sequence or stop token counts.
    pub min_tokens: u32,
    /// Tokens that end the sequence; empty to ignore them.
    pub eos_token_ids: &'a [u32],
    /// Further tokens that end the sequence.
    pub stop_token_ids: &'a [u32],
}
