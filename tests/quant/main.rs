//! Quantized weights: bytes of the libraries, recognition, configs, errors.

mod config;
mod encode;
mod encode_reference;
mod engine_config;
mod errors;
mod goldens;
mod recognition;
mod recover;
mod reference;
mod schemes;
mod transcode;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The files that libraries wrote, and what they decode to.
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/quantized")
}

/// The files that MLX wrote.
fn mlx_fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/mlx")
}

/// Compares every golden of a folder by `compare`, which gives the layout and the bytes compared; counts the files and the
/// bytes of each layout.
fn goldens(folder: &Path, compare: fn(&Path) -> Option<(String, usize)>) -> BTreeMap<String, (usize, usize)> {
    let mut layouts = BTreeMap::<String, (usize, usize)>::new();
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "safetensors")) {
        if let Some((layout, bytes)) = compare(path) {
            let (files, sum) = layouts.entry(layout).or_default();
            (*files, *sum) = (*files + 1, *sum + bytes);
        }
    }
    layouts
}

/// Compares the goldens of the folder in `TCAST_GOLDENS`, and prints the counts.
fn report_other_goldens(compare: fn(&Path) -> Option<(String, usize)>) {
    let folder = std::env::var_os("TCAST_GOLDENS").expect("TCAST_GOLDENS names a folder");
    let layouts = goldens(Path::new(&folder), compare);
    let sum = layouts.values().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    let total = "total".to_owned();
    let rows = layouts
        .iter()
        .chain([(&total, &sum)])
        .map(|(layout, (files, bytes))| format!("{layout:18} {files:4} files {bytes:9} bytes, all equal\n"));
    std::io::stderr().write_all(rows.collect::<String>().as_bytes()).unwrap();
}
