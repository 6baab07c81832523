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

/// A node of the default domain.
pub fn node(op: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    node_with(op, inputs, output, &[])
}

/// The same with attributes that are small numbers.
pub fn node_with(op: &str, inputs: &[&str], output: &str, attributes: &[(&str, u8)]) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|input| field(1, input.as_bytes())).collect();
    let attribute = |(name, value): &(&str, u8)| {
        field(5, &[field(1, name.as_bytes()), number(3, *value), vec![0xa0, 1, 2]].concat())
    };
    let attributes: Vec<u8> = attributes.iter().flat_map(attribute).collect();
    field(1, &[inputs, field(2, output.as_bytes()), field(4, op.as_bytes()), attributes].concat())
}

/// The bodies of the fields of bytes with a number, in a message without fixed-width fields.
pub fn fields(message: &[u8], number: u64) -> Vec<Vec<u8>> {
    let mut rest = message;
    let take = |rest: &mut &[u8]| {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let (byte, left) = rest.split_first().unwrap();
            *rest = left;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if *byte < 0x80 {
                return value;
            }
        }
    };
    let mut found = Vec::new();
    while !rest.is_empty() {
        let tag = take(&mut rest);
        let value = take(&mut rest);
        if tag & 7 == 2 {
            let (body, left) = rest.split_at(value as usize);
            rest = left;
            found.extend((tag >> 3 == number).then(|| body.to_vec()));
        }
    }
    found
}

/// `TensorProto` with `raw_data`; the lengths are below 128.
fn tensor(name: &str, data_type: u8, dims: &[u8], raw: &[u8]) -> Vec<u8> {
    let dims: Vec<u8> = dims.iter().flat_map(|length| number(1, *length)).collect();
    [dims, number(2, data_type), field(8, name.as_bytes()), field(9, raw)].concat()
}

/// The same as an initializer of a graph.
pub fn initializer(name: &str, data_type: u8, dims: &[u8], raw: &[u8]) -> Vec<u8> {
    field(5, &tensor(name, data_type, dims, raw))
}
