//! ONNX messages, by hand.

/// A field of bytes.
pub fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        message.push(length as u8 | 0x80);
        length >>= 7;
    }
    message.push(length as u8);
    message.extend_from_slice(bytes);
    message
}

/// A model of IR 8 and opset 16 with this graph.
pub fn model(graph: &[u8]) -> Vec<u8> {
    [&[0x08, 8][..], &field(7, graph), &field(8, &[0x10, 16])].concat()
}

/// A field that is a number.
pub fn number(number: u8, value: u8) -> Vec<u8> {
    vec![number << 3, value]
}
