//! The fields of the messages of a model that hold no messages. [`MessageKind`](super::messages::MessageKind) has the others.

/// Fields of `ModelProto`.
pub(super) mod model {
    pub(in super::super) const IR_VERSION: u64 = 1;
    pub(in super::super) const GRAPH: u64 = 7;
    pub(in super::super) const OPSET_IMPORT: u64 = 8;
    pub(in super::super) const METADATA_PROPS: u64 = 14;
}

/// Fields of `GraphProto`.
pub(super) mod graph {
    pub(in super::super) const NODE: u64 = 1;
    pub(in super::super) const INITIALIZER: u64 = 5;
}

/// Fields of `FunctionProto`.
pub(super) mod function {
    pub(in super::super) const NAME: u64 = 1;
    pub(in super::super) const DOMAIN: u64 = 10;
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
    pub(in super::super) const FLOATS: u64 = 7;
    pub(in super::super) const INTS: u64 = 8;
    pub(in super::super) const TYPE: u64 = 20;
    /// The attributes of Constant nodes that hold numbers: their fields and names.
    pub(in super::super) const NUMBERS: [(u64, &str); 4] =
        [(FLOAT, "value_float"), (FLOATS, "value_floats"), (INT, "value_int"), (INTS, "value_ints")];
}
