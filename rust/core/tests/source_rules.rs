//! Rules about the source that the compiler does not know.
#![cfg(not(any(loom, shuttle)))]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let nested = folders.iter().flat_map(|folder| rust_files(folder));
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "rs");
    files.into_iter().filter(is_rust).chain(nested).collect()
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

#[test]
fn only_the_sync_module_names_atomics_or_cells() {
    let source = source();
    let files = rust_files(&source);
    assert!(files.len() > 10);
    let forbidden = [
        "sync::atomic",
        "core::sync",
        "std::cell",
        "loom::",
        "shuttle::",
    ];
    for file in files {
        let relative = file.strip_prefix(&source).unwrap();
        if relative.starts_with("sync") || relative == Path::new("sync.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        for word in forbidden {
            assert!(!text.contains(word), "{} names {word}", relative.display());
        }
    }
}

/// The cells of the rows of `design.rs` that begin with the number of an invariant.
fn rows_of_invariants() -> Vec<Vec<String>> {
    let page = fs::read_to_string(source().join("design.rs")).unwrap();
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("//! | ")?.strip_suffix(" |"))
        .filter(|row| row.starts_with("INV-"));
    rows.map(|row| row.split(" | ").map(|cell| cell.replace('`', "")).collect())
        .collect()
}

/// The source of a test target, or of a module with tests of its own.
fn source_of(name: &str) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let folder = tests.join(name);
    let files = if folder.is_dir() {
        rust_files(&folder)
    } else {
        let file = format!("{name}.rs");
        let files = [tests.join(&file), source().join(&file)];
        files.into_iter().filter(|file| file.exists()).collect()
    };
    let texts = files.iter().map(|file| fs::read_to_string(file).unwrap());
    texts.collect()
}

fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<_> = text.lines().map(str::trim_start).collect();
    let starts = format!("fn {name}(");
    lines
        .windows(2)
        .any(|pair| pair[0] == "#[test]" && pair[1].starts_with(&starts))
}

#[test]
fn the_design_page_names_for_each_invariant_tests_that_exist() {
    let rows = rows_of_invariants();
    let (tests, statements): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.len() == 3);
    let numbers = |rows: &[Vec<String>]| -> BTreeSet<String> {
        rows.iter().map(|row| row[0].clone()).collect()
    };
    assert!(statements.len() > 10, "{statements:?}");
    assert_eq!(numbers(&statements), numbers(&tests));
    for row in &tests {
        let [number, target, name] = &row[..] else {
            unreachable!("rows of three cells")
        };
        assert!(
            has_test(&source_of(target), name),
            "{number}: {target} has no test {name}"
        );
    }
}
