"""The codec equals upstream's decoder on whole clips, and a stream of frames equals the whole clip."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from agent_tts.model.codec import ENCODING, CausalUpsample, Codec, CodecState, WholeClip
from agent_tts.model.config import CodecConfig
from agent_tts.model.weights import build
from tests.examples import examples
from tests.model import oracle, tiny

WINDOW = 16  # frames
SHORT_WINDOW = 6  # a ring that wraps after a few frames
PARITY = 1e-4  # relative to the loudest sample
NO_CODE = 2150  # the talker's end of speech, a possible input for a row that does not run


def config(window: int) -> CodecConfig:
    return CodecConfig(
        codebook_size=2048,
        codebook_dim=32,
        num_quantizers=16,
        latent_dim=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        attention_bias=False,
        sliding_window=window,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        upsampling_ratios=(2, 2),
        upsample_rates=(8, 5, 4, 3),
        decoder_dim=64,
    )


def fill(decoder: nn.Module, seed: int) -> None:
    """Set every parameter to a value that affects the output: upstream initialises some to zero, one or 1e-6."""
    noise = torch.Generator().manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        values = torch.randn(parameter.shape, generator=noise)
        match name.split(".")[-1]:
            case "cluster_usage":
                values = values.abs() + 0.5
                values[0] = 0  # an unused code
            case "embedding_sum":
                values *= 0.3
                values[0] *= 1e-5
            case "scale" | "gamma":
                values = 0.5 + 0.1 * values
            case "alpha" | "beta":
                values *= 0.3
            case "bias":
                values *= 0.1
            case "weight" if "norm" in name:
                values = 1 + 0.2 * values
            case "weight" if "q_proj" in name or "k_proj" in name:  # attention with a preference for some frames
                values *= 2 / parameter.shape[1] ** 0.5
            case _:
                values *= 0.5 / parameter[0].numel() ** 0.5
        parameter.data.copy_(values)


def random_codes(*shape: int, seed: int = 0) -> Tensor:
    """int64[*shape, 16]; the first frame contains code 0, which is an ordinary code."""
    codes = torch.randint(0, 2048, (*shape, 16), generator=torch.Generator().manual_seed(seed))
    codes[..., 0, :2] = 0
    return codes


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.fixture(scope="module")
def upstream() -> nn.Module:
    package = oracle.qwen_tts().core.tokenizer_12hz
    described = package.configuration_qwen3_tts_tokenizer_v2.Qwen3TTSTokenizerV2DecoderConfig(**asdict(config(WINDOW)))
    decoder: nn.Module = package.modeling_qwen3_tts_tokenizer_v2.Qwen3TTSTokenizerV2Decoder(described).eval()
    fill(decoder, seed=1)
    return decoder


@pytest.fixture(scope="module")
def codec(upstream: nn.Module) -> Codec:
    return loaded(upstream, WINDOW)


@pytest.fixture(scope="module")
def short_codec(upstream: nn.Module) -> Codec:
    return loaded(upstream, SHORT_WINDOW)


def loaded(upstream: nn.Module, window: int) -> Codec:
    codec = Codec(config(window)).eval()
    values = {f"decoder.{name}": value for name, value in upstream.state_dict().items()}
    codec.load_state_dict({ours: values[theirs] for ours, theirs in codec.checkpoint_names().items()})
    return codec


def state_of(codec: Codec, rows: int) -> CodecState:
    return codec.init_state(rows, "cpu", torch.float32)


def stream(codec: Codec, codes: Tensor, state: CodecState) -> Tensor:
    """Decode int64[B, T, 16] frame by frame, every row running: float32[B, T * 1920]."""
    run = torch.ones(len(codes), dtype=torch.bool)
    return torch.cat([codec.step(state, codes[:, frame], run) for frame in range(codes.shape[1])], 1)


@torch.inference_mode()
def whole_of(codec: Codec, codes: Tensor) -> Tensor:
    """Whole clips at once: int64[B, T, 16] gives float32[B, T * 1920]."""
    pcm: Tensor = codec(codes, WholeClip(codes.shape[1], codec.config.sliding_window, codes.device))
    return pcm


# --- against upstream


def test_the_waveform_is_that_of_upstream_whole_and_streamed(codec: Codec, upstream: nn.Module) -> None:
    """More frames than the window, so that its edge is included."""
    codes = random_codes(2, WINDOW + 10)
    with torch.inference_mode():
        expected = upstream(codes.transpose(1, 2)).squeeze(1)
    found = whole_of(codec, codes)
    assert 0.01 < expected.square().mean().sqrt() < 0.5  # neither silence nor noise at the clamp
    assert found.shape == (2, (WINDOW + 10) * 1920)
    assert found.dtype == torch.float32
    assert relative_error(found, expected) < PARITY
    assert relative_error(stream(codec, codes, state_of(codec, 2)), expected) < PARITY


@pytest.mark.slow
def test_a_loaded_checkpoint_has_the_waveform_of_upstream() -> None:
    folder, codes = tiny.checkpoint("custom_voice"), random_codes(1, 20)
    codec, decoder = tiny.codec(folder), oracle.load(folder).model.speech_tokenizer.model.decoder
    with torch.inference_mode():
        expected = decoder(codes.transpose(1, 2)).squeeze(1)
    assert expected.square().mean().sqrt() > 0.01
    assert relative_error(whole_of(codec, codes), expected) < PARITY
    assert relative_error(stream(codec, codes, state_of(codec, 1)), expected) < PARITY


def test_unused_decoder_tensors_of_a_checkpoint_are_for_encoding(codec: Codec, upstream: nn.Module) -> None:
    theirs = {f"decoder.{name}" for name in upstream.state_dict()}
    left = theirs - set(codec.checkpoint_names().values())
    assert left
    assert all(name.startswith(ENCODING) for name in left)


def test_samples_stay_within_one(upstream: nn.Module) -> None:
    codec = loaded(upstream, SHORT_WINDOW)
    codec.decoder[-1].get_parameter("conv.weight").data *= 100
    pcm = stream(codec, random_codes(1, 3), state_of(codec, 1))
    assert (float(pcm.min()), float(pcm.max())) == (-1.0, 1.0)


@pytest.mark.slow
def test_every_parameter_affects_the_output(upstream: nn.Module) -> None:
    """A parameter without effect would weaken the comparison with upstream."""
    codec, codes = loaded(upstream, SHORT_WINDOW), random_codes(1, 2)
    before = whole_of(codec, codes)
    for name, parameter in codec.named_parameters():
        kept = parameter.data.clone()
        parameter.data *= 0.5
        assert relative_error(whole_of(codec, codes), before) > 2 * PARITY, name
        parameter.data.copy_(kept)


def test_bfloat16_is_as_near_to_float32_as_upstream_is(upstream: nn.Module, codec: Codec) -> None:
    codes = random_codes(1, 12)
    exact = whole_of(codec, codes)
    with torch.inference_mode():
        theirs = upstream.to(torch.bfloat16)(codes.transpose(1, 2)).squeeze(1).float()
    upstream.float()
    ours = loaded(upstream, WINDOW).to(torch.bfloat16)
    noise = (theirs - exact).square().mean()
    assert (whole_of(ours, codes) - exact).square().mean() < 1.5 * noise
    streamed = stream(ours, codes, ours.init_state(1, "cpu", torch.bfloat16))
    assert (streamed - exact).square().mean() < 1.5 * noise


# --- a stream against the whole clip


@dataclass
class Stream:
    """The expected state of a stream in a row."""

    codes: Tensor
    done: int = 0
    pcm: list[Tensor] = field(default_factory=list)


SCHEDULES = st.lists(
    st.lists(st.sampled_from(["run", "run", "run", "pause", "reuse"]), min_size=3, max_size=3), min_size=8, max_size=14
)


@given(SCHEDULES)
@examples(20)
def test_rows_that_join_pause_and_leave_do_not_affect_others(short_codec: Codec, schedule: list[list[str]]) -> None:
    """The audio of a stream equals that of its codes decoded alone and in one piece, whatever the other rows do."""
    state, seed = state_of(short_codec, 3), 0
    live = [Stream(random_codes(len(schedule), seed=row)) for row in range(3)]
    ended: list[Stream] = []
    for actions in schedule:
        reused = torch.tensor([action == "reuse" for action in actions])
        for row in reused.nonzero().flatten().tolist():
            seed += 1
            ended.append(live[row])
            live[row] = Stream(random_codes(len(schedule), seed=100 + seed))
        state.reset(reused.nonzero()[:, 0])
        run = torch.tensor([action != "pause" for action in actions])
        codes = torch.stack([one.codes[one.done] for one in live])
        pcm = short_codec.step(state, torch.where(run[:, None], codes, NO_CODE), run)
        for row, one in enumerate(live):
            if run[row]:
                one.pcm.append(pcm[row])
                one.done += 1
            else:
                assert not pcm[row].any()
    for one in (*live, *ended):
        if one.done:
            whole = whole_of(short_codec, one.codes[None, : one.done])[0]
            assert relative_error(torch.cat(one.pcm), whole) < 1e-5


def test_a_paused_row_keeps_its_state(short_codec: Codec) -> None:
    """Bit for bit, for any number of pauses and any codes while it pauses."""
    codes, paused, state = random_codes(2, 20), state_of(short_codec, 2), state_of(short_codec, 2)
    stream(short_codec, codes[:, :8], paused)
    stream(short_codec, codes[:, :8], state)
    for frame in range(8, 14):
        short_codec.step(paused, codes[:, frame], torch.tensor([False, True]))
    assert paused.position.tolist() == [8, 14]
    again = torch.stack((codes[0, 8:14], codes[1, 14:]))
    assert torch.equal(stream(short_codec, again, paused)[0], stream(short_codec, codes[:, 8:14], state)[0])


def test_a_reused_row_is_clean(short_codec: Codec) -> None:
    """Bit for bit, with any contents of the ring: keys are masked by validity, not by being zero."""
    codes, fresh, used = random_codes(2, 9), state_of(short_codec, 2), state_of(short_codec, 2)
    stream(short_codec, random_codes(2, 20, seed=3), used)
    used.keys.fill_(100.0)
    used.values.fill_(100.0)
    for history in used.histories:
        history.fill_(100.0)
    used.reset(torch.arange(2))
    assert torch.equal(stream(short_codec, codes, used), stream(short_codec, codes, fresh))


def test_a_reset_touches_no_other_row(short_codec: Codec) -> None:
    codes, state = random_codes(2, 12), state_of(short_codec, 2)
    first = stream(short_codec, codes[:, :7], state)
    state.reset(torch.tensor([0]))
    rest = stream(short_codec, codes[:, 7:], state)
    whole = whole_of(short_codec, codes[1:])[0]
    assert relative_error(torch.cat((first[1], rest[1])), whole) < 1e-5


@pytest.mark.parametrize("warm", [1, pytest.param(SHORT_WINDOW, marks=pytest.mark.slow), 2 * SHORT_WINDOW + 2])
def test_a_stream_goes_on_where_another_ended(short_codec: Codec, warm: int) -> None:
    """A cloned voice: the reference is decoded in a state of its own, put into a reused row, and cut."""
    codes, clip, rows = random_codes(1, warm + 8), state_of(short_codec, 1), state_of(short_codec, 3)
    other = random_codes(3, 16, seed=6)
    before = stream(short_codec, other[:, :8], rows)
    stream(short_codec, codes[:, :warm], clip)
    rows.put(1, clip)
    after = stream(short_codec, torch.stack((other[0, 8:], codes[0, warm:], other[2, 8:])), rows)
    assert relative_error(after[1], whole_of(short_codec, codes)[0, warm * 1920 :]) < 1e-5
    for row in (0, 2):
        assert relative_error(torch.cat((before[row], after[row])), whole_of(short_codec, other)[row]) < 1e-5


# --- the step


def test_a_step_needs_no_value_on_the_host() -> None:
    """Tensors without data: reading a value, or making a shape of one, fails."""
    codec = build(Codec, config(WINDOW)).to("meta")
    state = codec.init_state(3, "meta", torch.float32)
    run = torch.ones(3, dtype=torch.bool, device="meta")
    state.reset(torch.arange(3, device="meta"))
    pcm = codec.step(state, torch.zeros(3, 16, dtype=torch.int64, device="meta"), run)
    assert (pcm.shape, pcm.dtype) == ((3, 1920), torch.float32)


def test_a_step_writes_the_state_in_place(short_codec: Codec) -> None:
    state = state_of(short_codec, 1)
    tensors = (state.position, state.keys, state.values, *state.histories)
    places, versions = [t.data_ptr() for t in tensors], [t._version for t in tensors]
    stream(short_codec, random_codes(1, 1), state)
    assert [t.data_ptr() for t in tensors] == places
    assert all(after._version > before for after, before in zip(tensors, versions, strict=True))


def test_an_upsampling_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of the stride"):
        CausalUpsample(4, 4, kernel=7, stride=2, rate=1)
