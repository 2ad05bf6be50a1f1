"""Count the matrix-product FLOPs and parameters of encoders and encoder-decoders with torch; write encoders.json.

As make_flops.py does for decoders: each model of models/NAME.yaml is built by transformers on the meta device and run
under `torch.utils.flop_counter.FlopCounterMode`. An encoder runs one pass. An encoder-decoder runs a prefill, which is
the encoder over the prompt and the decoder over one token, and a decode step, of one token with the caches of both
kinds of attention. Convolutions are counted too.

Experts are picked by looking at numbers, which meta tensors have not: models in `ON_CPU` run with zeros for weights,
which routes all tokens to one expert, of as many FLOPs as any. NLLB's experts are too many for that: parameters alone.

    python tests/oracle/make_encoders.py           rewrite encoders.json
    python tests/oracle/make_encoders.py --check   exit 1 with one line for each difference from encoders.json
    ... --check --only bart-base                   of this model
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
import yaml
from make_flops import ATTENTION, HERE, MODEL_FILES, chosen, options, own_flops, settle
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, PreTrainedModel
from transformers.modeling_outputs import MoEModelOutput

ORACLE = HERE / "encoders.json"
MODELS = (
    "bert-base-uncased",
    "bert-large-uncased",
    "roberta-base",
    "xlm-roberta-large",
    "bge-m3",
    "distilbert-base-uncased",
    "albert-base-v2",
    "modernbert-base",
    "modernbert-large",
    "t5-small",
    "t5-base",
    "t5-3b",
    "t5-11b",
    "flan-t5-base",
    "flan-t5-xl",
    "mt5-base",
    "bart-base",
    "bart-large",
    "whisper-tiny",
    "whisper-large-v3",
    "whisper-large-v3-turbo",
    "switch-base-8",
    "switch-base-128",
    "nllb-moe-54b",
)
ON_CPU = ("switch-base-8",)
COUNTED_ONLY = ("switch-base-128", "nllb-moe-54b")
WORKLOADS = ((2, 64), (1, 300))  # batch, prompt length
ROOM = {"switch-base-8": 64}  # tokens of a sequence that an expert of transformers has room for: no more are run


def build(name: str) -> PreTrainedModel:
    spec = yaml.safe_load((MODEL_FILES / f"{name}.yaml").read_text(encoding="utf-8"))["config"]
    config = AutoConfig.for_model(**{key: value for key, value in spec.items() if key != "architectures"})
    config._attn_implementation = ATTENTION
    with torch.device("meta"):
        model: PreTrainedModel = getattr(transformers, spec["architectures"][0])(config).eval()
    return model


def on_cpu(model: PreTrainedModel) -> PreTrainedModel:
    """`model` with zeros for weights, which are no longer tied."""
    model = model.to(torch.bfloat16).to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.detach().zero_()
    return model


def run(model: PreTrainedModel, phase: str, batch: int, length: int, **given: Any) -> tuple[dict[str, Any], Any]:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        output = model(**given)
    by_module = own_flops(counter)
    if sum(by_module.values()) != (total := counter.get_total_flops()):
        raise AssertionError(f"modules sum to {sum(by_module.values())}, the counter says {total}")
    case = {"phase": phase, "batch": batch, "prompt": length, "flops": total, "by_module": by_module}
    return case, output


def cases(name: str, model: PreTrainedModel) -> list[dict[str, Any]]:
    found = []
    device = next(model.parameters()).device
    for batch, asked in WORKLOADS:
        length = min(asked, ROOM.get(name, asked))
        tokens = torch.zeros((batch, length), dtype=torch.long, device=device)
        prompt: dict[str, Any] = {"input_ids": tokens}
        if not model.config.is_encoder_decoder:
            found.append(run(model, "prefill", batch, length, **prompt)[0])
            continue
        if model.config.model_type == "whisper":  # which reads no other length
            length = model.config.max_source_positions
            prompt = {"input_features": torch.zeros((batch, model.config.num_mel_bins, 2 * length), device=device)}
        start = torch.zeros((batch, 1), dtype=torch.long, device=device)
        case, output = run(model, "prefill", batch, length, **prompt, decoder_input_ids=start)
        found.append(case)
        read = MoEModelOutput(last_hidden_state=output.encoder_last_hidden_state)
        cache = output.past_key_values
        step = {"encoder_outputs": read, "decoder_input_ids": start, "past_key_values": cache}
        found.append(run(model, "decode", batch, length, **step)[0])
    return found


def count(name: str) -> dict[str, Any]:
    model = build(name)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if name in ON_CPU:
        model = on_cpu(model)
    return {"parameters": parameters, "cases": [] if name in COUNTED_ONLY else cases(name, model)}


def main() -> int:
    args = options("Make or check tests/oracle/encoders.json.")
    transformers.logging.set_verbosity_error()
    meta = {"torch": torch.__version__, "transformers": transformers.__version__, "attn": ATTENTION}
    found = {"meta": meta, "models": {name: count(name) for name in chosen(MODELS, args.only)}}
    return settle(ORACLE, found, ("models",), args=args)


if __name__ == "__main__":
    sys.exit(main())
