"""The LSTM with structured dropout against torch's own, and against plain autograd with the same neurons dropped."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from ddlprof.base.errors import UserError
from ddlprof.extensions.sparsity.nn import StructuredDropoutLSTM, dropped
from ddlprof.extensions.sparsity.nn.dropped import KeptNeurons, Masked
from ddlprof.extensions.sparsity.nn.lstm import Recurrence

STEPS, BATCH, INPUTS, HIDDEN = 5, 3, 6, 8


@pytest.fixture(params=["rows that are kept", "rows a few at a time", "full products"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ways in which the same products are made; which is fastest depends on the batch and the machine."""
    monkeypatch.setattr(dropped, "GATHER_SAMPLES", 1_000_000 if request.param == "full products" else -BATCH)
    if request.param == "rows a few at a time":
        monkeypatch.setattr(dropped, "_NEAR_BYTES", 8 * 4 * HIDDEN * 2)


def structured(**options: Any) -> StructuredDropoutLSTM:
    torch.manual_seed(0)
    shares = {"dropout": 0.5, "recurrent_dropout": 0.5, "input_dropout": 0.4} | options
    return StructuredDropoutLSTM(INPUTS, HIDDEN, 2, **shares).double()


def masks(module: StructuredDropoutLSTM, x: Any, seed: int) -> list[Any]:
    """What the module multiplies with when it drops after this seed: of each layer of inputs and of hidden neurons."""
    torch.manual_seed(seed)
    found = []
    for layer in range(module.num_layers):
        size = HIDDEN if layer else INPUTS
        for p, neurons in (
            (module.dropout if layer else module.input_dropout, size),
            (module.recurrent_dropout, HIDDEN),
        ):
            made: Any = module._drop(x, p, neurons)(x.new_ones(neurons, 1))
            found.append(made.mask if made.mask is not None else x.new_ones(len(x), 1, neurons))
    return found


def plain(module: nn.LSTM, x: Any, found: list[Any], h: Any, c: Any) -> tuple[Any, Any, Any]:
    """The equations of torch.nn.LSTM, with every mask multiplied in and every zero multiplied with."""
    last = []
    for layer in range(module.num_layers):
        w_ih, w_hh, b_ih, b_hh = module.all_weights[layer]
        state, cell, outputs = h[layer], c[layer], []
        for step in range(len(x)):
            values, before = x[step] * found[2 * layer][step], state * found[2 * layer + 1][step]
            i, f, g, o = (values @ w_ih.t() + before @ w_hh.t() + b_ih + b_hh).chunk(4, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            state = o.sigmoid() * cell.tanh()
            outputs.append(state)
        x = torch.stack(outputs)
        last.append((state, cell))
    return x, torch.stack([each[0] for each in last]), torch.stack([each[1] for each in last])


def inputs(kind: torch.dtype = torch.float64) -> tuple[Any, Any, Any]:
    torch.manual_seed(1)
    sizes = (STEPS, BATCH, INPUTS), (2, BATCH, HIDDEN), (2, BATCH, HIDDEN)
    x, h, c = (torch.randn(size, dtype=kind, requires_grad=True) for size in sizes)
    return x, h, c


def gradients(module: nn.Module, results: tuple[Any, ...], given: tuple[Any, ...]) -> list[Any]:
    torch.manual_seed(2)
    loss = sum((each * torch.randn_like(each)).sum() for each in results)
    return list(torch.autograd.grad(loss, [*given, *module.parameters()]))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("is_structured", [True, False])
def test_outputs_and_gradients_are_those_of_the_masked_dense_products(is_structured: bool) -> None:
    module, (x, h, c) = structured(structured=is_structured), inputs()
    torch.manual_seed(3)
    y, state = module(x, (h, c))
    expected = plain(module, x, masks(module, x, 3), h, c)
    torch.testing.assert_close((y, *state), expected, rtol=0, atol=1e-12)
    found, wanted = gradients(module, (y, *state), (x, h, c)), gradients(module, expected, (x, h, c))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kept", [True, False])
def test_gradients_are_the_slopes(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropped, "GATHER_SAMPLES", -2)
    torch.manual_seed(0)

    def make(weight: Any) -> Any:
        if not kept:
            return Masked(weight)
        torch.manual_seed(len(weight))
        return KeptNeurons(weight, torch.rand(3, len(weight)).argsort(1)[:, :2], 1.5)

    shapes = (3, 2, 4), (2, 3), (2, 3), (12, 4), (12, 3), (12,)
    values = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(lambda *each: Recurrence.apply(*each, make, make), values)


def test_single_precision_is_near_the_dense_products() -> None:
    module, (x, h, c) = structured().float(), inputs(torch.float32)
    torch.manual_seed(3)
    y, state = module(x, (h, c))
    expected = plain(module, x, masks(module, x, 3), h, c)
    found, wanted = gradients(module, (y, *state), (x, h, c)), gradients(module, expected, (x, h, c))
    torch.testing.assert_close([y, *found], [expected[0], *wanted], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_in_evaluation_it_is_torchs(batch_first: bool, bias: bool) -> None:
    theirs = nn.LSTM(INPUTS, HIDDEN, 2, bias, batch_first, dropout=0.5).eval()
    ours = StructuredDropoutLSTM(INPUTS, HIDDEN, 2, bias, batch_first, dropout=0.5, recurrent_dropout=0.5).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 4, INPUTS)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-6)
    packed = nn.utils.rnn.pack_padded_sequence(x, [4, 3, 2, 2], batch_first=batch_first)
    torch.testing.assert_close(ours(packed)[0].data, theirs(packed)[0].data, rtol=0, atol=1e-6)


def test_what_it_saves_is_what_torchs_lstm_saves() -> None:
    ours, theirs = StructuredDropoutLSTM(INPUTS, HIDDEN, 2, input_dropout=0.5), nn.LSTM(INPUTS, HIDDEN, 2)
    saved = nn.Sequential(ours).state_dict()
    assert {f"0.{name}": value.shape for name, value in theirs.state_dict().items()} == {
        name: value.shape for name, value in saved.items()
    }
    assert all(value.is_contiguous() for value in saved.values())
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(dict(theirs.named_parameters()), dict(ours.named_parameters()))
    assert isinstance(ours, nn.LSTM)
    torch.testing.assert_close(dict(copy.deepcopy(ours).named_parameters()), dict(ours.named_parameters()))


@pytest.mark.parametrize("shape", [(STEPS, INPUTS), (BATCH, STEPS, INPUTS)])
def test_shapes_of_results_are_torchs(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    ours = StructuredDropoutLSTM(INPUTS, HIDDEN, 2, batch_first=True, recurrent_dropout=0.5)(x)
    theirs = nn.LSTM(INPUTS, HIDDEN, 2, batch_first=True)(x)
    assert [each.shape for each in (ours[0], *ours[1])] == [each.shape for each in (theirs[0], *theirs[1])]


def test_the_same_neurons_are_dropped_for_the_batch_and_others_in_each_step() -> None:
    module, x = structured(input_dropout=0.5), torch.ones(200, 4, INPUTS).double()
    hidden = masks(module, x, 0)[1]
    assert hidden.shape == (200, 1, HIDDEN)
    assert set(hidden.unique().tolist()) == {0.0, 2.0}
    assert (hidden.count_nonzero(-1) == HIDDEN // 2).all()
    assert len({tuple(row) for row in hidden[:, 0].tolist()}) > 50
    assert ((hidden.mean((0, 1)) - 1).abs() < 0.3).all()


@pytest.mark.parametrize("autocast", [True, False])
def test_low_precision(autocast: bool) -> None:
    module, (x, h, c) = structured().float(), inputs(torch.float32)
    torch.manual_seed(3)
    wanted = gradients(module, (module(x, (h, c))[0],), (x,))
    torch.manual_seed(3)
    if autocast:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = module(x, (h, c))[0]
    else:
        module, x = module.bfloat16(), x.detach().bfloat16().requires_grad_()
        y = module(x, (h.bfloat16(), c.bfloat16()))[0]
    found = gradients(module, (y.float(),), (x,))
    assert y.dtype == torch.bfloat16
    assert {each.dtype for each in found} == {torch.float32 if autocast else torch.bfloat16}
    torch.testing.assert_close([each.float() for each in found], wanted, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"recurrent_dropout": 1.0}, "recurrent_dropout 1.0: has to be 0 or more, and less than 1"),
        ({"dropout": -0.1}, "dropout -0.1"),
        ({"bidirectional": True}, "one direction and no projections"),
        ({"proj_size": 2}, "one direction and no projections"),
    ],
)
def test_what_it_cannot_do_is_said_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        StructuredDropoutLSTM(INPUTS, HIDDEN, **arguments)


def test_packed_sequences_are_refused_while_it_drops() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 2, INPUTS), [4, 3])
    with pytest.raises(UserError, match="pad them"):
        StructuredDropoutLSTM(INPUTS, HIDDEN, recurrent_dropout=0.5)(packed)
    StructuredDropoutLSTM(INPUTS, HIDDEN)(packed)  # without dropout it is torch's


def test_second_derivatives_are_refused() -> None:
    module, (x, _, _) = structured(), inputs()
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(module(x)[0].sum(), x, create_graph=True)


@pytest.mark.parametrize("is_structured", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_without_recurrent_dropout_it_is_torchs_kernel_over_masked_inputs(is_structured: bool, bias: bool) -> None:
    module, (x, h, c) = structured(recurrent_dropout=0.0, structured=is_structured, bias=bias), inputs()
    torch.manual_seed(3)
    y, state = module(x, (h, c))
    found = gradients(module, (y, *state), (x, h, c))
    one, two = (nn.LSTM(size, HIDDEN, bias=bias).double() for size in (INPUTS, HIDDEN))
    for layer, plain_one in enumerate((one, two)):
        plain_one.load_state_dict(
            {
                name.replace(f"_l{layer}", "_l0"): each
                for name, each in module.state_dict().items()
                if name[-1] == f"{layer}"
            }
        )
    first, _, second, _ = masks(module, x, 3)
    middle, (h_one, c_one) = one(x * first, (h[:1], c[:1]))
    out, (h_two, c_two) = two(middle * second, (h[1:], c[1:]))
    expected = out, torch.cat((h_one, h_two)), torch.cat((c_one, c_two))
    torch.testing.assert_close((y, *state), expected, rtol=0, atol=1e-12)
    wanted = gradients(nn.ModuleList([one, two]), expected, (x, h, c))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-11)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_scripting_is_refused_with_what_to_do_and_that_works() -> None:
    module, (x, _, _) = structured().eval(), inputs()
    for made in (module, nn.Sequential(module)):
        with pytest.raises(UserError, match=r"load its state_dict into a torch\.nn\.LSTM of the same sizes"):
            torch.jit.script(made)
    theirs = nn.Sequential(nn.LSTM(INPUTS, HIDDEN, 2).double()).eval()
    theirs[0].load_state_dict(module.state_dict())
    torch.testing.assert_close(torch.jit.script(theirs)(x), module(x), rtol=0, atol=1e-12)
