//! Quantized checkpoints that are malformed or contradict themselves: one error each, which names the tensors or both sides,
//! and nothing is written. `fixtures/generate_bad_quantized.py` makes them.

use crate::common::{Bench, fixture};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The cases, and what `dequantize` says of each: a line for a case, with `\n` for the ends of lines.
fn expected(path: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| line.split_once('\t').map(|(name, said)| (name.to_owned(), said.replace("\\n", "\n")));
    text.lines().filter_map(line).collect()
}

/// `TCAST_REFRESH=1 cargo test --test cli dequantize_malformed` writes what is said now; the diff is to be read.
#[test]
fn a_malformed_checkpoint_is_refused_before_anything_is_written() {
    let (folder, mut said) = (fixture("bad/quantized"), BTreeMap::new());
    let table = folder.join("expected.tsv");
    for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir()) {
        let name = entry.file_name().into_string().unwrap();
        let bench = Bench::new();
        fs::create_dir(bench.path("q")).unwrap();
        for file in fs::read_dir(entry.path()).unwrap().map(Result::unwrap) {
            fs::copy(file.path(), bench.path("q").join(file.file_name())).unwrap();
        }
        for line in ["dequantize q -o out --part 1/1", "dequantize q -o out.safetensors", "dequantize q -o out"] {
            let outcome = bench.run(line);
            assert_eq!((outcome.code, &*outcome.stdout), (Some(1), ""), "{name}: {line}: {outcome:?}");
            assert_eq!(bench.files(), ["q"], "{name}: {line}: {outcome:?}");
            let before = said.insert(name.clone(), outcome.stderr.clone());
            assert!(before.is_none_or(|before| before == outcome.stderr), "{name}: {line}: {outcome:?}");
        }
    }
    if std::env::var_os("TCAST_REFRESH").is_some() {
        let lines = said.iter().map(|(name, said)| format!("{name}\t{}\n", said.replace('\n', "\\n")));
        fs::write(&table, lines.collect::<String>()).unwrap();
    }
    let wanted = expected(&table);
    assert!(said.len() > 150, "{}", said.len());
    for (name, said) in &said {
        assert_eq!(wanted.get(name), Some(said), "{name}");
    }
    assert_eq!(wanted.len(), said.len(), "a line for each case");
}
