//! What the test knows of a sequence, on its own account.

use looseleaf::FinishReason;

use super::Cell;

#[derive(Clone, Debug)]
pub struct Mirror {
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    pub salt: u64,
    pub max_tokens: u32,
    pub max_model_len: u32,
    pub eos: Vec<u32>,
    pub finished: Option<FinishReason>,
    /// Tokens that steps in flight have sampled, with the steps' numbers.
    pub sampled: Vec<(u64, u32)>,
}

impl Mirror {
    /// Adds tokens until one completes the sequence.
    pub fn push(&mut self, tokens: &[u32]) {
        for &token in tokens {
            self.tokens.push(token);
            let output = (self.tokens.len() - self.prompt_len) as u32;
            if self.eos.contains(&token) {
                self.finished = Some(FinishReason::Eos);
            } else if output >= self.max_tokens || self.tokens.len() as u32 >= self.max_model_len {
                self.finished = Some(FinishReason::Length);
            }
            if self.finished.is_some() {
                return;
            }
        }
    }

    pub fn truncate(&mut self, len: usize) {
        if len < self.tokens.len() {
            self.finished = None;
        }
        self.tokens.truncate(len);
        self.prompt_len = self.prompt_len.min(len);
    }

    /// Committed tokens and the samples that only the device has.
    pub fn known_to_device(&self) -> Vec<u32> {
        let sampled = self.sampled.iter().map(|&(_, token)| token);
        self.tokens.iter().copied().chain(sampled).collect()
    }

    /// What the sequence's first `len` slots should hold.
    pub fn cells(&self, len: usize) -> Vec<Cell> {
        Cell::sequence(self.salt, &self.tokens[..len])
    }
}
