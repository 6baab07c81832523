//! Index and config of a folder of shards.

use super::elements::check_plan;
use super::trial::{MIB, check_error, in_folder, within};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tcast::container::checkpoint::{CONFIG, Checkpoint, INDEX, index_text, is_plain, open, probe, with_dtype};
use tcast::container::{ReadOptions, SHARDS};
use tcast::dtype::Dtype;
use tcast::operator::Operator;
use tcast::operator::cast::CastAttributes;
use tcast::plan::{self, Codes, Request, Spread};
use tcast::select::Selection;

/// Shards that exist, whatever the index says, and a file that is not a shard.
const FILES: [(&str, &str, usize); 3] = [
    ("a.safetensors", r#"{"x":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#, 4),
    (
        "b.safetensors",
        r#"{"y":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y_scale":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#,
        6,
    ),
    ("c.bin", "", 0),
];

/// Checks an index, followed by a NUL and a config: nothing outside the folder is opened; an accepted folder leads to a
/// plan and an index with as many entries; a config keeps everything but its type.
pub fn checkpoint_index(bytes: &[u8]) {
    let (index, config) = match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &bytes[..0]),
    };
    in_folder(|folder| {
        let folder = folder.join("model");
        if fs::create_dir(&folder).is_ok() {
            for (name, header, data) in FILES {
                let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![7; data]].concat();
                fs::write(folder.join(name), file).expect("the folder can be written to");
            }
        }
        fs::write(folder.join(INDEX), index).expect("the folder can be written to");
        fs::write(folder.join(CONFIG), config).expect("the folder can be written to");
        within(8 * MIB + 128 * bytes.len(), || check_folder(&folder));
    });
    if let Ok(config) = std::str::from_utf8(config) {
        check_config(config);
    }
}

fn check_folder(folder: &Path) {
    match probe(folder, &ReadOptions::on(1)) {
        Ok(found) => {
            for path in found.paths() {
                let name = path.file_name().and_then(|name| name.to_str()).expect("a name that was text");
                assert!(path.parent() == Some(folder) && is_plain(name) && name.ends_with(".safetensors"), "{name:?}");
            }
            assert!(found.disagreements.iter().all(|found| !found.text.contains(char::is_control)));
        }
        Err(error) => return check_error(&error),
    }
    match open(folder, &ReadOptions::on(1)) {
        Ok(found) => convert(&found),
        Err(error) => check_error(&error),
    }
}

fn convert(found: &Checkpoint) {
    let codes = match Codes::find(found) {
        Ok(codes) => codes,
        Err(error) => return check_error(&error),
    };
    let selection = Selection { to: Some(Dtype::Float8E5M2), all: true, ..Selection::default() };
    let operator = Operator::Cast(CastAttributes::default());
    let mut request = Request::new(operator, &selection, SHARDS);
    request.codes = Some(&codes);
    match plan::build(&request, &found.shards, Spread::AsInputs, &|_| ()) {
        Ok(plans) => plans.iter().for_each(check_plan),
        Err(error) => check_error(&error),
    }
    let Some(index) = &found.index else { panic!("the index was passed over") };
    let homes: Vec<(String, String)> =
        found.tensors().map(|(shard, tensor)| (tensor.name.to_string(), found.shard_name(shard))).collect();
    let map: BTreeMap<&str, &str> = homes.iter().map(|(tensor, shard)| (tensor.as_str(), shard.as_str())).collect();
    let text = index_text(&index.metadata, &map, 10, 5);
    let again: Value = serde_json::from_str(&text).expect("an index is JSON");
    assert!(text.is_ascii() && again["weight_map"].as_object().is_some_and(|again| again.len() == map.len()));
    assert_eq!(again["metadata"]["total_size"], 10);
}

fn check_config(config: &str) {
    let Some(changed) = with_dtype(config, &BTreeMap::from([("float16", 1)])) else { return };
    // A number too large for a float is still valid JSON.
    let read = |text: &str| {
        let mut config: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text).expect("an object");
        let types = ["dtype", "torch_dtype"].map(|key| config.remove(key).map(|value| value.get().to_owned()));
        (config.into_iter().map(|(key, value)| (key, value.get().to_owned())).collect::<Vec<_>>(), types)
    };
    let ((before, old), (after, new)) = (read(config), read(&changed));
    assert_eq!(before, after);
    let is_right = |(old, new): (&Option<String>, &Option<String>)| old == new || new.as_deref() == Some("\"float16\"");
    assert!(old.iter().zip(&new).all(is_right), "{changed}");
}
