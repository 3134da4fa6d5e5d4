//! Managers under hashes of four bits, which collide all the time. With tokens verified every row
//! reads its own prefix all the same; `manager_model` adds random histories.
#![cfg(not(any(loom, shuttle)))]

mod simulation;

use looseleaf::SeqHandle;
use simulation::{Engine, Setup};

fn colliding() -> Setup {
    Setup {
        usable_blocks: 200,
        hash_bits: Some(4),
        verify_tokens: true,
        ..Setup::default()
    }
}

/// A hundred prompts of 1 to 40 tokens, some with common beginnings.
fn random_prompts() -> Vec<Vec<u32>> {
    let mut state = 5_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (state >> 33) % below
    };
    let mut prompts: Vec<Vec<u32>> = vec![];
    for nth in 0..100 {
        let mut prompt = match nth % 4 {
            3 => prompts[random(nth) as usize].clone(),
            _ => vec![],
        };
        prompt.truncate(20);
        let more = 1 + random(20);
        prompt.extend((0..more).map(|_| random(50) as u32));
        prompts.push(prompt);
    }
    prompts
}

/// Serves each prompt to its end, and checks at every read whose keys and values it finds.
fn serve(setup: Setup) -> (Engine, Vec<Vec<u32>>) {
    let mut engine = Engine::new(setup);
    let outputs = random_prompts().into_iter().map(|prompt| {
        let handle = engine.open(&prompt, None, 4, &[]).unwrap();
        engine.finish(handle).unwrap();
        let tokens = engine.manager.tokens(handle).unwrap().to_vec();
        engine.close(handle).unwrap();
        engine.check();
        tokens
    });
    let outputs = outputs.collect();
    (engine, outputs)
}

/// B5, vllm-project/vllm#12621, openvinotoolkit/openvino.genai#3722, guoqingbao/xinfer#405: a short
/// or predictable hash gave a prompt the keys and values of another one.
#[test]
fn a_hundred_prompts_under_a_hash_of_four_bits_write_what_they_write_without_a_cache() {
    let (engine, outputs) = serve(colliding());
    let (_, without_cache) = serve(Setup {
        prefix_caching: false,
        ..colliding()
    });
    assert_eq!(outputs, without_cache);
    assert!(engine.manager.pool().stats().collisions > 100);
    let (trusted, _) = serve(Setup {
        hash_bits: None,
        verify_tokens: false,
        ..colliding()
    });
    let hits = engine.manager.stats().prefix_hits;
    assert!(hits > 100, "{hits}");
    // With 16 hashes for all blocks some find no room in the index.
    assert!(hits <= trusted.manager.stats().prefix_hits, "{hits}");
}

/// B5, the other way round: the scenario is one in which trusting the hash is wrong.
#[test]
#[should_panic(expected = "position ")]
fn a_hundred_prompts_under_a_hash_of_four_bits_read_others_when_it_is_trusted() {
    serve(Setup {
        verify_tokens: false,
        ..colliding()
    });
}

/// Opens, admits and schedules; says how many tokens were there.
fn start(engine: &mut Engine, tokens: &[u32], salt: Option<&str>) -> (SeqHandle, u32) {
    let handle = engine.open(tokens, salt, 2, &[]).unwrap();
    let cached = engine.admit(handle).unwrap();
    let left = tokens.len() as u32 - cached;
    engine.append(handle, left, &[]).unwrap();
    (handle, cached)
}

/// Runs all to their ends.
fn finish(engine: &mut Engine, handles: &[SeqHandle]) {
    engine.prepare().unwrap();
    engine.commit().unwrap();
    for &handle in handles {
        engine.finish(handle).unwrap();
        engine.close(handle).unwrap();
    }
    engine.check();
    assert_eq!(engine.manager.stats().announced_blocks, 0);
}

#[test]
fn a_block_announced_within_a_step_is_taken_by_who_has_its_prefix_and_by_nobody_else() {
    // Every block has the same key.
    let setup = Setup {
        hash_bits: Some(0),
        ..colliding()
    };
    for groups in [1, 2] {
        let mut engine = Engine::new(Setup { groups, ..setup });
        let prompts = [
            ([1; 9], 0),
            ([2; 9], 0),
            ([1; 9], 4),
            ([1, 1, 1, 1, 2, 2, 2, 2, 2], 4),
        ];
        let mut handles = vec![];
        for (prompt, expected) in prompts {
            let (handle, cached) = start(&mut engine, &prompt, None);
            // Under one key one block is announced: the first block of the first prompt.
            assert_eq!(cached, expected, "{prompt:?}");
            handles.push(handle);
        }
        finish(&mut engine, &handles);
        for (prompt, _) in prompts {
            let (handle, cached) = start(&mut engine, &prompt, None);
            assert_eq!(cached, 8, "{prompt:?}");
            finish(&mut engine, &[handle]);
        }
    }
}

#[test]
fn tenants_whose_hashes_collide_share_nothing() {
    let mut engine = Engine::new(Setup {
        hash_bits: Some(0),
        ..colliding()
    });
    for salt in [None, Some("a"), Some("b")] {
        let (first, cached) = start(&mut engine, &[1; 9], salt);
        assert_eq!(cached, 0, "{salt:?}");
        finish(&mut engine, &[first]);
        let (again, cached) = start(&mut engine, &[1; 9], salt);
        assert_eq!(cached, 8, "{salt:?}");
        finish(&mut engine, &[again]);
    }
    // Each found the others' blocks under its key, with its own tokens.
    assert!(engine.manager.pool().stats().orphans > 0);
}

#[test]
fn what_a_preempted_sequence_left_is_found_although_its_beginning_was_computed_anew() {
    let mut engine = Engine::new(colliding());
    let tokens: Vec<u32> = (0..13).collect();
    let (handle, _) = start(&mut engine, &tokens, None);
    engine.prepare().unwrap();
    engine.commit().unwrap();
    let first = engine.blocks(handle, 0)[0];
    engine.preempt(handle).unwrap();
    engine.manager.pool().retract(first).unwrap();
    // It names its first block as before, so what comes behind it is found again.
    assert_eq!(engine.admit(handle), Ok(0));
    engine.append(handle, 4, &[]).unwrap();
    engine.prepare().unwrap();
    engine.commit().unwrap();
    let (other, cached) = start(&mut engine, &tokens, None);
    assert_eq!(cached, 12);
    assert_eq!(engine.manager.pool().stats().orphans, 0);
    finish(&mut engine, &[handle, other]);
}
