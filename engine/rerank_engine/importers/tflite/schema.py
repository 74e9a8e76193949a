"""The part of TFLite's schema that is read, as data: numbers of operators and types, slots of option tables.

The schema is public: https://github.com/google-ai-edge/LiteRT/blob/main/tflite/converter/schema/schema.fbs
Tables only ever grow, so these numbers hold for every version 3 file.
"""

from __future__ import annotations

from dataclasses import dataclass

IDENTIFIER = b"TFL3"
VERSION = 3

TENSOR_TYPES = (
    "float32", "float16", "int32", "uint8", "int64", "string", "bool", "int16", "complex64", "int8", "float64",
    "complex128", "uint64", "resource", "variant", "uint32", "uint16", "int4", "bfloat16", "int2", "uint4",
    "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
"""Element types by number."""

OPERATORS = (
    "ADD", "AVERAGE_POOL_2D", "CONCATENATION", "CONV_2D", "DEPTHWISE_CONV_2D", "DEPTH_TO_SPACE", "DEQUANTIZE",
    "EMBEDDING_LOOKUP", "FLOOR", "FULLY_CONNECTED", "HASHTABLE_LOOKUP", "L2_NORMALIZATION", "L2_POOL_2D",
    "LOCAL_RESPONSE_NORMALIZATION", "LOGISTIC", "LSH_PROJECTION", "LSTM", "MAX_POOL_2D", "MUL", "RELU",
    "RELU_N1_TO_1", "RELU6", "RESHAPE", "RESIZE_BILINEAR", "RNN", "SOFTMAX", "SPACE_TO_DEPTH", "SVDF", "TANH",
    "CONCAT_EMBEDDINGS", "SKIP_GRAM", "CALL", "CUSTOM", "EMBEDDING_LOOKUP_SPARSE", "PAD",
    "UNIDIRECTIONAL_SEQUENCE_RNN", "GATHER", "BATCH_TO_SPACE_ND", "SPACE_TO_BATCH_ND", "TRANSPOSE", "MEAN", "SUB",
    "DIV", "SQUEEZE", "UNIDIRECTIONAL_SEQUENCE_LSTM", "STRIDED_SLICE", "BIDIRECTIONAL_SEQUENCE_RNN", "EXP", "TOPK_V2",
    "SPLIT", "LOG_SOFTMAX", "DELEGATE", "BIDIRECTIONAL_SEQUENCE_LSTM", "CAST", "PRELU", "MAXIMUM", "ARG_MAX",
    "MINIMUM", "LESS", "NEG", "PADV2", "GREATER", "GREATER_EQUAL", "LESS_EQUAL", "SELECT", "SLICE", "SIN",
    "TRANSPOSE_CONV", "SPARSE_TO_DENSE", "TILE", "EXPAND_DIMS", "EQUAL", "NOT_EQUAL", "LOG", "SUM", "SQRT", "RSQRT",
    "SHAPE", "POW", "ARG_MIN", "FAKE_QUANT", "REDUCE_PROD", "REDUCE_MAX", "PACK", "LOGICAL_OR", "ONE_HOT",
    "LOGICAL_AND", "LOGICAL_NOT", "UNPACK", "REDUCE_MIN", "FLOOR_DIV", "REDUCE_ANY", "SQUARE", "ZEROS_LIKE", "FILL",
    "FLOOR_MOD", "RANGE", "RESIZE_NEAREST_NEIGHBOR", "LEAKY_RELU", "SQUARED_DIFFERENCE", "MIRROR_PAD", "ABS",
    "SPLIT_V", "UNIQUE", "CEIL", "REVERSE_V2", "ADD_N", "GATHER_ND", "COS", "WHERE", "RANK", "ELU",
    "REVERSE_SEQUENCE", "MATRIX_DIAG", "QUANTIZE", "MATRIX_SET_DIAG", "ROUND", "HARD_SWISH", "IF", "WHILE",
    "NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", "SCATTER_ND", "SELECT_V2", "DENSIFY", "SEGMENT_SUM",
    "BATCH_MATMUL", "PLACEHOLDER_FOR_GREATER_OP_CODES", "CUMSUM", "CALL_ONCE", "BROADCAST_TO", "RFFT2D", "CONV_3D",
    "IMAG", "REAL", "COMPLEX_ABS", "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE", "REDUCE_ALL",
    "CONV_3D_TRANSPOSE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "BROADCAST_ARGS",
    "RANDOM_STANDARD_NORMAL", "BUCKETIZE", "RANDOM_UNIFORM", "MULTINOMIAL", "GELU", "DYNAMIC_UPDATE_SLICE",
    "RELU_0_TO_1", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX", "UNSORTED_SEGMENT_SUM", "ATAN2",
    "UNSORTED_SEGMENT_MIN", "SIGN", "BITCAST", "BITWISE_XOR", "RIGHT_SHIFT", "STABLEHLO_LOGISTIC", "STABLEHLO_ADD",
    "STABLEHLO_DIVIDE", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_RESHAPE", "STABLEHLO_CLAMP",
    "STABLEHLO_CONCATENATE", "STABLEHLO_BROADCAST_IN_DIM", "STABLEHLO_CONVOLUTION", "STABLEHLO_SLICE",
    "STABLEHLO_CUSTOM_CALL", "STABLEHLO_REDUCE", "STABLEHLO_ABS", "STABLEHLO_AND", "STABLEHLO_COSINE",
    "STABLEHLO_EXPONENTIAL", "STABLEHLO_FLOOR", "STABLEHLO_LOG", "STABLEHLO_MINIMUM", "STABLEHLO_NEGATE",
    "STABLEHLO_OR", "STABLEHLO_POWER", "STABLEHLO_REMAINDER", "STABLEHLO_RSQRT", "STABLEHLO_SELECT",
    "STABLEHLO_SUBTRACT", "STABLEHLO_TANH", "STABLEHLO_SCATTER", "STABLEHLO_COMPARE", "STABLEHLO_CONVERT",
    "STABLEHLO_DYNAMIC_SLICE", "STABLEHLO_DYNAMIC_UPDATE_SLICE", "STABLEHLO_PAD", "STABLEHLO_IOTA",
    "STABLEHLO_DOT_GENERAL", "STABLEHLO_REDUCE_WINDOW", "STABLEHLO_SORT", "STABLEHLO_WHILE", "STABLEHLO_GATHER",
    "STABLEHLO_TRANSPOSE", "DILATE", "STABLEHLO_RNG_BIT_GENERATOR", "REDUCE_WINDOW", "STABLEHLO_COMPOSITE",
    "STABLEHLO_SHIFT_LEFT", "STABLEHLO_CBRT", "STABLEHLO_CASE",
)  # fmt: skip
"""Operators by number."""

LARGEST_ONE_BYTE_OPERATOR = OPERATORS.index("PLACEHOLDER_FOR_GREATER_OP_CODES")
"""Operators from this one on do not fit the old, one-byte slot."""

FUSED_ACTIVATIONS = ("NONE", "RELU", "RELU_N1_TO_1", "RELU6", "TANH", "SIGN_BIT")
PADDINGS = ("SAME", "VALID")
MIRROR_PAD_MODES = ("REFLECT", "SYMMETRIC")


@dataclass(frozen=True)
class Field:
    """An option: its slot in the table, the kind of number (``"i32[]"`` is a vector), and the schema's default."""

    slot: int
    kind: str
    default: bool | int | float = 0


@dataclass(frozen=True)
class Options:
    """A table of options: its number in the union, and its fields.

    Only fields that are listed are understood; a file that fills another slot is refused.
    """

    number: int
    fields: dict[str, Field]


_ACTIVATION = Field(0, "i8")
_ARITHMETIC = {"fused_activation": _ACTIVATION, "power_of_two_scale_int16": Field(1, "bool", True)}
_SPLIT = {"num_splits": Field(0, "i32")}
_ARG = {"output_type": Field(0, "i8")}

OPTIONS: dict[str, Options] = {
    "Conv2DOptions": Options(
        1,
        {
            "padding": Field(0, "i8"),
            "stride_w": Field(1, "i32"),
            "stride_h": Field(2, "i32"),
            "fused_activation": Field(3, "i8"),
            "dilation_w": Field(4, "i32", 1),
            "dilation_h": Field(5, "i32", 1),
            "quantized_bias_type": Field(6, "i8"),
        },
    ),
    "DepthwiseConv2DOptions": Options(
        2,
        {
            "padding": Field(0, "i8"),
            "stride_w": Field(1, "i32"),
            "stride_h": Field(2, "i32"),
            "depth_multiplier": Field(3, "i32"),
            "fused_activation": Field(4, "i8"),
            "dilation_w": Field(5, "i32", 1),
            "dilation_h": Field(6, "i32", 1),
        },
    ),
    "Pool2DOptions": Options(
        5,
        {
            "padding": Field(0, "i8"),
            "stride_w": Field(1, "i32"),
            "stride_h": Field(2, "i32"),
            "filter_width": Field(3, "i32"),
            "filter_height": Field(4, "i32"),
            "fused_activation": Field(5, "i8"),
        },
    ),
    "FullyConnectedOptions": Options(
        8,
        {
            "fused_activation": _ACTIVATION,
            "weights_format": Field(1, "i8"),
            "keep_num_dims": Field(2, "bool"),
            "asymmetric_quantize_inputs": Field(3, "bool"),
            "quantized_bias_type": Field(4, "i8"),
        },
    ),
    "SoftmaxOptions": Options(9, {"beta": Field(0, "f32")}),
    "ConcatenationOptions": Options(10, {"axis": Field(0, "i32"), "fused_activation": Field(1, "i8")}),
    "AddOptions": Options(11, _ARITHMETIC),
    "L2NormOptions": Options(12, {"fused_activation": _ACTIVATION}),
    "ReshapeOptions": Options(17, {"new_shape": Field(0, "i32[]")}),
    "MulOptions": Options(21, {"fused_activation": _ACTIVATION}),
    "GatherOptions": Options(23, {"axis": Field(0, "i32"), "batch_dims": Field(1, "i32")}),
    "ReducerOptions": Options(27, {"keep_dims": Field(0, "bool")}),
    "SubOptions": Options(28, _ARITHMETIC),
    "DivOptions": Options(29, {"fused_activation": _ACTIVATION}),
    "SqueezeOptions": Options(30, {"squeeze_dims": Field(0, "i32[]")}),
    "StridedSliceOptions": Options(
        32,
        {
            "begin_mask": Field(0, "i32"),
            "end_mask": Field(1, "i32"),
            "ellipsis_mask": Field(2, "i32"),
            "new_axis_mask": Field(3, "i32"),
            "shrink_axis_mask": Field(4, "i32"),
            "offset": Field(5, "bool"),
        },
    ),
    "SplitOptions": Options(35, _SPLIT),
    # The types are said again by the tensors, which are what the interpreter reads.
    "CastOptions": Options(37, {"in_data_type": Field(0, "i8"), "out_data_type": Field(1, "i8")}),
    "ArgMaxOptions": Options(40, _ARG),
    "ShapeOptions": Options(55, {"out_type": Field(0, "i8")}),
    "ArgMinOptions": Options(57, _ARG),
    "PackOptions": Options(59, {"values_count": Field(0, "i32"), "axis": Field(1, "i32")}),
    "OneHotOptions": Options(61, {"axis": Field(0, "i32")}),
    "UnpackOptions": Options(64, {"num": Field(0, "i32"), "axis": Field(1, "i32")}),
    "UnidirectionalSequenceLSTMOptions": Options(
        71,
        {
            "fused_activation": _ACTIVATION,
            "cell_clip": Field(1, "f32"),
            "proj_clip": Field(2, "f32"),
            "time_major": Field(3, "bool"),
            "asymmetric_quantize_inputs": Field(4, "bool"),
            "diagonal_recurrent_tensors": Field(5, "bool"),
        },
    ),
    "LeakyReluOptions": Options(75, {"alpha": Field(0, "f32")}),
    "MirrorPadOptions": Options(77, {"mode": Field(0, "i8")}),
    "SplitVOptions": Options(79, _SPLIT),
    "WhileOptions": Options(93, {"cond_subgraph_index": Field(0, "i32"), "body_subgraph_index": Field(1, "i32")}),
    "BatchMatMulOptions": Options(
        101,
        {
            "adj_x": Field(0, "bool"),
            "adj_y": Field(1, "bool"),
            "asymmetric_quantize_inputs": Field(2, "bool"),
        },
    ),
    "CumsumOptions": Options(102, {"exclusive": Field(0, "bool"), "reverse": Field(1, "bool")}),
    "BucketizeOptions": Options(115, {"boundaries": Field(0, "f32[]")}),
    "GeluOptions": Options(116, {"approximate": Field(0, "bool")}),
}
"""Tables of options by their name in the schema; those without fields are left out."""
