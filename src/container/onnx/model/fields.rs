//! The fields of the messages of a model.

/// Fields of `ModelProto`.
pub(super) mod model {
    pub(in super::super) const IR_VERSION: u64 = 1;
    pub(in super::super) const GRAPH: u64 = 7;
    pub(in super::super) const OPSET_IMPORT: u64 = 8;
    pub(in super::super) const METADATA_PROPS: u64 = 14;
    pub(in super::super) const TRAINING_INFO: u64 = 20;
    pub(in super::super) const FUNCTIONS: u64 = 25;
}

/// Fields of `GraphProto`.
pub(super) mod graph {
    pub(in super::super) const NODE: u64 = 1;
    pub(in super::super) const INITIALIZER: u64 = 5;
    pub(in super::super) const INPUT: u64 = 11;
    pub(in super::super) const OUTPUT: u64 = 12;
    pub(in super::super) const VALUE_INFO: u64 = 13;
    pub(in super::super) const QUANTIZATION_ANNOTATION: u64 = 14;
    pub(in super::super) const SPARSE_INITIALIZER: u64 = 15;
}

/// Fields of `FunctionProto`.
pub(super) mod function {
    pub(in super::super) const NAME: u64 = 1;
    pub(in super::super) const INPUT: u64 = 4;
    pub(in super::super) const OUTPUT: u64 = 5;
    pub(in super::super) const NODE: u64 = 7;
    pub(in super::super) const OPSET_IMPORT: u64 = 9;
    pub(in super::super) const DOMAIN: u64 = 10;
    pub(in super::super) const ATTRIBUTE_DEFAULT: u64 = 11;
}

/// Fields of `NodeProto`.
pub(super) mod node {
    pub(in super::super) const INPUT: u64 = 1;
    pub(in super::super) const OUTPUT: u64 = 2;
    pub(in super::super) const NAME: u64 = 3;
    pub(in super::super) const OP_TYPE: u64 = 4;
    pub(in super::super) const ATTRIBUTE: u64 = 5;
    pub(in super::super) const DOMAIN: u64 = 7;
}

/// Fields of `AttributeProto`.
pub(super) mod attribute {
    pub(in super::super) const NAME: u64 = 1;
    pub(in super::super) const FLOAT: u64 = 2;
    pub(in super::super) const INT: u64 = 3;
    pub(in super::super) const STRING: u64 = 4;
    pub(in super::super) const TENSOR: u64 = 5;
    pub(in super::super) const GRAPH: u64 = 6;
    pub(in super::super) const FLOATS: u64 = 7;
    pub(in super::super) const INTS: u64 = 8;
    pub(in super::super) const TENSORS: u64 = 10;
    pub(in super::super) const GRAPHS: u64 = 11;
    pub(in super::super) const TYPE: u64 = 20;
    pub(in super::super) const SPARSE_TENSOR: u64 = 22;
    pub(in super::super) const SPARSE_TENSORS: u64 = 23;
    /// The fields that are messages.
    pub(in super::super) const MESSAGES: [u64; 6] = [TENSOR, GRAPH, TENSORS, GRAPHS, SPARSE_TENSOR, SPARSE_TENSORS];
    /// The attributes of Constant nodes that hold numbers: their fields and names.
    pub(in super::super) const NUMBERS: [(u64, &str); 4] =
        [(FLOAT, "value_float"), (FLOATS, "value_floats"), (INT, "value_int"), (INTS, "value_ints")];
}
