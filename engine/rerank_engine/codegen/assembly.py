"""LLVM assembly becomes machine code for a target."""

from __future__ import annotations

import re
from threading import Lock

from rerank_engine.codegen.elf import FlatImage, flatten
from rerank_engine.codegen.target import Target
from rerank_engine.errors import CompileError
from rerank_engine.native_call import ENTRY

_LLVM_LOCK = Lock()
_OPTIMISATION_LEVEL = 2


def with_attributes(assembly: str, target: Target, *attributes: str) -> str:
    """Give every function what an image needs, and further attributes.

    LLVM must not turn loops into calls of a library, which the image has not; and Windows knows no red zone.
    """
    every = ['"no-builtins"', *attributes, *(["noredzone"] if target.calling_convention == "win64cc" else [])]
    return re.sub(r"^(define [^\n]*?)( \{)?$", rf"\1 {' '.join(every)}\2", assembly, flags=re.MULTILINE)


def compile_assembly(assembly: str, target: Target, *entries: str, vectorize: bool = False) -> FlatImage:
    """Optimise LLVM assembly and make a flat image of it.

    Parameters
    ----------
    assembly
        A module's text.
    target
        The processor.
    entries
        Functions that are called from outside.
    vectorize
        Let LLVM make vectors of loops. Where the loops are vectors already it only costs time and registers.

    Raises
    ------
    CompileError
        LLVM refuses the assembly, or the code needs something from outside.
    """
    import llvmlite.binding as llvm

    with _LLVM_LOCK:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        try:
            module = llvm.parse_assembly(assembly)
            module.verify()
            machine = llvm.Target.from_triple(target.triple).create_target_machine(
                cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
            )
        except RuntimeError as error:
            raise CompileError(f"LLVM refused the generated code for {target.cpu}: {error}") from error
        module.data_layout = str(machine.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMISATION_LEVEL)
        options.loop_vectorization = vectorize
        options.slp_vectorization = False
        options.loop_unrolling = vectorize
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        return flatten(machine.emit_object(module), *(entries or (ENTRY,)))
