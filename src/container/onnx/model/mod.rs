//! `.onnx`: an ONNX model (`ModelProto`, onnx.proto3, IR version 14): a graph of nodes, and its tensors.
//!
//! A model is a protobuf message of messages. A walk finds the [`messages`] that matter, in linear time and at most 100
//! deep, as protobuf does, and skips tensors by their lengths. The [`graph`] consists of these messages and of the
//! [`values`] that they define. It has the *places* that hold tensors: initializers and Constant nodes of the main
//! graph, of graphs in attributes (If, Loop, Scan), of functions and of training, sparse tensors, and attributes of
//! other nodes. All else is a query of the graph. [`list`] reads the tensors. A tensor has the name of its value; if several graphs have a value of this name, the path to the graph
//! precedes it: `If_0.then_branch/k`.
//!
//! A model is not made from tensors, because tensors do not determine a graph. It is *changed*: [`roles`] finds the role
//! of each tensor (a weight, the default of an input, a scale, a shape or an index), [`uses`] the nodes that use it and
//! the tensors that nodes decode, [`contrib`] such nodes of ONNX Runtime, and [`opsets`] the version that the model must import. [`change`]
//! lists the edits for new elements, names, types, and Cast or `DequantizeLinear` nodes. [`edit`] applies them, and
//! adjusts the lengths of the enclosing messages. The result is a sequence of ranges of the old file, which are copied
//! byte for byte, literal bytes, and elements that the engine converts. With external data, the elements of large
//! initializers go into a second file, which starts at the end of the model in the plan.

mod change;
mod contrib;
mod edit;
mod fields;
mod graph;
mod list;
mod messages;
mod opsets;
mod roles;
mod uses;
mod values;

pub(crate) use change::{Change, ModelLayout, QuantizedTensor, TensorChange};
pub(crate) use graph::{CodesForm, Dequantization, ModelGraph, TensorRole};
pub(crate) use uses::WeightUse;

use super::super::{
    Container, Contents, FileLayout, Form, FormatInfo, Metadata, NewMetadata, NewTensors, ReadOptions, WrittenFiles,
};
use super::protobuf::{MessageFields, Value};
use super::{DATA_TYPE, MAX_PAIRS, TensorMessage, TextSum};
use crate::dtype::Dtype;
use crate::error::{Error, Opt, Result};
use crate::io::map::MappedFile;
use crate::text::{move_file, shorten};
use fields::model;
use messages::MessageKind;
use messages::is_default_domain;
use opsets::Import;
use std::collections::HashSet;

/// The format of ONNX models.
pub(in super::super) struct OnnxModel;

impl Container for OnnxModel {
    fn format_info(&self) -> FormatInfo {
        FormatInfo { metadata: Metadata::Plain, writing: WrittenFiles::Changed, ..FormatInfo::of("onnx") }
    }

    fn stores(&self, dtype: Dtype) -> Option<String> {
        dtype.onnx_name().map(str::to_owned)
    }

    fn form(&self, dtype: Dtype) -> Form {
        super::form(dtype)
    }

    /// True for a message that has a graph, and no number in the field that holds the type of a tensor.
    fn recognises(&self, bytes: &[u8]) -> bool {
        const FEW: usize = 10_000;
        let fields = MessageFields::new(bytes, 0..bytes.len()).map_while(Result::ok).take(FEW);
        let mut has = [false; 3];
        for (field, value) in fields {
            match (field, value) {
                (DATA_TYPE, Value::Varint(_)) => return false,
                (model::IR_VERSION, Value::Varint(_)) => has[0] = true,
                (model::GRAPH, Value::Bytes(_)) => has[1] = true,
                (model::OPSET_IMPORT, Value::Bytes(_)) => has[2] = true,
                _ => {}
            }
        }
        has[1] && (has[0] || has[2])
    }

    fn read(&self, file: &MappedFile, _options: &ReadOptions) -> Result<Contents> {
        let graph = ModelGraph::read(file);
        let contents = graph.and_then(|graph| {
            let contents = list::list(file, &graph)?;
            Ok(Contents { metadata: Some(metadata(&graph)?), ..contents })
        });
        contents.map_err(|error| self.explain(file, error))
    }

    fn lay_out(&self, _tensors: &dyn NewTensors, _metadata: &NewMetadata, _threads: usize) -> Result<FileLayout> {
        Err(Error::new("a .onnx file holds a graph, which can only come from another model")
            .with(Opt::OUTPUT, "name an output that ends in .safetensors"))
    }
}

impl OnnxModel {
    /// Identifies a file that is not a model.
    fn explain(&self, file: &MappedFile, error: Error) -> Error {
        if self.recognises(file) {
            return error;
        }
        if TensorMessage::read(file, 0..file.len()).is_ok_and(|message| message.head().is_ok()) {
            let name = file.path().with_extension("pb");
            let error = Error::new("is an ONNX tensor (TensorProto), not a model");
            return error.remedy(move_file(file.path(), &name));
        }
        super::diagnose(file).unwrap_or(error)
    }
}

/// Reads the metadata of a model: its own fields, then the pairs of `metadata_props`.
fn metadata(graph: &ModelGraph) -> Result<Vec<(String, String)>> {
    let (file, mut pairs, mut texts) = (graph.file, Vec::new(), TextSum::default());
    for field in MessageFields::new(file, 0..file.len()) {
        let (field, value) = field?;
        let name = match field {
            model::IR_VERSION => "ir_version",
            2 => "producer_name",
            3 => "producer_version",
            4 => "domain",
            5 => "model_version",
            6 => "doc_string",
            _ => "",
        };
        match (field, value) {
            (model::IR_VERSION | 5, Value::Varint(number)) => pairs.push((name.to_owned(), number.to_string())),
            (2..=4 | 6, Value::Bytes(text)) if !text.is_empty() => {
                texts.add(text.len())?;
                pairs.push((name.to_owned(), String::from_utf8_lossy(&file[text]).into_owned()));
            }
            (model::METADATA_PROPS, Value::Bytes(body)) => pairs.push(super::pair(file, body, &mut texts)?),
            _ => {}
        }
        if pairs.len() > MAX_PAIRS {
            return Err(Error::new(format!("more than {MAX_PAIRS} pairs of metadata")));
        }
    }
    let import = |Import { domain, version, .. }: Import| {
        let domain = if is_default_domain(domain) { b"ai.onnx" } else { domain };
        format!("{} {version}", shorten(&String::from_utf8_lossy(domain)))
    };
    let imports: Vec<String> = graph.imports(MessageKind::Model).map(import).collect();
    pairs.extend((!imports.is_empty()).then(|| ("opset_import".to_owned(), imports.join(", "))));
    // If a name has several values, the last one counts.
    let mut seen = HashSet::new();
    pairs.reverse();
    pairs.retain(|(name, _)| seen.insert(name.clone()));
    pairs.reverse();
    Ok(pairs)
}
