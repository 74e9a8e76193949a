"""Make the TensorFlow and TFLite models of the tests, with the outputs that TensorFlow itself computes.

    python -m venv venv && venv/bin/pip install 'tensorflow-cpu==2.21.*' 'tf-keras==2.21.*'
    venv/bin/python make_tensorflow_models.py tests/engine/data [operators | tflite | saved_models]

Writes ``saved_models/NAME/``, ``NAME.tflite``, and with the inputs and outputs ``saved_models.npz``,
``tflite_models.npz``, ``tflite_operators.npz`` (a tiny model for each operator) and ``tflite_refused.npz``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import flatbuffers
import numpy as np
import tensorflow as tf
import tf_keras
from numpy.typing import NDArray
from tensorflow.lite.python import schema_py_generated as schema
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

Array = NDArray[Any]
Draw = Callable[[np.random.Generator, int], dict[str, Array]]

LENGTHS = (0, 1, 7, 200)
VOCABULARY, CATEGORIES, HISTORY, WIDTH = 40, 6, 8, 8
layers = tf.keras.layers
NORMS = (layers.BatchNormalization, layers.LayerNormalization)


def spec(shape: Sequence[int | None], dtype: str, name: str) -> tf.TensorSpec:
    return tf.TensorSpec(shape, dtype, name)


class Model(tf.Module):
    """A model whose weights look trained: none is zero, no two are the same."""

    def randomize(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        for layer in self._parts():
            for variable in layer.variables if isinstance(layer, layers.Layer) else [layer]:
                values = random.normal(0, 0.5, variable.shape)
                is_scale = isinstance(layer, NORMS) and any(word in variable.path for word in ("variance", "gamma"))
                variable.assign(np.abs(values) + 0.5 if is_scale else values)

    def _parts(self) -> list[Any]:
        found = [part for name, part in sorted(vars(self).items()) if not name.startswith("_")]
        flat = [part for entry in found for part in (entry if isinstance(entry, list) else [entry])]
        return [part for part in flat if isinstance(part, layers.Layer | tf.Variable)]


class WideDeep(Model):
    """Wide & Deep (Cheng et al. 2016): a linear part over ids beside an MLP over embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.wide_item = layers.Embedding(VOCABULARY, 1)
        self.wide_category = layers.Embedding(CATEGORIES, 1)
        self.item = layers.Embedding(VOCABULARY, WIDTH)
        self.category = layers.Embedding(CATEGORIES, 4)
        self.norm = layers.BatchNormalization()
        self.hidden = [layers.Dense(16, activation="relu"), layers.Dense(8, activation="relu")]
        self.out = layers.Dense(1)

    @tf.function(
        input_signature=[
            spec((None,), "int32", "item"),
            spec((None,), "int32", "category"),
            spec((None, 4), "float32", "dense"),
        ]
    )
    def __call__(self, item: tf.Tensor, category: tf.Tensor, dense: tf.Tensor) -> dict[str, tf.Tensor]:
        value = tf.concat([self.item(item), self.category(category), dense], axis=-1)
        value = self.norm(value, training=False)
        for layer in self.hidden:
            value = layer(value)
        logit = self.out(value) + self.wide_item(item) + self.wide_category(category)
        return {"score": tf.sigmoid(logit)[:, 0]}

    @staticmethod
    def draw(random: np.random.Generator, count: int) -> dict[str, Array]:
        return {
            "item": random.integers(0, VOCABULARY, count, dtype=np.int32),
            "category": random.integers(0, CATEGORIES, count, dtype=np.int32),
            "dense": random.normal(0, 2, (count, 4)).astype(np.float32),
        }


class Attention(Model):
    """DIN (Zhou et al. 2018): each candidate attends to the history; id 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.item = layers.Embedding(VOCABULARY, WIDTH)
        self.attention = [layers.Dense(12, activation="sigmoid"), layers.Dense(1)]
        self.slope = tf.Variable(np.full((16,), 0.2, np.float32))
        self.hidden = layers.Dense(16)
        self.out = layers.Dense(1)

    @tf.function(input_signature=[spec((None,), "int32", "item"), spec((HISTORY,), "int32", "history")])
    def __call__(self, item: tf.Tensor, history: tf.Tensor) -> dict[str, tf.Tensor]:
        target = self.item(item)[:, None, :]
        steps = self.item(history)[None, :, :]
        target, steps = (
            tf.broadcast_to(target, tf.shape(target + steps)),
            tf.broadcast_to(steps, tf.shape(target + steps)),
        )
        value = tf.concat([steps, target, steps - target, steps * target], axis=-1)
        for layer in self.attention:
            value = layer(value)
        is_kept = tf.cast(history > 0, tf.float32)[None, :]
        weights = tf.nn.softmax(value[..., 0] - 1e9 * (1 - is_kept))
        interest = tf.reduce_sum(weights[..., None] * steps, axis=1)
        value = self.hidden(tf.concat([interest, target[:, 0]], axis=-1))
        value = tf.maximum(value, 0) + self.slope * tf.minimum(value, 0)
        return {"score": tf.squeeze(self.out(value), axis=-1)}

    @staticmethod
    def draw(random: np.random.Generator, count: int) -> dict[str, Array]:
        history = random.integers(1, VOCABULARY, HISTORY, dtype=np.int32)
        history[-3:] = 0
        return {"item": random.integers(0, VOCABULARY, count, dtype=np.int32), "history": history}


class Recurrent(Model):
    """GRU4Rec-like: a recurrent layer reads the history, its state meets each candidate."""

    def __init__(self, cell: str, unroll: bool) -> None:
        super().__init__()
        self.item = layers.Embedding(VOCABULARY, WIDTH)
        self.recurrent = getattr(layers, cell)(10, unroll=unroll)
        self.project = layers.Dense(WIDTH, activation="tanh")

    @tf.function(input_signature=[spec((None,), "int32", "item"), spec((HISTORY,), "int32", "history")])
    def __call__(self, item: tf.Tensor, history: tf.Tensor) -> dict[str, tf.Tensor]:
        user = self.project(self.recurrent(self.item(history)[None]))
        return {"score": tf.reduce_sum(self.item(item) * user, axis=-1)}

    draw = staticmethod(Attention.draw)


class Transformer(Model):
    """BST (Chen et al. 2019): one transformer block over the history and the candidate."""

    def __init__(self) -> None:
        super().__init__()
        self.item = layers.Embedding(VOCABULARY, WIDTH)
        self.place = tf.Variable(np.zeros((HISTORY + 1, WIDTH), np.float32))
        self.attention = layers.MultiHeadAttention(2, 4)
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.forward = [layers.Dense(16, activation="gelu"), layers.Dense(WIDTH)]
        self.out = layers.Dense(1)

    @tf.function(input_signature=[spec((None,), "int32", "item"), spec((HISTORY,), "int32", "history")])
    def __call__(self, item: tf.Tensor, history: tf.Tensor) -> dict[str, tf.Tensor]:
        steps = tf.tile(self.item(history)[None], [tf.shape(item)[0], 1, 1])
        value = tf.concat([steps, self.item(item)[:, None]], axis=1) + self.place
        value = self.norms[0](value + self.attention(value, value))
        value = self.norms[1](value + self.forward[1](self.forward[0](value)))
        return {"score": self.out(value[:, -1])[:, 0]}

    draw = staticmethod(Attention.draw)


def build(model: Model, seed: int) -> Model:
    model.__call__.get_concrete_function()
    model.randomize(seed)
    return model


def record(
    run: Callable[[dict[str, Array]], Mapping[str, Array]], draw: Draw, lengths: Sequence[int]
) -> dict[str, Array]:
    """Inputs and outputs for each length, by ``LENGTH/in/NAME`` and ``LENGTH/out/NAME``."""
    found: dict[str, Array] = {}
    for count in lengths:
        feeds = draw(np.random.default_rng(count), count)
        found |= {f"{count}/in/{name}": array for name, array in feeds.items()}
        found |= {f"{count}/out/{name}": np.asarray(array) for name, array in run(feeds).items()}
    return found


def save(path: Path, groups: Mapping[str, Mapping[str, Array]]) -> None:
    """Write arrays as one run of bytes with an index: an archive entry for each would be larger than its content."""
    index, parts, place = {}, [], 0
    for group, found in sorted(groups.items()):
        for name, array in found.items():
            index[f"{group}/{name}"] = (array.dtype.str, array.shape, place)
            parts.append(array.tobytes())
            place += array.nbytes
    data = np.frombuffer(b"".join(parts), np.uint8)
    np.savez_compressed(path, index=np.frombuffer(json.dumps(index).encode(), np.uint8), data=data)


def interpret(content: bytes) -> Callable[[dict[str, Array]], Mapping[str, Array]]:
    """Run a TFLite model in the interpreter, resized to the feeds, without the XNNPACK delegate."""
    interpreter = tf.lite.Interpreter(
        model_content=content,
        experimental_op_resolver_type=tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    signature = interpreter.get_signature_list()
    (names,) = signature.values() if signature else ({},)

    def run(feeds: dict[str, Array]) -> Mapping[str, Array]:
        if names:
            runner = interpreter.get_signature_runner()
            return runner(**feeds)
        for detail in interpreter.get_input_details():
            interpreter.resize_tensor_input(detail["index"], feeds[_plain(detail["name"])].shape)
        interpreter.allocate_tensors()
        for detail in interpreter.get_input_details():
            interpreter.set_tensor(detail["index"], feeds[_plain(detail["name"])])
        interpreter.invoke()
        return {
            _plain(detail["name"]): interpreter.get_tensor(detail["index"])
            for detail in interpreter.get_output_details()
        }

    return run


def _plain(name: str) -> str:
    return name.removeprefix("serving_default_").removesuffix(":0")


def lite(model: Any, form: str = "float32") -> bytes:
    """Convert to TFLite, with weights or all values quantised when asked."""
    frozen = convert_variables_to_constants_v2(model.__call__.get_concrete_function())
    return quantize(tf.lite.TFLiteConverter.from_concrete_functions([frozen]), form, model.draw)


def quantize(converter: Any, form: str, draw: Draw) -> bytes:
    if form != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if form == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if form.startswith("int"):
        random = np.random.default_rng(5)
        samples = [draw(random, 1) for _ in range(64)]
        converter.representative_dataset = lambda: iter([list(sample.values()) for sample in samples])
        ops = tf.lite.OpsSet
        converter.target_spec.supported_ops = [
            ops.TFLITE_BUILTINS_INT8
            if form == "int8"
            else ops.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        ]
    return converter.convert()


class Case(tf.Module):
    """One operator: a function of inputs whose first dimension varies unless the shape says otherwise."""

    def __init__(self, function: Callable[..., tf.Tensor], inputs: Sequence[tuple[str, Sequence[int | None]]]) -> None:
        super().__init__()
        names = [f"input_{place}" for place in range(len(inputs))]
        specs = [spec(shape, kind.rstrip("+"), name) for name, (kind, shape) in zip(names, inputs, strict=True)]
        self.inputs = dict(zip(names, inputs, strict=True))
        self.__call__ = tf.function(function, input_signature=specs)

    def draw(self, random: np.random.Generator, count: int) -> dict[str, Array]:
        """``float32+`` is positive; whole numbers are 0 to 4, and with ``+`` -9 to 9 without 0."""
        found = {}
        for name, (kind, shape) in self.inputs.items():
            size = [count if dim is None else dim for dim in shape]
            if kind == "bool":
                found[name] = random.random(size) < 0.5
            elif kind.startswith("float32"):
                values = random.normal(0, 2, size)
                found[name] = (np.abs(values) + 0.1 if kind.endswith("+") else values).astype(np.float32)
            elif kind.endswith("+"):
                found[name] = (random.integers(1, 10, size) * random.choice([-1, 1], size)).astype(kind.rstrip("+"))
            else:
                found[name] = random.integers(0, 5, size).astype(kind)
        return found


def constant(*shape: int, seed: int = 3) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32))


F, P = ("float32", (None, 6)), ("float32+", (None, 6))
F3, F4 = ("float32", (None, 4, 6)), ("float32", (None, 5, 6, 4))
W, S, B = ("int32", (None, 3)), ("int32+", (None, 3)), ("bool", (None, 6))
C = constant

CASES: dict[str, Case] = {
    "abs": Case(tf.abs, [F]),
    "add_relu": Case(lambda a: tf.nn.relu(a + C(6)), [F]),
    "add_relu6": Case(lambda a: tf.nn.relu6(a + C(6)), [F]),
    "add_relu_n1_to_1": Case(lambda a: tf.minimum(tf.maximum(a + C(6), -1.0), 1.0), [F]),
    "add_int": Case(lambda a: a + a, [W]),
    "add_n": Case(lambda a, b: tf.add_n([a, b, a]), [F, F]),
    "all_any": Case(lambda a: tf.reduce_any(a, 1) ^ tf.reduce_all(a[:, :1], 1), [B]),
    "any": Case(lambda a: tf.reduce_any(a, 1, keepdims=True), [B]),
    "all": Case(lambda a: tf.reduce_all(a, 1), [B]),
    "arg_max": Case(lambda a: tf.argmax(a, 1, output_type=tf.int32), [F]),
    "arg_min": Case(lambda a: tf.argmin(a, -1), [F]),
    "average_pool_same": Case(lambda a: tf.nn.avg_pool2d(a, [3, 2], [2, 2], "SAME"), [F4]),
    "average_pool_valid": Case(lambda a: tf.nn.relu(tf.nn.avg_pool2d(a, 2, 1, "VALID")), [F4]),
    "batch_matmul": Case(lambda a, b: tf.matmul(a, b, transpose_b=True), [F3, F3]),
    "batch_matmul_adjoint": Case(lambda a, b: tf.matmul(a, b, transpose_a=True), [F3, F3]),
    "broadcast_args": Case(lambda a: tf.broadcast_to(a, tf.broadcast_dynamic_shape(tf.shape(a), [2, 1, 1])), [F]),
    "broadcast_to": Case(lambda a: tf.broadcast_to(a[:, None], [tf.shape(a)[0], 3, 6]), [F]),
    "bucketize": Case(lambda a: tf.raw_ops.Bucketize(input=a, boundaries=[-1.0, 0.0, 0.5, 2.0]), [F]),
    "cast": Case(lambda a: tf.cast(a, tf.int32), [F]),
    "cast_bool": Case(lambda a: tf.cast(tf.cast(a, tf.bool), tf.float32), [W]),
    "ceil": Case(tf.math.ceil, [F]),
    "concatenation": Case(lambda a, b: tf.concat([a, b, C(4, 6)[None] + 0 * a], 2), [F3, F3]),
    "convolution": Case(lambda a: tf.nn.relu(tf.nn.conv2d(a, C(3, 2, 4, 5), [2, 1], "SAME") + C(5)), [F4]),
    "convolution_dilated": Case(lambda a: tf.nn.conv2d(a, C(2, 2, 4, 3), 1, "VALID", dilations=2), [F4]),
    "convolution_groups": Case(lambda a: tf.nn.conv2d(a, C(2, 2, 2, 6), 1, "VALID"), [F4]),
    "cos": Case(tf.cos, [F]),
    "cumsum": Case(lambda a: tf.cumsum(a, 1), [F]),
    "cumsum_exclusive_reverse": Case(lambda a: tf.cumsum(a, 1, exclusive=True, reverse=True), [F3]),
    "depthwise_convolution": Case(lambda a: tf.nn.depthwise_conv2d(a, C(3, 3, 4, 2), [1, 1, 1, 1], "SAME"), [F4]),
    "div": Case(lambda a, b: a / b, [F, P]),
    "div_int": Case(lambda a, b: tf.raw_ops.TruncateDiv(x=a, y=b), [S, S]),
    "elu": Case(tf.nn.elu, [F]),
    "equal": Case(tf.equal, [W, W]),
    "exp": Case(tf.exp, [F]),
    "expand_dims": Case(lambda a: tf.expand_dims(a, -2) * C(3, 1), [F]),
    "fill": Case(lambda a: tf.fill([tf.shape(a)[0], 2], 3.5), [F]),
    "floor": Case(tf.floor, [F]),
    "floor_div": Case(tf.math.floordiv, [F, P]),
    "floor_div_int": Case(tf.math.floordiv, [S, S]),
    "floor_mod": Case(tf.math.floormod, [F, F]),
    "floor_mod_int": Case(tf.math.floormod, [S, S]),
    "fully_connected": Case(lambda a: tf.nn.relu(tf.matmul(a, C(6, 5)) + C(5)), [F]),
    "fully_connected_rank_3": Case(lambda a: tf.nn.tanh(tf.tensordot(a, C(6, 5), 1) + C(5)), [F3]),
    "gather": Case(lambda a: tf.gather(C(5, 6), a), [W]),
    "gather_axis": Case(lambda a: tf.gather(a, [3, 0, 3], axis=1), [F3]),
    "gather_batch": Case(lambda a, b: tf.gather(a, b, axis=1, batch_dims=1), [("float32", (None, 5, 6)), W]),
    "gather_nd": Case(lambda a: tf.gather_nd(C(5, 5, 5, 2), a), [W]),
    "gelu": Case(lambda a: tf.nn.gelu(a, approximate=False), [F]),
    "gelu_approximate": Case(lambda a: tf.nn.gelu(a, approximate=True), [F]),
    "greater": Case(lambda a, b: a > b, [F, F]),
    "greater_equal": Case(lambda a, b: a >= b, [W, W]),
    "hard_swish": Case(lambda a: a * tf.nn.relu6(a + 3.0) * 0.16666667, [F]),
    "l2_normalization": Case(lambda a: tf.math.l2_normalize(a, -1), [F]),
    "l2_normalization_tiny": Case(lambda a: tf.math.l2_normalize(a * 1e-7, -1), [F]),
    "leaky_relu": Case(lambda a: tf.nn.leaky_relu(a, 0.3), [F]),
    "less": Case(lambda a, b: a < b, [F, F]),
    "less_equal": Case(lambda a, b: a <= b, [W, W]),
    "log": Case(tf.math.log, [P]),
    "log_softmax": Case(tf.nn.log_softmax, [F]),
    "logical": Case(lambda a, b: tf.logical_or(tf.logical_and(a, b), tf.logical_not(a)), [B, B]),
    "logistic": Case(tf.sigmoid, [F]),
    "max_pool": Case(lambda a: tf.nn.max_pool2d(a, 3, 2, "SAME"), [F4]),
    "maximum": Case(tf.maximum, [F, F]),
    "mean": Case(lambda a: tf.reduce_mean(a, [1, 2], keepdims=True), [F3]),
    "minimum": Case(tf.minimum, [F, F]),
    "mirror_pad": Case(lambda a: tf.pad(a, [[0, 0], [2, 1], [1, 2]], "REFLECT"), [F3]),
    "mul": Case(lambda a: a * C(4, 1), [F3]),
    "neg": Case(lambda a: -a, [F]),
    "not_equal": Case(tf.not_equal, [W, W]),
    "one_hot": Case(lambda a: tf.one_hot(a - 1, 3, 2.0, -1.0), [W]),
    "one_hot_axis": Case(lambda a: tf.one_hot(a, 5, axis=1), [W]),
    "pack": Case(lambda a, b: tf.stack([a, b], 1), [F, F]),
    "pad": Case(lambda a: tf.pad(a, [[0, 0], [2, 1], [0, 3]]), [F3]),
    "pad_value": Case(lambda a: tf.pad(a, [[0, 0], [2, 1]], constant_values=-7.5), [F]),
    "pow": Case(lambda a, b: tf.pow(a, b), [P, F]),
    "prelu": Case(lambda a: tf.nn.relu(a) + tf.constant([-0.1, -0.2, -0.3, -0.4, -0.5, 0.6]) * tf.nn.relu(-a), [F]),
    "range": Case(lambda a: tf.cast(tf.range(tf.shape(a)[0]), tf.float32)[:, None] + a, [F]),
    "reduce_max": Case(lambda a: tf.reduce_max(a, -1), [F]),
    "reduce_min": Case(lambda a: tf.reduce_min(a, 1, keepdims=True), [F3]),
    "reduce_prod": Case(lambda a: tf.reduce_prod(a, 1), [F]),
    "relu": Case(tf.nn.relu, [F]),
    "relu6": Case(tf.nn.relu6, [F]),
    "relu_0_to_1": Case(lambda a: tf.maximum(0.0, tf.minimum(1.0, a)), [F]),
    "relu_n1_to_1": Case(lambda a: tf.maximum(-1.0, tf.minimum(1.0, a)), [F]),
    "reshape": Case(lambda a: tf.reshape(a, [-1, 3, 8]), [F3]),
    "reshape_by_shape": Case(lambda a: tf.reshape(a, [tf.shape(a)[0], 24]) * 2.0, [F3]),
    "reverse": Case(lambda a: tf.reverse(a, [1]), [F3]),
    "round": Case(tf.round, [F]),
    "rsqrt": Case(tf.math.rsqrt, [P]),
    "select_rows": Case(lambda a, b: tf.raw_ops.Select(condition=a[:, 0], x=b, y=-b * 2), [B, F]),
    "select_v2": Case(lambda a, b: tf.where(a, b, C(6)), [B, F]),
    "sign": Case(tf.sign, [F]),
    "sin": Case(tf.sin, [F]),
    "slice": Case(lambda a: tf.slice(a, [0, 1, 2], [-1, 2, -1]), [F3]),
    "softmax": Case(tf.nn.softmax, [F3]),
    "split": Case(lambda a: tf.multiply(*tf.split(a, 2, 1)), [F]),
    "split_sizes": Case(lambda a: (lambda x, y, z: x * y * z)(*tf.split(a, [1, 1, 4], 1)), [F]),
    "sqrt": Case(tf.sqrt, [P]),
    "square": Case(tf.square, [F]),
    "squared_difference": Case(tf.math.squared_difference, [F, F]),
    "squeeze": Case(lambda a: tf.squeeze(a, [1, 3]) * 2.0, [("float32", (None, 1, None, 1))]),
    "strided_slice": Case(lambda a: a[:, ::2, -1] * 1.5, [F3]),
    "strided_slice_backward": Case(lambda a: a[:, 3:0:-2, ::-1] * 1.5, [F3]),
    "strided_slice_ellipsis": Case(lambda a: a[..., tf.newaxis, 1:5, 0] * 1.5, [F4]),
    "sub": Case(lambda a: 1.0 - a, [F]),
    "sum": Case(lambda a: tf.reduce_sum(a, [-1, 1]), [F3]),
    "sum_int": Case(lambda a: tf.reduce_sum(a, 1), [W]),
    "tanh": Case(tf.tanh, [F]),
    "tile": Case(lambda a: tf.tile(a, [1, 3]), [F]),
    "tile_by_shape": Case(lambda a, b: tf.tile(a, [tf.shape(b)[0], 1]) * b, [("float32", (1, 6)), F]),
    "top_k": Case(lambda a: tf.math.top_k(a, 3).values, [F]),
    "top_k_places": Case(lambda a: tf.math.top_k(a, 3).indices, [F]),
    "ties_arg_max": Case(lambda a: tf.argmax(tf.cast(a, tf.float32), 1), [("int32", (None, 9))]),
    "ties_top_k": Case(lambda a: tf.math.top_k(tf.cast(a, tf.float32), 5).indices, [("int32", (None, 9))]),
    "transpose": Case(lambda a: tf.transpose(a, [0, 2, 1]), [F3]),
    "unpack": Case(lambda a: (lambda w, x, y, z: w * x - y * z)(*tf.unstack(a, axis=1)), [F3]),
    "while": Case(
        lambda a: tf.while_loop(
            lambda step, value: step < 5, lambda step, value: (step + 1, tf.tanh(value * C(6) + 0.5)), [0, a]
        )[1],
        [("float32", (2, 6))],
    ),
    "zeros_like": Case(lambda a: tf.zeros_like(a) + C(6), [F]),
}


QUANTIZED = (
    "add_relu", "average_pool_same", "concatenation", "convolution", "fully_connected", "gather_axis", "logistic",
    "mean", "mul", "pad", "relu6", "softmax", "strided_slice", "sub", "tanh", "transpose",
)  # fmt: skip
"""Cases that are made with whole numbers too."""


def edit(content: bytes, change: Callable[[Any], None]) -> bytes:
    """Change a file through the schema's object form, for operators that today's converter does not write."""
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    change(model)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def one_operator(model: Any) -> Any:
    (operator,) = model.subgraphs[0].operators
    return operator


def set_code(model: Any, number: int, custom: str | None = None) -> None:
    code = model.operatorCodes[one_operator(model).opcodeIndex]
    code.builtinCode = code.deprecatedBuiltinCode = number
    code.customCode = custom


def to_embedding_lookup(model: Any) -> None:
    operator = one_operator(model)
    operator.inputs = operator.inputs[::-1]
    operator.builtinOptions, operator.builtinOptionsType = None, 0
    set_code(model, schema.BuiltinOperator.EMBEDDING_LOOKUP)


def set_option(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(one_operator(model).builtinOptions, name, value)


def add_option(model: Any) -> None:
    operator = one_operator(model)
    operator.builtinOptions = schema.GeluOptionsT()
    operator.builtinOptions.approximate = True
    operator.builtinOptionsType = schema.BuiltinOptions.GeluOptions


def make_sparse(model: Any) -> None:
    for tensor in model.subgraphs[0].tensors:
        if model.buffers[tensor.buffer].data is not None:
            tensor.sparsity = schema.SparsityParametersT()


EDITED: dict[str, tuple[Case, Callable[[Any], None]]] = {
    "embedding_lookup": (Case(lambda a: tf.gather(C(5, 6), a), [("int32", (None,))]), to_embedding_lookup),
}

REFUSED: dict[str, tuple[Case, str, Callable[[Any], None]]] = {
    "activation": (CASES["add_relu"], "float32", set_option("fusedActivationFunction", 5)),
    "custom": (CASES["abs"], "float32", lambda model: set_code(model, schema.BuiltinOperator.CUSTOM, "MyOperator")),
    "int16": (CASES["fully_connected"], "int16", lambda model: None),
    "mean_of_integers": (Case(lambda a: tf.reduce_mean(a, 1), [W]), "float32", lambda model: None),
    "new_option": (CASES["abs"], "float32", add_option),
    "operator": (Case(lambda a: tf.where(a), [B]), "float32", lambda model: None),
    "shuffled_weights": (CASES["fully_connected"], "float32", set_option("weightsFormat", 1)),
    "sparse": (CASES["fully_connected"], "float32", make_sparse),
    "while_by_data": (
        Case(
            lambda a: tf.while_loop(lambda value: tf.reduce_sum(value) < 9.0, lambda value: [value + 1.0], [a])[0],
            [("float32", (2, 6))],
        ),
        "float32",
        lambda model: None,
    ),
}
"""Files that must not be converted."""


def make_operators(folder: Path) -> None:
    """Write a tiny model for each operator, all in one archive."""
    made = {name: (lite(case), case.draw) for name, case in CASES.items()}
    made |= {f"{name}_int8": (lite(CASES[name], "int8"), CASES[name].draw) for name in QUANTIZED}
    made |= {name: (edit(lite(case), change), case.draw) for name, (case, change) in EDITED.items()}
    groups = {
        name: {"model": np.frombuffer(content, np.uint8)} | record(interpret(content), draw, (1, 4))
        for name, (content, draw) in sorted(made.items())
    }
    save(folder / "tflite_operators.npz", groups)
    refused = {name: edit(lite(case, form), change) for name, (case, form, change) in REFUSED.items()}
    save(
        folder / "tflite_refused.npz",
        {name: {"model": np.frombuffer(content, np.uint8)} for name, content in refused.items()},
    )


class FusedLstm(Model):
    """Keras 2 layers become the fused operator; one unit of the cell counts up until its limit stops it."""

    def __init__(self) -> None:
        super().__init__()
        self.item = tf_keras.layers.Embedding(VOCABULARY, WIDTH)
        self.recurrent = [tf_keras.layers.LSTM(6, return_sequences=True), tf_keras.layers.LSTM(WIDTH)]

    @tf.function(input_signature=[spec((None,), "int32", "item"), spec((12,), "int32", "history")])
    def __call__(self, item: tf.Tensor, history: tf.Tensor) -> dict[str, tf.Tensor]:
        value = self.item(history)[None]
        for layer in self.recurrent:
            value = layer(value)
        return {"score": tf.reduce_sum(self.item(item) * value, axis=-1)}

    def randomize(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        for layer in (self.item, *self.recurrent):
            layer.set_weights([random.normal(0, 0.5, weight.shape) for weight in layer.get_weights()])
        weights = self.recurrent[0].get_weights()
        weights[2][::6] = 20.0
        self.recurrent[0].set_weights(weights)

    @staticmethod
    def draw(random: np.random.Generator, count: int) -> dict[str, Array]:
        return {
            "item": random.integers(0, VOCABULARY, count, dtype=np.int32),
            "history": random.integers(0, VOCABULARY, 12, dtype=np.int32),
        }


class Mlp:
    """A Keras model, with weights large enough that the converter quantises them."""

    def __init__(self) -> None:
        tf.keras.utils.set_random_seed(7)
        dense, item = tf.keras.Input((24,), name="dense"), tf.keras.Input((), dtype="int32", name="item")
        value = layers.Concatenate()([dense, layers.Embedding(150, 8, embeddings_initializer="normal")(item)])
        value = layers.Dense(40, name="hidden_1", activation="relu", bias_initializer="normal")(value)
        value = layers.Dense(32, name="hidden_2", activation="relu", bias_initializer="normal")(value)
        self.model = tf.keras.Model([dense, item], layers.Dense(1, name="logit")(value))
        specs = [spec((None, 24), "float32", "dense"), spec((None,), "int32", "item")]
        self.__call__ = tf.function(lambda dense, item: self.model([dense, item]), input_signature=specs)

    @staticmethod
    def draw(random: np.random.Generator, count: int) -> dict[str, Array]:
        return {
            "dense": random.normal(0, 1, (count, 24)).astype(np.float32),
            "item": random.integers(0, 150, count, dtype=np.int32),
        }

    def lite(self, form: str) -> bytes:
        if form.startswith("int"):  # With whole numbers the converter fails on Keras models that take ids.
            return lite(self, form)
        return quantize(tf.lite.TFLiteConverter.from_keras_model(self.model), form, self.draw)


def make_tflite(folder: Path) -> None:
    """Write whole models, and the interpreter's outputs for several lengths."""
    mlp, fused = Mlp(), build(FusedLstm(), 4)
    made = {
        "wide_deep": (lite(build(WideDeep(), 1)), WideDeep.draw),
        "attention": (lite(build(Attention(), 2)), Attention.draw),
        "gru_unrolled": (lite(build(Recurrent("GRU", True), 3)), Attention.draw),
        "gru_loop": (lite(build(Recurrent("GRU", False), 3)), Attention.draw),
        "lstm_loop": (lite(build(Recurrent("LSTM", False), 3)), Attention.draw),
        "transformer": (lite(build(Transformer(), 5)), Transformer.draw),
        "lstm_fused": (
            tf.lite.TFLiteConverter.from_concrete_functions([fused.__call__.get_concrete_function()], fused).convert(),
            FusedLstm.draw,
        ),
        **{f"mlp_{form}": (mlp.lite(form), Mlp.draw) for form in ("float32", "float16", "dynamic", "int8")},
    }
    for name, (content, _) in made.items():
        (folder / f"{name}.tflite").write_bytes(content)
    groups = {name: record(interpret(content), draw, LENGTHS) for name, (content, draw) in made.items()}
    save(folder / "tflite_models.npz", groups)


def make_saved_models(folder: Path) -> None:
    """Write SavedModels, and TensorFlow's outputs for several lengths."""
    made = {
        "wide_deep": build(WideDeep(), 1),
        "attention": build(Attention(), 2),
        "gru_loop": build(Recurrent("GRU", False), 3),
    }
    options = tf.saved_model.SaveOptions(save_debug_info=False)
    for name, model in made.items():
        target = folder / "saved_models" / name
        shutil.rmtree(target, ignore_errors=True)
        tf.saved_model.save(model, str(target), {"serving_default": model.__call__}, options)
    groups = {
        name: record(lambda feeds, model=model: model(**feeds), model.draw, LENGTHS) for name, model in made.items()
    }
    save(folder / "saved_models.npz", groups)


if __name__ == "__main__":
    target_folder, *parts = sys.argv[1:]
    makers = {"operators": make_operators, "tflite": make_tflite, "saved_models": make_saved_models}
    for part in parts or makers:
        makers[part](Path(target_folder))
