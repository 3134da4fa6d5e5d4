//! The kernels of every instruction set this machine has, against the definition in `f64`.

mod oracle;

use looseleaf_attention::{Bf16, CacheShape, Element, Isa, PagedAttention, ScoreTerms};
use oracle::{Length, Scene, error};

const PLAIN: ScoreTerms<'static> = ScoreTerms {
    scale: 0.3,
    sliding_window: None,
    softcap: None,
    sinks: None,
};

fn length(keys: usize, tokens: usize) -> Length {
    Length { keys, tokens }
}

/// Decodes, chunks, whole prompts, an idle row and edges of blocks and chunks.
fn mixed() -> Vec<Length> {
    let lengths = [
        (1, 1),
        (0, 0),
        (5, 5),
        (64, 1),
        (65, 2),
        (40, 0),
        (200, 70),
        (63, 63),
        (130, 1),
        (24, 24),
    ];
    lengths.map(|(keys, tokens)| length(keys, tokens)).to_vec()
}

/// Checks a scene on every instruction set, on one and on three threads.
fn assert_close<E: Element>(scene: &Scene<E>, terms: &ScoreTerms<'_>, bound: f64) {
    let expected = scene.expected(terms);
    for isa in Isa::available() {
        let one = PagedAttention::new(scene.shape, 1).unwrap().with_isa(isa);
        let found = scene.attend(&one, terms).unwrap();
        let error = error(&found, &expected);
        assert!(
            error <= bound,
            "{} {:?}: {error:e}",
            isa.name(),
            scene.shape
        );
        let three = PagedAttention::new(scene.shape, 3).unwrap().with_isa(isa);
        let again = scene.attend(&three, terms).unwrap();
        let same = found
            .iter()
            .zip(&again)
            .all(|(a, b)| a.widen().to_bits() == b.widen().to_bits());
        assert!(
            same,
            "{}: results depend on the number of threads",
            isa.name()
        );
    }
}

#[test]
fn every_head_size_agrees_with_the_definition() {
    for head_size in (8..=256).step_by(8) {
        let lengths = [length(70, 1), length(9, 9)];
        assert_close::<f32>(&Scene::new(16, 1, 2, head_size, &lengths, 1), &PLAIN, 1e-6);
        assert_close::<Bf16>(&Scene::new(16, 1, 2, head_size, &lengths, 1), &PLAIN, 3e-3);
    }
}

#[test]
fn every_block_size_agrees_with_the_definition() {
    for block_size in [8, 16, 24, 32, 40, 48, 64, 72, 96, 128, 200, 256] {
        assert_close::<f32>(&Scene::new(block_size, 2, 1, 24, &mixed(), 3), &PLAIN, 1e-6);
        assert_close::<Bf16>(&Scene::new(block_size, 2, 1, 24, &mixed(), 3), &PLAIN, 3e-3);
    }
}

#[test]
fn every_group_size_agrees_with_the_definition() {
    for group in [1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 71] {
        assert_close::<f32>(&Scene::new(16, 2, group, 40, &mixed(), 2), &PLAIN, 1e-6);
    }
}

#[test]
fn optional_terms_agree_with_the_definition() {
    let sinks = [0.5, -30.0, 8.0, 1.0, f32::NEG_INFINITY, 0.0];
    for sliding_window in [None, Some(1), Some(7), Some(64), Some(100)] {
        for softcap in [None, Some(2.0)] {
            for sinks in [None, Some(&sinks[..])] {
                let terms = ScoreTerms {
                    scale: 0.4,
                    sliding_window,
                    softcap,
                    sinks,
                };
                assert_close::<f32>(&Scene::new(16, 2, 3, 32, &mixed(), 1), &terms, 1e-6);
            }
        }
    }
}

#[test]
fn long_contexts_are_cut_and_merged_without_loss() {
    let lengths = [
        length(1023, 1),
        length(1024, 1),
        length(1025, 3),
        length(3000, 1),
    ];
    let sinks = [1.0, -1.0];
    let windowed = ScoreTerms {
        sliding_window: Some(1500),
        softcap: Some(20.0),
        sinks: Some(&sinks),
        ..PLAIN
    };
    for terms in [PLAIN, windowed] {
        assert_close::<f32>(&Scene::new(16, 1, 2, 64, &lengths, 0), &terms, 1e-6);
    }
}

#[test]
fn blocks_before_the_window_need_not_exist() {
    let mut scene = Scene::<f32>::new(16, 1, 2, 16, &[length(3000, 2)], 0);
    let attention = PagedAttention::new(scene.shape, 1).unwrap();
    let terms = ScoreTerms {
        sliding_window: Some(1500),
        ..PLAIN
    };
    let expected = scene.attend(&attention, &terms).unwrap();
    scene.tables[..(2999 - 1500) / 16].fill(-1);
    assert_eq!(scene.attend(&attention, &terms).unwrap(), expected);
}

#[test]
fn a_row_does_not_depend_on_the_others_in_its_batch() {
    let scene = Scene::<f32>::new(16, 2, 3, 64, &mixed(), 0);
    let attention = PagedAttention::new(scene.shape, 2).unwrap();
    let together = scene.attend(&attention, &PLAIN).unwrap();
    let token = scene.num_heads * scene.shape.head_size;
    for row in 0..scene.seq_lens.len() {
        let (start, end) = (
            scene.cu_seqlens_q[row] as usize,
            scene.cu_seqlens_q[row + 1] as usize,
        );
        let alone = Scene {
            cache: scene.cache.clone(),
            keys: Vec::new(),
            values: Vec::new(),
            queries: scene.queries[start * token..end * token].to_vec(),
            tables: scene.tables[row * scene.width..(row + 1) * scene.width].to_vec(),
            seq_lens: vec![scene.seq_lens[row]],
            cu_seqlens_q: vec![0, (end - start) as i32],
            num_tokens: end - start,
            ..scene
        };
        let found = alone.attend(&attention, &PLAIN).unwrap();
        assert_eq!(found, together[start * token..end * token], "row {row}");
    }
}

#[test]
fn a_nan_of_its_own_reaches_the_tokens_that_see_it_and_no_others() {
    let mut scene = Scene::<f32>::new(16, 1, 2, 16, &[length(50, 50)], 0);
    let attention = PagedAttention::new(scene.shape, 1).unwrap();
    let clean = scene.attend(&attention, &PLAIN).unwrap();
    let slot = i64::from(scene.tables[20 / 16]) * 16 + 20 % 16;
    let key = vec![0.0; 16];
    let value = vec![f32::NAN; 16];
    attention
        .write(&mut scene.cache, 1, &key, &value, &[slot])
        .unwrap();
    let found = scene.attend(&attention, &PLAIN).unwrap();
    assert_eq!(found[..20 * 32], clean[..20 * 32]);
    assert!(found[20 * 32..].iter().all(|out| out.is_nan()));
}

#[test]
fn copied_blocks_are_equal_in_all_layers_and_nothing_else_changes() {
    let shape = CacheShape {
        num_blocks: 5,
        num_layers: 3,
        block_size: 8,
        num_kv_heads: 2,
        head_size: 8,
    };
    let attention = PagedAttention::new(shape, 1).unwrap();
    let before: Vec<f32> = (0..attention.layout().num_elements())
        .map(|i| i as f32)
        .collect();
    let block = attention.layout().block_elements();
    let of = |cache: &[f32], id: usize| cache[id * block..(id + 1) * block].to_vec();
    let mut cache = before.clone();
    attention
        .copy_blocks(&mut cache, &[[1, 4], [4, 0], [2, 2]])
        .unwrap();
    for (id, source) in [(0, 1), (1, 1), (2, 2), (3, 3), (4, 1)] {
        assert_eq!(of(&cache, id), of(&before, source), "block {id}");
    }
    assert!(attention.copy_blocks(&mut cache, &[[0, 5]]).is_err());
    assert!(attention.copy_blocks(&mut cache, &[[-1, 0]]).is_err());
}

#[test]
fn a_write_changes_its_slots_and_padding_changes_nothing() {
    let shape = CacheShape {
        num_blocks: 2,
        num_layers: 2,
        block_size: 8,
        num_kv_heads: 2,
        head_size: 8,
    };
    let attention = PagedAttention::new(shape, 1).unwrap();
    let mut cache = vec![7.0f32; attention.layout().num_elements()];
    let data = [1.0f32; 3 * 16];
    attention
        .write(&mut cache, 1, &data, &data, &[-1, 11, -1])
        .unwrap();
    let written = |layer: usize| {
        let layers: Vec<&[f32]> = cache.chunks_exact(cache.len() / 4).collect();
        layers[2 + layer].iter().filter(|&&e| e == 1.0).count()
    };
    assert_eq!((written(0), written(1)), (0, 2 * 16));
    assert_eq!(
        cache.iter().filter(|&&e| e == 7.0).count(),
        cache.len() - 32
    );
}

#[test]
fn refused_writes_leave_the_cache_as_it_was() {
    let shape = CacheShape {
        num_blocks: 2,
        num_layers: 1,
        block_size: 8,
        num_kv_heads: 1,
        head_size: 8,
    };
    let attention = PagedAttention::new(shape, 1).unwrap();
    let mut cache = vec![7.0f32; attention.layout().num_elements()];
    let data = [1.0f32; 16];
    for slots in [[0, 16], [-2, 0], [0, i64::MAX]] {
        let refused = attention
            .write(&mut cache, 0, &data, &data, &slots)
            .unwrap_err();
        assert!(refused.to_string().contains("slot_mapping"), "{refused}");
    }
    assert!(
        attention
            .write(&mut cache, 1, &data, &data, &[0, 1])
            .is_err()
    );
    assert!(
        attention
            .write(&mut cache, 0, &data, &data[..8], &[0, 1])
            .is_err()
    );
    assert!(cache.iter().all(|&element| element == 7.0));
}

#[test]
fn contradictory_batches_are_refused_by_name() {
    let good = || Scene::<f32>::new(16, 2, 2, 16, &[length(20, 4), length(3, 3)], 0);
    let attention = PagedAttention::new(good().shape, 1).unwrap();
    let refusal = |change: &dyn Fn(&mut Scene<f32>), terms: ScoreTerms<'_>| {
        let mut scene = good();
        change(&mut scene);
        scene.attend(&attention, &terms).unwrap_err().to_string()
    };
    let same = |_: &mut Scene<f32>| {};
    let cases = [
        (
            refusal(&|s| s.seq_lens[0] = 3, PLAIN),
            "seq_lens: found 3, required 4 or more in row 0",
        ),
        (
            refusal(&|s| s.seq_lens[0] = -1, PLAIN),
            "seq_lens: found -1",
        ),
        (
            refusal(&|s| s.seq_lens[1] = 999, PLAIN),
            "block_tables: found 3 columns, required 63",
        ),
        (
            refusal(&|s| s.tables[1] = 8, PLAIN),
            "block_tables: found 8, required 0 to 7 in row 0",
        ),
        (
            refusal(&|s| s.tables[0] = -1, PLAIN),
            "block_tables: found -1",
        ),
        (
            refusal(&|s| s.cu_seqlens_q[0] = 1, PLAIN),
            "cu_seqlens_q[0]: found 1, required 0",
        ),
        (
            refusal(&|s| s.cu_seqlens_q[1] = 9, PLAIN),
            "cu_seqlens_q: found 9",
        ),
        (
            refusal(&|s| s.cu_seqlens_q[1] = -1, PLAIN),
            "cu_seqlens_q: found -1",
        ),
        (
            refusal(&|s| s.cu_seqlens_q.truncate(2), PLAIN),
            "cu_seqlens_q: found length 2",
        ),
        (refusal(&|s| s.num_heads = 3, PLAIN), "q: found"),
        (
            refusal(&|s| s.queries.truncate(s.queries.len() - 1), PLAIN),
            "q: found length",
        ),
        (
            refusal(&|s| s.cache.truncate(s.cache.len() - 1), PLAIN),
            "cache: found length",
        ),
        (
            refusal(&|s| s.tables.truncate(s.tables.len() - 1), PLAIN),
            "block_tables: found",
        ),
        (
            refusal(
                &same,
                ScoreTerms {
                    scale: f32::NAN,
                    ..PLAIN
                },
            ),
            "scale: found NaN",
        ),
        (
            refusal(
                &same,
                ScoreTerms {
                    softcap: Some(0.0),
                    ..PLAIN
                },
            ),
            "softcap: found 0",
        ),
        (
            refusal(
                &same,
                ScoreTerms {
                    sliding_window: Some(0),
                    ..PLAIN
                },
            ),
            "sliding_window: found 0",
        ),
        (
            refusal(
                &same,
                ScoreTerms {
                    sinks: Some(&[0.0]),
                    ..PLAIN
                },
            ),
            "sinks: found length 1",
        ),
    ];
    for (found, expected) in cases {
        assert!(
            found.starts_with(expected),
            "{found:?} should start with {expected:?}"
        );
    }
}
