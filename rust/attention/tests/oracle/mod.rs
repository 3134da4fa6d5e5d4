//! Sequences in a cache of shuffled blocks, and their attention the textbook way in `f64`.

use looseleaf_attention::{
    AttentionError, Batch, BlockTables, CacheShape, Element, PagedAttention, ScoreTerms,
};

/// Numbers that look random and are the same every time.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    fn bits(&mut self) -> u64 {
        // Splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in [−1.5, 1.5).
    fn next<E: Element>(&mut self) -> E {
        E::narrow((self.bits() >> 40) as f32 / (1u64 << 24) as f32 * 3.0 - 1.5)
    }

    fn take<E: Element>(&mut self, count: usize) -> Vec<E> {
        (0..count).map(|_| self.next()).collect()
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, (self.bits() % (last as u64 + 1)) as usize);
        }
    }
}

/// One row: keys in all, and query tokens, which sit at the last of them.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    pub keys: usize,
    pub tokens: usize,
}

/// A step over sequences whose keys and values are kept beside the cache for the oracle.
pub struct Scene<E> {
    pub shape: CacheShape,
    pub num_heads: usize,
    pub cache: Vec<E>,
    /// For each row `[keys][num_kv_heads][head_size]`.
    pub keys: Vec<Vec<E>>,
    pub values: Vec<Vec<E>>,
    pub queries: Vec<E>,
    pub tables: Vec<i32>,
    pub width: usize,
    pub seq_lens: Vec<i32>,
    pub cu_seqlens_q: Vec<i32>,
    pub num_tokens: usize,
}

const LAYER: usize = 1;

impl<E: Element> Scene<E> {
    /// Rows of these lengths, and `padding` query tokens behind the last; what no row owns is NaN.
    pub fn new(
        block_size: usize,
        kv_heads: usize,
        group: usize,
        head_size: usize,
        lengths: &[Length],
        padding: usize,
    ) -> Scene<E> {
        let mut numbers = Numbers::new((block_size * 1000 + head_size) as u64);
        let width = lengths
            .iter()
            .map(|row| row.keys.div_ceil(block_size))
            .max()
            .unwrap_or(0)
            + 1;
        let num_blocks = lengths.len() * width + 2;
        let shape = CacheShape {
            num_blocks,
            num_layers: 3,
            block_size,
            num_kv_heads: kv_heads,
            head_size,
        };
        let mut ids: Vec<i32> = (0..num_blocks as i32).collect();
        numbers.shuffle(&mut ids);
        let token = kv_heads * head_size;
        let mut keys = Vec::new();
        let mut values = Vec::new();
        let mut cu_seqlens_q = vec![0];
        for row in lengths {
            keys.push(numbers.take(row.keys * token));
            values.push(numbers.take(row.keys * token));
            cu_seqlens_q.push(cu_seqlens_q.last().unwrap() + row.tokens as i32);
        }
        let num_tokens = *cu_seqlens_q.last().unwrap() as usize + padding;
        let queries = numbers.take(num_tokens * kv_heads * group * head_size);
        let elements = num_blocks * 3 * token * 2 * block_size;
        let mut scene = Scene {
            shape,
            num_heads: kv_heads * group,
            cache: vec![E::narrow(f32::NAN); elements],
            keys,
            values,
            queries,
            tables: ids[..lengths.len() * width].to_vec(),
            width,
            seq_lens: lengths.iter().map(|row| row.keys as i32).collect(),
            cu_seqlens_q,
            num_tokens,
        };
        scene.write();
        scene
    }

    fn write(&mut self) {
        let attention = PagedAttention::new(self.shape, 1).unwrap();
        for row in 0..self.keys.len() {
            let slots: Vec<i64> = (0..self.seq_lens[row] as usize)
                .map(|position| {
                    let block = self.tables[row * self.width + position / self.shape.block_size];
                    i64::from(block) * self.shape.block_size as i64
                        + (position % self.shape.block_size) as i64
                })
                .collect();
            let (keys, values) = (&self.keys[row], &self.values[row]);
            attention
                .write(&mut self.cache, LAYER, keys, values, &slots)
                .unwrap();
        }
    }

    pub fn attend(
        &self,
        attention: &PagedAttention,
        terms: &ScoreTerms<'_>,
    ) -> Result<Vec<E>, AttentionError> {
        let batch = Batch {
            num_tokens: self.num_tokens,
            num_heads: self.num_heads,
            block_tables: BlockTables::new(
                &self.tables,
                self.seq_lens.len(),
                self.width,
                self.width,
            )?,
            seq_lens: &self.seq_lens,
            cu_seqlens_q: &self.cu_seqlens_q,
        };
        let mut out = vec![E::narrow(f32::NAN); self.queries.len()];
        attention.attend(&self.cache, LAYER, &self.queries, &batch, terms, &mut out)?;
        Ok(out)
    }

    /// The same by the definition: one softmax over all keys that each token sees.
    pub fn expected(&self, terms: &ScoreTerms<'_>) -> Vec<f64> {
        let head_size = self.shape.head_size;
        let kv_heads = self.shape.num_kv_heads;
        let group = self.num_heads / kv_heads;
        let mut out = vec![0.0; self.queries.len()];
        for row in 0..self.keys.len() {
            let (start, end) = (
                self.cu_seqlens_q[row] as usize,
                self.cu_seqlens_q[row + 1] as usize,
            );
            for token in start..end {
                let last = self.seq_lens[row] as usize - (end - token);
                let window = terms.sliding_window.unwrap_or(usize::MAX);
                let first = (last + 1).saturating_sub(window);
                for head in 0..self.num_heads {
                    let at = (token * self.num_heads + head) * head_size;
                    let query = &self.queries[at..at + head_size];
                    let of = |from: &[E], position: usize| -> Vec<f64> {
                        let start = (position * kv_heads + head / group) * head_size;
                        from[start..start + head_size]
                            .iter()
                            .map(|e| f64::from(e.widen()))
                            .collect()
                    };
                    let scores: Vec<f64> = (first..=last)
                        .map(|position| {
                            let key = of(&self.keys[row], position);
                            let dot: f64 = query
                                .iter()
                                .zip(key)
                                .map(|(q, k)| f64::from(q.widen()) * k)
                                .sum();
                            let scaled = dot * f64::from(terms.scale);
                            let cap = terms.softcap.map(f64::from);
                            cap.map_or(scaled, |cap| cap * (scaled / cap).tanh())
                        })
                        .collect();
                    let sink = terms.sinks.map(|sinks| f64::from(sinks[head]));
                    let max = scores
                        .iter()
                        .copied()
                        .chain(sink)
                        .fold(f64::NEG_INFINITY, f64::max);
                    let weights = scores.iter().map(|score| (score - max).exp());
                    let total: f64 =
                        weights.clone().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
                    for (position, weight) in (first..=last).zip(weights) {
                        let value = of(&self.values[row], position);
                        for (out, value) in out[at..at + head_size].iter_mut().zip(value) {
                            *out += weight / total * value;
                        }
                    }
                }
            }
        }
        out
    }
}

/// Relative error in the Euclidean norm; infinite when anything is not a number.
pub fn error<E: Element>(found: &[E], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let differences = found
        .iter()
        .zip(expected)
        .map(|(f, e)| (f64::from(f.widen()) - e).powi(2));
    let norm: f64 = expected.iter().map(|e| e * e).sum();
    let error = (differences.sum::<f64>() / norm).sqrt();
    if error.is_nan() { f64::INFINITY } else { error }
}
