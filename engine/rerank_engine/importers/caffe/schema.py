"""The protobuf messages of Caffe's public ``caffe.proto``, declared without generated code.

Every message that a network of BVLC Caffe may hold is declared, also those of layers that are not converted: a
``train_val.prototxt`` must parse before its training layers can be left out, and text with an unknown field must be
refused by the field's name. The messages live in a descriptor pool of their own, so that an installed Caffe, whose
messages have the same full names, does not collide with them.

Each message is a line of fields: type, ``*`` when repeated, name, number, and default.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from rerank_engine.errors import MissingExtraError

_PACKAGE = "caffe"

_NETWORK = {
    "BlobShape": "int64* dim=1",
    "BlobProto": (
        "BlobShape shape=7; float* data=5; float* diff=6; double* double_data=8; double* double_diff=9;"
        "int32 num=1; int32 channels=2; int32 height=3; int32 width=4"
    ),
    "FillerParameter": (
        "string type=1:constant; float value=2; float min=3; float max=4:1; float mean=5; float std=6:1;"
        "int32 sparse=7:-1; FillerParameter.VarianceNorm variance_norm=8:FAN_IN"
    ),
    "NetParameter": (
        "string name=1; string* input=3; BlobShape* input_shape=8; int32* input_dim=4; bool force_backward=5;"
        "NetState state=6; bool debug_info=7; LayerParameter* layer=100; V1LayerParameter* layers=2"
    ),
    "NetState": "Phase phase=1:TEST; int32 level=2; string* stage=3",
    "NetStateRule": "Phase phase=1; int32 min_level=2; int32 max_level=3; string* stage=4; string* not_stage=5",
    "ParamSpec": ("string name=1; ParamSpec.DimCheckMode share_mode=2:STRICT; float lr_mult=3:1; float decay_mult=4:1"),
}

_LAYER_HEAD = (
    "string name=1; string type=2; string* bottom=3; string* top=4; Phase phase=10; float* loss_weight=5;"
    "ParamSpec* param=6; BlobProto* blobs=7; bool* propagate_down=11; NetStateRule* include=8; NetStateRule* exclude=9"
)

_V1_HEAD = (
    "V0LayerParameter layer=1; string* bottom=2; string* top=3; string name=4; V1LayerParameter.LayerType type=5;"
    "BlobProto* blobs=6; float* blobs_lr=7; float* weight_decay=8; NetStateRule* include=32; NetStateRule* exclude=33;"
    "float* loss_weight=35; string* param=1001; ParamSpec.DimCheckMode* blob_share_mode=1002"
)

# Message of a layer's parameters: field of LayerParameter and its number, number in V1LayerParameter (0: none), fields.
_PARAMETERS: dict[str, tuple[str, int, int, str]] = {
    "TransformationParameter": (
        "transform_param", 100, 36,
        "float scale=1:1; bool mirror=2; uint32 crop_size=3; string mean_file=4; float* mean_value=5;"
        "bool force_color=6; bool force_gray=7",
    ),
    "LossParameter": (
        "loss_param", 101, 42,
        "int32 ignore_label=1; bool normalize=2; LossParameter.NormalizationMode normalization=3:VALID",
    ),
    "AccuracyParameter": ("accuracy_param", 102, 27, "uint32 top_k=1:1; int32 axis=2:1; int32 ignore_label=3"),
    "ArgMaxParameter": ("argmax_param", 103, 23, "bool out_max_val=1; uint32 top_k=2:1; int32 axis=3"),
    "BatchNormParameter": (
        "batch_norm_param", 139, 0, "bool use_global_stats=1; float moving_average_fraction=2:.999; float eps=3:1e-5",
    ),
    "BiasParameter": ("bias_param", 141, 0, "int32 axis=1:1; int32 num_axes=2:1; FillerParameter filler=3"),
    "ClipParameter": ("clip_param", 148, 0, "float min=1; float max=2"),
    "ConcatParameter": ("concat_param", 104, 9, "uint32 concat_dim=1:1; int32 axis=2:1"),
    "ContrastiveLossParameter": ("contrastive_loss_param", 105, 40, "float margin=1:1; bool legacy_version=2"),
    "ConvolutionParameter": (
        "convolution_param", 106, 10,
        "uint32 num_output=1; bool bias_term=2:true; uint32* pad=3; uint32* kernel_size=4; uint32 group=5:1;"
        "uint32* stride=6; FillerParameter weight_filler=7; FillerParameter bias_filler=8; uint32 pad_h=9;"
        "uint32 pad_w=10; uint32 kernel_h=11; uint32 kernel_w=12; uint32 stride_h=13; uint32 stride_w=14;"
        "Engine engine=15:DEFAULT; int32 axis=16:1; bool force_nd_im2col=17; uint32* dilation=18",
    ),
    "CropParameter": ("crop_param", 144, 0, "int32 axis=1:2; uint32* offset=2"),
    "DataParameter": (
        "data_param", 107, 11,
        "string source=1; float scale=2:1; string mean_file=3; uint32 batch_size=4; uint32 crop_size=5; bool mirror=6;"
        "uint32 rand_skip=7; DataParameter.DB backend=8:LEVELDB; bool force_encoded_color=9; uint32 prefetch=10:4",
    ),
    "DropoutParameter": ("dropout_param", 108, 12, "float dropout_ratio=1:0.5"),
    "DummyDataParameter": (
        "dummy_data_param", 109, 26,
        "FillerParameter* data_filler=1; uint32* num=2; uint32* channels=3; uint32* height=4; uint32* width=5;"
        "BlobShape* shape=6",
    ),
    "EltwiseParameter": (
        "eltwise_param", 110, 24,
        "EltwiseParameter.EltwiseOp operation=1:SUM; float* coeff=2; bool stable_prod_grad=3:true",
    ),
    "ELUParameter": ("elu_param", 140, 0, "float alpha=1:1"),
    "EmbedParameter": (
        "embed_param", 137, 0,
        "uint32 num_output=1; uint32 input_dim=2; bool bias_term=3:true; FillerParameter weight_filler=4;"
        "FillerParameter bias_filler=5",
    ),
    "ExpParameter": ("exp_param", 111, 41, "float base=1:-1; float scale=2:1; float shift=3"),
    "FlattenParameter": ("flatten_param", 135, 0, "int32 axis=1:1; int32 end_axis=2:-1"),
    "HDF5DataParameter": ("hdf5_data_param", 112, 13, "string source=1; uint32 batch_size=2; bool shuffle=3"),
    "HDF5OutputParameter": ("hdf5_output_param", 113, 14, "string file_name=1"),
    "HingeLossParameter": ("hinge_loss_param", 114, 29, "HingeLossParameter.Norm norm=1:L1"),
    "ImageDataParameter": (
        "image_data_param", 115, 15,
        "string source=1; float scale=2:1; string mean_file=3; uint32 batch_size=4:1; uint32 crop_size=5;"
        "bool mirror=6; uint32 rand_skip=7; bool shuffle=8; uint32 new_height=9; uint32 new_width=10;"
        "bool is_color=11:true; string root_folder=12",
    ),
    "InfogainLossParameter": ("infogain_loss_param", 116, 16, "string source=1; int32 axis=2:1"),
    "InnerProductParameter": (
        "inner_product_param", 117, 17,
        "uint32 num_output=1; bool bias_term=2:true; FillerParameter weight_filler=3; FillerParameter bias_filler=4;"
        "int32 axis=5:1; bool transpose=6",
    ),
    "InputParameter": ("input_param", 143, 0, "BlobShape* shape=1"),
    "LogParameter": ("log_param", 134, 0, "float base=1:-1; float scale=2:1; float shift=3"),
    "LRNParameter": (
        "lrn_param", 118, 18,
        "uint32 local_size=1:5; float alpha=2:1; float beta=3:.75; LRNParameter.NormRegion norm_region=4;"
        "float k=5:1; Engine engine=6:DEFAULT",
    ),
    "MemoryDataParameter": (
        "memory_data_param", 119, 22, "uint32 batch_size=1; uint32 channels=2; uint32 height=3; uint32 width=4",
    ),
    "MVNParameter": ("mvn_param", 120, 34, "bool normalize_variance=1:true; bool across_channels=2; float eps=3:1e-9"),
    "ParameterParameter": ("parameter_param", 145, 0, "BlobShape shape=1"),
    "PoolingParameter": (
        "pooling_param", 121, 19,
        "PoolMethod pool=1:MAX; uint32 kernel_size=2; uint32 stride=3:1; uint32 pad=4; uint32 kernel_h=5;"
        "uint32 kernel_w=6; uint32 stride_h=7; uint32 stride_w=8; uint32 pad_h=9; uint32 pad_w=10;"
        "Engine engine=11:DEFAULT; bool global_pooling=12; PoolingParameter.RoundMode round_mode=13:CEIL",
    ),
    "PowerParameter": ("power_param", 122, 21, "float power=1:1; float scale=2:1; float shift=3"),
    "PReLUParameter": ("prelu_param", 131, 0, "FillerParameter filler=1; bool channel_shared=2"),
    "PythonParameter": (
        "python_param", 130, 0, "string module=1; string layer=2; string param_str=3; bool share_in_parallel=4",
    ),
    "RecurrentParameter": (
        "recurrent_param", 146, 0,
        "uint32 num_output=1; FillerParameter weight_filler=2; FillerParameter bias_filler=3; bool debug_info=4;"
        "bool expose_hidden=5",
    ),
    "ReductionParameter": (
        "reduction_param", 136, 0,
        "ReductionParameter.ReductionOp operation=1:SUM; int32 axis=2; float coeff=3:1",
    ),
    "ReLUParameter": ("relu_param", 123, 30, "float negative_slope=1; Engine engine=2:DEFAULT"),
    "ReshapeParameter": ("reshape_param", 133, 0, "BlobShape shape=1; int32 axis=2; int32 num_axes=3:-1"),
    "ScaleParameter": (
        "scale_param", 142, 0,
        "int32 axis=1:1; int32 num_axes=2:1; FillerParameter filler=3; bool bias_term=4; FillerParameter bias_filler=5",
    ),
    "SigmoidParameter": ("sigmoid_param", 124, 38, "Engine engine=1:DEFAULT"),
    "SliceParameter": ("slice_param", 126, 31, "uint32 slice_dim=1:1; uint32* slice_point=2; int32 axis=3:1"),
    "SoftmaxParameter": ("softmax_param", 125, 39, "Engine engine=1:DEFAULT; int32 axis=2:1"),
    "SPPParameter": ("spp_param", 132, 0, "uint32 pyramid_height=1; PoolMethod pool=2:MAX; Engine engine=6:DEFAULT"),
    "SwishParameter": ("swish_param", 147, 0, "float beta=1:1"),
    "TanHParameter": ("tanh_param", 127, 37, "Engine engine=1:DEFAULT"),
    "ThresholdParameter": ("threshold_param", 128, 25, "float threshold=1"),
    "TileParameter": ("tile_param", 138, 0, "int32 axis=1:1; int32 tiles=2"),
    "WindowDataParameter": (
        "window_data_param", 129, 20,
        "string source=1; float scale=2:1; string mean_file=3; uint32 batch_size=4; uint32 crop_size=5; bool mirror=6;"
        "float fg_threshold=7:0.5; float bg_threshold=8:0.5; float fg_fraction=9:0.25; uint32 context_pad=10;"
        "string crop_mode=11:warp; bool cache_images=12; string root_folder=13",
    ),
}  # fmt: skip

# The oldest form of a layer is only recognised, to be refused by name.
_V0_LAYER = (
    "string name=1; string type=2; uint32 num_output=3; bool biasterm=4:true; FillerParameter weight_filler=5;"
    "FillerParameter bias_filler=6; uint32 pad=7; uint32 kernelsize=8; uint32 group=9:1; uint32 stride=10:1;"
    "PoolMethod pool=11:MAX; float dropout_ratio=12:0.5; uint32 local_size=13:5; float alpha=14:1; float beta=15:.75;"
    "string source=16; float scale=17:1; string meanfile=18; uint32 batchsize=19; uint32 cropsize=20; bool mirror=21;"
    "float k=22:1; BlobProto* blobs=50; float* blobs_lr=51; float* weight_decay=52; uint32 rand_skip=53;"
    "float det_fg_threshold=54:0.5; float det_bg_threshold=55:0.5; float det_fg_fraction=56:0.25;"
    "uint32 det_context_pad=58; string det_crop_mode=59:warp; int32 new_num=60; int32 new_channels=61;"
    "int32 new_height=62; int32 new_width=63; bool shuffle_images=64; uint32 concat_dim=65:1;"
    "HDF5OutputParameter hdf5_output_param=1001"
)

_ENUMS = {
    "Phase": "TRAIN=0 TEST=1",
    # One scope a message in caffe.proto; the same words everywhere, so one message holds them.
    "Engine": "DEFAULT=0 CAFFE=1 CUDNN=2",
    "PoolMethod": "MAX=0 AVE=1 STOCHASTIC=2",
    "FillerParameter.VarianceNorm": "FAN_IN=0 FAN_OUT=1 AVERAGE=2",
    "ParamSpec.DimCheckMode": "STRICT=0 PERMISSIVE=1",
    "LossParameter.NormalizationMode": "FULL=0 VALID=1 BATCH_SIZE=2 NONE=3",
    "DataParameter.DB": "LEVELDB=0 LMDB=1",
    "EltwiseParameter.EltwiseOp": "PROD=0 SUM=1 MAX=2",
    "HingeLossParameter.Norm": "L1=1 L2=2",
    "LRNParameter.NormRegion": "ACROSS_CHANNELS=0 WITHIN_CHANNEL=1",
    "PoolingParameter.RoundMode": "CEIL=0 FLOOR=1",
    "ReductionParameter.ReductionOp": "SUM=1 ASUM=2 SUMSQ=3 MEAN=4",
    "V1LayerParameter.LayerType": (
        "NONE=0 ACCURACY=1 BNLL=2 CONCAT=3 CONVOLUTION=4 DATA=5 DROPOUT=6 EUCLIDEAN_LOSS=7 FLATTEN=8 HDF5_DATA=9"
        " HDF5_OUTPUT=10 IM2COL=11 IMAGE_DATA=12 INFOGAIN_LOSS=13 INNER_PRODUCT=14 LRN=15 MULTINOMIAL_LOGISTIC_LOSS=16"
        " POOLING=17 RELU=18 SIGMOID=19 SOFTMAX=20 SOFTMAX_LOSS=21 SPLIT=22 TANH=23 WINDOW_DATA=24 ELTWISE=25 POWER=26"
        " SIGMOID_CROSS_ENTROPY_LOSS=27 HINGE_LOSS=28 MEMORY_DATA=29 ARGMAX=30 THRESHOLD=31 DUMMY_DATA=32 SLICE=33"
        " MVN=34 ABSVAL=35 SILENCE=36 CONTRASTIVE_LOSS=37 EXP=38 DECONVOLUTION=39"
    ),
}

_FIELD = re.compile(r"(?P<type>[\w.]+)(?P<repeated>\*?) (?P<name>\w+)=(?P<number>\d+)(?::(?P<default>\S+))?")

PARAMETER_FIELDS = tuple(entry[0] for entry in _PARAMETERS.values())
"""Fields of ``LayerParameter`` that hold parameters of one layer type or family."""


def message_class(name: str) -> Any:
    """Class of a message of ``caffe.proto``.

    Parameters
    ----------
    name
        ``"NetParameter"``, ``"BlobProto"`` and so on.

    Raises
    ------
    MissingExtraError
        ``protobuf`` is not installed.

    Examples
    --------
    >>> net = message_class("NetParameter")(name="small")
    >>> layer = net.layer.add(name="relu", type="ReLU", bottom=["x"], top=["x"])
    >>> layer.relu_param.negative_slope = 0.5
    >>> message_class("NetParameter").FromString(net.SerializeToString()).layer[0].relu_param.negative_slope
    0.5
    """
    try:
        from google.protobuf.message_factory import GetMessageClass
    except ImportError as error:
        raise MissingExtraError("reading Caffe models", "convert") from error
    return GetMessageClass(_pool().FindMessageTypeByName(f"{_PACKAGE}.{name}"))


@cache
def _pool() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package=_PACKAGE, syntax="proto2")
    layer = [_LAYER_HEAD, *(f"{name} {field}={number}" for name, (field, number, _, _) in _PARAMETERS.items())]
    v1_layer = [
        _V1_HEAD,
        *(f"{name} {field}={number}" for name, (field, _, number, _) in _PARAMETERS.items() if number),
    ]
    messages = {
        **_NETWORK,
        **{name: fields for name, (_, _, _, fields) in _PARAMETERS.items()},
        "V0LayerParameter": _V0_LAYER,
        "V1LayerParameter": "; ".join(v1_layer),
        "LayerParameter": "; ".join(layer),
    }
    holders = {name: file.message_type.add(name=name) for name in messages}
    for path, values in _ENUMS.items():
        holder, _, name = path.rpartition(".")
        if not holder:
            # Values of a top-level enum share the scope of the file, where words such as MAX would meet twice.
            holders[path] = file.message_type.add(name=f"{path}Scope")
        enum = holders[holder or path].enum_type.add(name=name)
        for value in values.split():
            word, _, number = value.partition("=")
            enum.value.add(name=word, number=int(number))
    for name, fields in messages.items():
        for text in fields.split(";"):
            _add_field(holders[name], text.strip(), set(messages))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _add_field(message: Any, text: str, messages: set[str]) -> None:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    match = _FIELD.fullmatch(text)
    assert match is not None, text
    kind, default = match["type"], match["default"]
    field = message.field.add(name=match["name"], number=int(match["number"]))
    field.label = FieldDescriptorProto.LABEL_REPEATED if match["repeated"] else FieldDescriptorProto.LABEL_OPTIONAL
    if kind in messages:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    elif kind in _ENUMS:
        field.type = FieldDescriptorProto.TYPE_ENUM
        field.type_name = f".{_PACKAGE}.{kind}" if "." in kind else f".{_PACKAGE}.{kind}Scope.{kind}"
    else:
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    if match["repeated"] and message.name.startswith("Blob"):
        field.options.packed = True
    if default is not None:
        field.default_value = default
