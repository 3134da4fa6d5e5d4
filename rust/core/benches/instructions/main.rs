//! How many instructions does an operation take?
//!
//! The program makes the calls and `benches/instructions.py` counts, by running it under callgrind
//! twice: with so many calls and with twice as many. What is not a call is in both, and cancels.
//!
//! ```text
//! instructions list               each row's name, calls, and whether its count is the same everywhere
//! instructions run NAME CALLS     makes them, on what was prepared for twice the row's calls
//! ```

mod hash_rows;
mod manager_rows;
mod pool_rows;
#[path = "../pools/mod.rs"]
#[allow(dead_code, unused_imports, reason = "the lists are not counted")]
mod pools;
#[path = "../scripts/mod.rs"]
#[allow(dead_code, reason = "single calls are counted apart")]
mod scripts;

use std::env;
use std::process::ExitCode;

/// Makes the call of this number.
type Call = Box<dyn FnMut(usize)>;

/// An operation that is counted.
struct Row {
    name: &'static str,
    /// How many calls the smaller run makes.
    calls: usize,
    /// Whether the count depends on nothing but this program. Of the rest, the program asks the
    /// processor what it can do.
    is_portable: bool,
    /// Makes ready for so many calls.
    prepare: fn(usize) -> Call,
}

impl Row {
    const fn new(name: &'static str, calls: usize, prepare: fn(usize) -> Call) -> Self {
        Self {
            name,
            calls,
            is_portable: true,
            prepare,
        }
    }
}

fn rows() -> impl Iterator<Item = &'static Row> {
    let all = [pool_rows::ROWS, manager_rows::ROWS, hash_rows::ROWS];
    all.into_iter().flatten()
}

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["list"] => {
            for row in rows() {
                println!("{}\t{}\t{}", row.name, row.calls, row.is_portable);
            }
            ExitCode::SUCCESS
        }
        ["run", name, calls] => match (rows().find(|row| row.name == name), calls.parse()) {
            (Some(row), Ok(calls)) if calls <= 2 * row.calls => {
                let mut call = (row.prepare)(2 * row.calls);
                (0..calls).for_each(&mut call);
                ExitCode::SUCCESS
            }
            _ => {
                eprintln!("no row {name} with {calls} calls; see `instructions list`");
                ExitCode::from(2)
            }
        },
        // As `cargo bench` and `cargo test --benches` call it.
        _ => {
            println!("instructions: `python benches/instructions.py` counts them");
            ExitCode::SUCCESS
        }
    }
}
