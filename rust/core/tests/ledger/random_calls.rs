//! Calls at random, in the proportions that keep tiny pools between empty and full.

use looseleaf::BlockId;

use super::Worker;

/// A small multiplicative generator; the tests need variety, not quality.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % bound
    }
}

impl Worker {
    pub fn make_random_call(&mut self, rng: &mut Rng) {
        let num_keys = self.ledger.num_keys;
        let blocks = self.ledger.pool.num_blocks() as u64;
        let code = rng.below(num_keys);
        match rng.below(17) {
            0..=1 => {
                self.allocate(1 + rng.below(3) as usize);
            }
            2 => {
                let codes = [0, 1, 2].map(|i| (code + i) % num_keys);
                self.admit(&codes, rng.below(3) as usize);
            }
            3..=6 => {
                self.hit(code);
            }
            7..=9 => self.publish(code),
            10 => self.rewrite(code),
            11 => self.share(),
            // Anybody may retract anything. A block of ours may then look private to nobody but
            // us, which is why others only write to what they have retracted themselves.
            12 => self.retract(1 + rng.below(blocks - 1) as BlockId),
            13 => self.reset(),
            _ => self.release_from(rng.below(self.held.len() as u64 + 1) as usize),
        }
    }
}
