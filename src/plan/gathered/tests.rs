//! Gathered rows, against assemblies that are done one by one, and against llama.cpp.

use super::*;
use crate::blocks::ValueChange;
use crate::container::gguf::names::{GgufTensor, MetadataValue, to_gguf};
use crate::random::random;
use sha2::{Digest, Sha256};
use std::cell::Cell;
use std::collections::BTreeMap;

/// Reads all rows of a tensor in pieces of at most this many, and returns them with the number of reads.
fn gather(tensor: &GgufTensor, sources: &[&[u8]], width: usize, most: &mut dyn FnMut() -> u64) -> (Vec<u8>, usize) {
    let gathered = GatheredRows::new(&tensor.source, &tensor.shape, (sources[0].len() / width) as u64, width);
    let reads = Cell::new(0);
    let read = |source: usize, range: Range<usize>| {
        reads.set(reads.get() + 1);
        Ok(&sources[source][range])
    };
    let columns = tensor.shape.last().map_or(1, |columns| *columns as usize);
    let len = tensor.shape.iter().product::<u64>() as usize * width;
    let (mut out, mut row) = (vec![0x55; len], 0);
    for piece in 0.. {
        let rest = &mut out[row as usize * columns * width..];
        let end = row + most().min((rest.len() / (columns * width)) as u64);
        gathered.read(row..end, &read, &mut rest[..(end - row) as usize * columns * width]).unwrap();
        row = end;
        if end as usize * columns * width == len {
            break;
        }
        assert!(piece < 100_000);
    }
    (out, reads.get())
}

fn tensor(shape: &[u64], source: GgufSource) -> GgufTensor {
    GgufTensor { name: String::new(), shape: shape.to_vec(), source }
}

fn bytes(values: &[i64], width: usize) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect()
}

/// Checks that the sources of an assembly, which have these shapes, can be gathered from what it makes of them.
/// Returns the number of reads for each.
fn check(assembly: Assembly, shapes: &[&[u64]], width: usize, most: &mut dyn FnMut() -> u64) -> Vec<usize> {
    let mut next = 1;
    let mut count = |shape: &&[u64]| {
        let first = next;
        next += shape.iter().product::<u64>() as i64;
        (first..next).collect::<Vec<_>>()
    };
    let sources: Vec<Vec<i64>> = shapes.iter().map(&mut count).collect();
    let pairs: Vec<_> = shapes.iter().copied().zip(sources.iter().cloned()).collect();
    let assembled = bytes(&assembly.assemble(&pairs), width);
    let gathered = sources.iter().enumerate().map(|(at, values)| {
        let tensor = tensor(shapes[at], GgufSource::Disassembled { tensor: 0, assembly, at });
        let adds_one = tensor.source.change() == ValueChange::LessOne;
        assert_eq!(tensor.source.change(), assembly.change);
        let values: Vec<i64> = values.iter().map(|value| value - i64::from(adds_one)).collect();
        let (found, reads) = gather(&tensor, &[&assembled], width, most);
        assert!(found == bytes(&values, width), "{assembly:?} {shapes:?} source {at}, {width} bytes");
        reads
    });
    gathered.collect()
}

#[test]
fn sources_of_all_assemblies_are_gathered_from_their_results() {
    let mut next = random(1);
    let mut kinds = BTreeMap::new();
    for round in 0..6000 {
        let mut below = |most: u64| next() % most;
        let kind = below(6);
        let order = match kind {
            0 => RowOrder::Stored,
            1 => RowOrder::Heads(1 + below(4)),
            2 => RowOrder::Alternating,
            3 => RowOrder::Groups { start: below(4), groups: 1 + below(3), each: 1 + below(3) },
            4 => RowOrder::Projections { heads: 1 + below(3), key: 1 + below(4), value: 1 + below(4) },
            _ => RowOrder::Concatenated,
        };
        let rows_are_elements = below(4) == 0;
        let first_is_transposed = !rows_are_elements && below(3) == 0;
        let is_transposed = below(3) == 0;
        let change = if below(8) == 0 { ValueChange::LessOne } else { ValueChange::None };
        let assembly = Assembly { first_is_transposed, order, rows_are_elements, is_transposed, change };
        // More than a tile every now and then.
        let longest = if below(8) == 0 { 80 } else { 6 };
        let (rows, columns) = (1 + below(longest), 1 + below(longest));
        let stack: Vec<u64> = (0..below(3)).map(|_| 1 + below(3)).collect();
        let shape = |rows: u64, is_turned: bool| {
            let matrix = match (rows_are_elements, is_turned) {
                (true, _) => vec![rows],
                (false, true) => vec![columns, rows],
                (false, false) => vec![rows, columns],
            };
            [stack.clone(), matrix].concat()
        };
        let rows = match order {
            RowOrder::Heads(heads) => 2 * heads * rows.div_ceil(heads),
            RowOrder::Groups { start, groups, each } => start + groups * each * rows.div_ceil(groups * each),
            RowOrder::Projections { heads, key, value } => heads * (2 * key + value),
            _ => rows,
        };
        let mut shapes = vec![shape(rows, first_is_transposed)];
        match order {
            RowOrder::Alternating => shapes.push(shape(rows, false)),
            RowOrder::Concatenated => shapes.push(shape(1 + below(longest), false)),
            RowOrder::Projections { heads, value, .. } => shapes.push(shape(heads * value, false)),
            RowOrder::Stored | RowOrder::Heads(_) | RowOrder::Groups { .. } => {}
        }
        let shapes: Vec<&[u64]> = shapes.iter().map(Vec::as_slice).collect();
        let most = 1 + below(longest * 2);
        check(assembly, &shapes, 1 << (round % 4), &mut || next() % (most + 1));
        let kind = (kind, first_is_transposed, is_transposed, rows_are_elements);
        *kinds.entry(kind).or_insert(0) += 1;
    }
    assert_eq!(kinds.len(), 6 * 6);
    assert!(kinds.values().all(|count| *count > 40), "{kinds:?}");
}

#[test]
fn stored_and_stacked_tensors_are_gathered() {
    let values: Vec<i64> = (1..=2 * 3 * 5 * 7).collect();
    let all = bytes(&values, 4);
    for shape in [&[210][..], &[30, 7], &[6, 5, 7], &[2, 3, 5, 7]] {
        let mut next = random(2);
        let stored = tensor(shape, GgufSource::Stored(0));
        assert_eq!(gather(&stored, &[&all], 4, &mut || next() % 5).0, all);
        assert_eq!(gather(&stored, &[&all], 4, &mut || 999), (all.clone(), 1));
    }
    for source in [GgufSource::Stored(0), GgufSource::Stacked(vec![0, 1])] {
        for shape in [[2, 0, 7], [2, 5, 0], [0, 5, 7]] {
            let gathered = GatheredRows::new(&source, &shape, 0, 4);
            gathered.read(0..shape[0] * shape[1], &|_, _| Ok(&[]), &mut []).unwrap();
        }
    }
    let scalar = tensor(&[], GgufSource::Stored(0));
    assert_eq!(gather(&scalar, &[&all[..4]], 4, &mut || 1), (all[..4].to_vec(), 1));
    let mut next = random(3);
    let experts: Vec<&[u8]> = all.chunks(5 * 7 * 4).collect();
    let stacked = tensor(&[6, 5, 7], GgufSource::Stacked((0..6).collect()));
    assert_eq!(gather(&stacked, &experts, 4, &mut || next() % 8).0, all);
    assert_eq!(gather(&stacked, &experts, 4, &mut || 30), (all.clone(), 6));
    assert_eq!(gather(&stacked, &experts, 4, &mut || 10), (all, 6));
}

#[test]
fn assemblies_without_elements_have_nothing_to_gather() {
    for order in [RowOrder::Stored, RowOrder::Heads(2), RowOrder::Alternating, RowOrder::Concatenated] {
        for (at, [first_is_transposed, is_transposed]) in [(0, [true, false]), (1, [false, true]), (1, [false, false])]
        {
            let assembly = Assembly { first_is_transposed, order, is_transposed, ..Assembly::default() };
            for shape in [[2, 0, 8], [2, 8, 0], [0, 8, 8]] {
                let source = GgufSource::Disassembled { tensor: 0, assembly, at };
                let gathered = GatheredRows::new(&source, &shape, 0, 2);
                gathered.read(0..shape[0] * shape[1], &|_, _| Ok(&[]), &mut []).unwrap();
            }
        }
    }
}

#[test]
fn adjacent_rows_and_tiles_are_one_read() {
    let plain = Assembly::default();
    let all = &mut || u64::MAX;
    let halves = Assembly { order: RowOrder::Concatenated, ..plain };
    assert_eq!(check(halves, &[&[4, 48, 32], &[4, 20, 32]], 4, all), [4, 4]);
    let heads = Assembly { order: RowOrder::Heads(4), ..plain };
    // The last row of a head and the first of the next are adjacent.
    assert_eq!(check(heads, &[&[32, 8]], 2, all), [32 - 3]);
    assert_eq!(check(Assembly { rows_are_elements: true, ..heads }, &[&[32]], 2, all), [1]);
    let banks = Assembly { order: RowOrder::Alternating, is_transposed: true, ..plain };
    assert_eq!(check(banks, &[&[3, 48, 70], &[3, 48, 70]], 2, all), [9, 9]);
    // Long lines are read one by one.
    assert_eq!(check(banks, &[&[1, 4200, 33], &[1, 4200, 33]], 2, all), [33, 33]);
    let keys = Assembly { first_is_transposed: true, order: RowOrder::Concatenated, ..plain };
    assert_eq!(check(keys, &[&[3, 20, 64], &[3, 16, 20]], 4, &mut || 5), [3 * 4 * 2, 3 * 4]);
}

/// The values that llama.cpp's converter makes of small models.
#[test]
fn all_model_types_have_the_values_of_their_gguf() {
    type Json = BTreeMap<String, serde_json::Value>;
    let shapes =
        |json: &serde_json::Value| -> BTreeMap<String, Vec<u64>> { serde_json::from_value(json.clone()).unwrap() };
    let hash =
        |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
    let models: Json = serde_json::from_str(include_str!("../../../fixtures/gguf/maps.json")).unwrap();
    assert!(!models.is_empty());
    for (name, json) in models {
        let model_type = json["type"].as_str().unwrap_or(&name);
        let stored = shapes(&json["hf"]);
        let values: Vec<Vec<u8>> = stored
            .values()
            .zip(0..)
            .map(|(shape, at)| {
                let values = (0..shape.iter().product()).map(|j| ((1009 * at + j) % 65521) as f32);
                values.flat_map(f32::to_le_bytes).collect()
            })
            .collect();
        let config = |key: &str| {
            let value = match key {
                "num_hidden_layers" => json["layers"].as_u64(),
                "num_attention_heads" => json["heads"].as_u64(),
                "num_key_value_heads" => json["key_heads"].as_u64(),
                "qk_nope_head_dim" | "v_head_dim" => Some(16),
                "n_groups" => Some(2),
                "linear_num_key_heads" => json["linear"][0].as_u64(),
                "linear_num_value_heads" => json["linear"][1].as_u64(),
                "linear_key_head_dim" => json["linear"][2].as_u64(),
                "linear_value_head_dim" => json["linear"][3].as_u64(),
                _ => None,
            };
            value.map(MetadataValue::Integer)
        };
        let tensors: Vec<(&str, &[u64])> =
            stored.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
        let (_, mut named) = to_gguf(model_type, &config, &tensors).unwrap();
        named.sort_by(|a, b| a.name.cmp(&b.name));
        let mut next = random(4);
        let hashes = named.iter().map(|tensor| {
            let sources: Vec<&[u8]> = tensor.source.tensors().iter().map(|index| &*values[*index]).collect();
            let (mut bytes, _) = gather(tensor, &sources, 4, &mut || next() % 100);
            let change = tensor.source.change();
            for value in bytes.as_chunks_mut().0 {
                let number = f32::from_le_bytes(*value);
                let changed = match change {
                    ValueChange::None => number,
                    ValueChange::LessOne => number + 1.0,
                    ValueChange::LogOfNegative => -f64::from(number).exp() as f32,
                };
                *value = changed.to_le_bytes();
            }
            hash(&bytes)[..16].to_owned()
        });
        let hashes: String = hashes.collect();
        assert_eq!(hash(hashes.as_bytes()), json["values"].as_str().unwrap(), "{name}");
    }
}
