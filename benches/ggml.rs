//! The encoders of blocks, timed on one thread for `ggml.py`, which compares them with ggml's quantizer.
//!
//! `ggml VALUES IMPORTANCE COLUMNS`: see `ggml.c`, which reads the same lines. They begin with an instruction set, or with
//! `best`. With other arguments, as `cargo bench` runs it, the program does nothing.

use std::hint::black_box;
use std::io::{Write, stdin, stdout};
use std::time::Instant;
use tcast::{blocks::FORMATS, kernel::Isa};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [values, importance, columns] = &arguments[..] else { return };
    if columns == "--bench" {
        return;
    }
    let (values, importance) = (numbers(values), numbers(importance));
    let columns = columns.parse().expect("a number of columns");
    for line in stdin().lines() {
        let line = line.expect("a readable line");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [isa, name, with, seconds, path] = words[..] else { panic!("{line}: not five words") };
        let available = Isa::available().into_iter().find(|set| set.name() == isa);
        let isa = if isa == "best" { Isa::best() } else { available.expect("a set of this machine") };
        let format = FORMATS.iter().find(|format| format.name == name).expect("a block format");
        let importance = (with == "1").then_some(&*importance);
        let seconds: f64 = seconds.parse().expect("a number of seconds");
        let mut out = vec![0; format.size(values.len() as u64).expect("whole blocks") as usize];
        let mut encode =
            || format.encode(isa, black_box(&values), columns, importance, &mut out).expect("finite values");
        encode();
        let (start, mut times) = (Instant::now(), 0.0);
        let taken = loop {
            encode();
            times += 1.0;
            let taken = start.elapsed().as_secs_f64();
            if taken >= seconds {
                break taken;
            }
        };
        if path != "-" {
            std::fs::write(path, &out).expect("room for the blocks");
        }
        writeln!(stdout(), "{:e}", taken / times).expect("a reader");
    }
}

/// The float32 of a file.
fn numbers(path: &str) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("a file of numbers");
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
