//! Rules about the source that the compiler does not know.
#![cfg(not(any(loom, shuttle)))]

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
