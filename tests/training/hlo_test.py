"""Costs read from compiled programs, against arithmetic by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sage_jax.training.hlo import Collective, read_costs

# As the TPU compiler writes it: scanned layers, a gathered weight, a fused all-reduce that keeps only its own piece.
TPU = """HloModule jit_f, is_scheduled=true, num_partitions=4

%product (lhs: bf16[64,32], rhs: bf16[32,16]) -> bf16[64,16] {
  %lhs = bf16[64,32]{1,0:T(8,128)(2,1)} parameter(0)
  %rhs = bf16[32,16]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %convolution.1 = bf16[64,16]{1,0:T(8,128)(2,1)} convolution(%lhs, %rhs), dim_labels=bf_io->bf
}

%all-reduce-scatter.clone (input: bf16[64,16]) -> bf16[16,16] {
  %input = bf16[64,16]{1,0} parameter(0)
  %all-reduce.4 = bf16[64,16]{1,0} all-reduce(%input), replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %dynamic-slice.1 = bf16[16,16]{1,0} dynamic-slice(%all-reduce.4, %c, %c), dynamic_slice_sizes={16,16}
}

%body (state: (s32[], bf16[64,32])) -> (s32[], bf16[64,32]) {
  %state = (s32[], bf16[64,32]{1,0}) parameter(0)
  %x = bf16[64,32]{1,0} get-tuple-element(%state), index=1
  %weight = bf16[8,16]{1,0} constant({...})
  %all-gather.2 = bf16[32,16]{1,0:T(8,128)S(1)} all-gather(%weight), replica_groups=mesh['a'=2,'b'=4] {'b'}
  %fusion.1 = bf16[64,16]{1,0} fusion(%x, %all-gather.2), kind=kOutput, calls=%product
  %fusion.2 = bf16[16,16]{1,0} fusion(%fusion.1), kind=kCustom, calls=%all-reduce-scatter.clone
  ROOT %tuple.1 = (s32[], bf16[64,32]{1,0}) tuple(%i, %x)
}

%condition (state: (s32[], bf16[64,32])) -> pred[] {
  %state.2 = (s32[], bf16[64,32]{1,0}) parameter(0)
  %limit = s32[]{:T(128)} constant(12)
  %i.2 = s32[] get-tuple-element(%state.2), index=0
  ROOT %lt = pred[] compare(%i.2, %limit), direction=LT
}

ENTRY %main (p: (s32[], bf16[64,32])) -> (s32[], bf16[64,32]) {
  %p = (s32[], bf16[64,32]{1,0}) parameter(0)
  ROOT %while.1 = (s32[], bf16[64,32]{1,0}) while(%p), condition=%condition, body=%body
}
"""


def test_the_text_of_a_tpu_program_worked_by_hand():
    costs = read_costs(TPU)
    assert costs.flops == 12 * 2 * 64 * 32 * 16
    # Gathered: 32 x 16 x 2 bytes, of which a device sends 3/4 on; scattered: 64 x 16 x 2 bytes likewise.
    assert costs.collectives == (
        Collective("all-gather", 4, 12, 12 * 1024 * 3 // 4),
        Collective("reduce-scatter", 4, 12, 12 * 2048 * 3 // 4),
    )
    # A round reads x (4096) and writes the product (2048), reads it again and writes a quarter of it (512); reads the
    # piece of the weight (256); and compares two integers (9). The gathered weight lies on the chip.
    assert costs.traffic == 12 * (4096 + 2048 + 2048 + 512 + 256 + 9)
    assert costs.unknown_loops == 0


@pytest.mark.parametrize(
    ("groups", "kind", "sent"),
    [
        ("replica_groups={{0,1},{2,3}}", "all-reduce", 2 * 256 // 2),
        ("replica_groups=[2,4]<=[8]", "all-reduce", 2 * 256 * 3 // 4),
        ("replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}", "all-to-all", 256 // 2),
        ("source_target_pairs={{0,1},{1,0}}", "collective-permute", 256),
    ],
)
def test_groups_in_every_notation(groups, kind, sent):
    text = f"""HloModule m, num_partitions=8

ENTRY %main (p: f32[64]) -> f32[64] {{
  %p = f32[64]{{0}} parameter(0)
  ROOT %c = f32[64]{{0}} {kind}(%p), {groups}
}}
"""
    (found,) = read_costs(text).collectives
    assert (found.kind, found.count, found.sent) == (kind, 1, sent)


def test_products_of_a_scan_and_its_gradient():
    def loss(weights, x):
        return jnp.sum(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0])

    shapes = jax.ShapeDtypeStruct((5, 32, 32), jnp.float32), jax.ShapeDtypeStruct((16, 32), jnp.float32)
    costs = read_costs(jax.jit(jax.grad(loss)).lower(*shapes).compile().as_text())
    # Forwards one product a layer, backwards two.
    assert costs.flops == 3 * 5 * 2 * 16 * 32 * 32
    assert costs.unknown_loops == 0
    # At least each layer's weight is read twice and its gradient written.
    assert costs.traffic >= 3 * 5 * 32 * 32 * 4
    assert costs.collectives == ()


def test_a_convolution_counts_what_meets_an_input():
    x, kernel = jax.ShapeDtypeStruct((1, 3, 10), jnp.float32), jax.ShapeDtypeStruct((4, 3, 3), jnp.float32)

    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (2,), [(1, 1)], dimension_numbers=("NCH", "OIH", "NCH"))

    text = jax.jit(convolve).lower(x, kernel).compile().as_text()
    # Five places of three taps; only the first place's first tap falls on padding.
    assert read_costs(text).flops == 2 * (5 * 3 - 1) * 3 * 4


def test_loops_without_a_known_end_count_as_often_as_told():
    def run(x, outer, inner):
        once = functools.partial(jax.lax.fori_loop, 0, inner, lambda _, x: x @ x)
        return jax.lax.fori_loop(0, outer, lambda _, x: once(x), x)

    number = jax.ShapeDtypeStruct((), jnp.int32)
    text = jax.jit(run).lower(jax.ShapeDtypeStruct((8, 8), jnp.float32), number, number).compile().as_text()
    assert (read_costs(text).flops, read_costs(text).unknown_loops) == (2 * 8**3, 2)
    assert read_costs(text, unknown_rounds=(3, 7)).flops == 3 * 7 * 2 * 8**3


def test_a_slice_of_an_array_counts_as_the_slice():
    def pick(table, index):
        return jax.lax.dynamic_slice(table, (index, 0), (1, 8)) * 2

    shapes = jax.ShapeDtypeStruct((10_000, 8), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    costs = read_costs(jax.jit(pick).lower(*shapes).compile().as_text())
    assert costs.traffic < 1000
    assert np.isfinite(costs.traffic)
