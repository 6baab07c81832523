//! `tokenizer.model`, a protobuf message of the library `SentencePiece`.

use crate::container::onnx::protobuf::{MessageFields, Value};
use crate::error::{Error, Result};

/// Pieces that a user defined; llama.cpp treats them as normal ones.
const USER_DEFINED: u64 = 4;
const NORMAL: i32 = 1;

/// A token of the model.
pub(super) struct ModelPiece<'b> {
    /// The text, which need not be UTF-8.
    pub text: &'b [u8],
    pub score: f32,
    /// llama.cpp's number of its type.
    pub kind: i32,
}

/// Returns the pieces of a `ModelProto`: field 1, of which field 1 is the text, 2 the score, and 3 the type.
pub(super) fn pieces(bytes: &[u8]) -> Result<Vec<ModelPiece<'_>>> {
    let mut pieces = Vec::new();
    for field in MessageFields::new(bytes, 0..bytes.len()) {
        let (1, Value::Bytes(range)) = field? else { continue };
        let mut piece = ModelPiece { text: &[], score: 0.0, kind: NORMAL };
        for field in MessageFields::new(bytes, range) {
            match field? {
                (1, Value::Bytes(range)) => piece.text = &bytes[range],
                (2, Value::Fixed(range)) if range.len() == 4 => {
                    piece.score = bytes[range].first_chunk().map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
                }
                (3, Value::Varint(USER_DEFINED)) => piece.kind = NORMAL,
                (3, Value::Varint(kind @ 1..=6)) => piece.kind = kind as i32,
                (3, _) => return Err(Error::new("is not a model of SentencePiece: a piece has an unknown type")),
                _ => {}
            }
        }
        pieces.push(piece);
    }
    if pieces.is_empty() {
        return Err(Error::new("is not a model of SentencePiece: it has no pieces"));
    }
    Ok(pieces)
}
