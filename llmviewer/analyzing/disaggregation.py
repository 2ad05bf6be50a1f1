"""disaggregate(): prefills on one kind of device, decode steps on another (arXiv:2311.18677, arXiv:2401.09670)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any, ClassVar, Unpack

from .. import arguments
from ..devices.files import changes_by_device
from ..devices.hardware import Hardware
from ..errors import InputError
from ..model import Model, kv_cache_bytes
from ..model_files import load_model
from ..options import (
    DisaggregatedArguments,
    DisaggregatedOptions,
    RequestOptions,
    TransferOptions,
    document_options,
    only,
)
from ..parallel.layout import ONE_DEVICE, Layout
from ..parameters import KvLink, KvTransfer
from ..records import frozen
from ..request import Request
from ..rows import Rows
from ..setting import Setting
from ..transforms.offload import ON_DEVICE
from ..variants.libraries import FasterLibrary
from .analysis import MAX, Analysis, analyze
from .generation import GenerationResult
from .phases import Phases


@frozen(kw_only=True, repr=False)
class Disaggregated(Rows):
    """Result of disaggregate().

    prefill                  analysis of the prefill devices, which also generate the first token
    decode                   analysis of the decode devices, with the memory of decode steps
    kv_transfer_bytes        KV cache of the prompts, without copies of ranks [B]
    kv_transfer_bytes_per_s  links of all devices of the slower side together [B/s]
    """

    report: ClassVar = "disaggregated"

    prefill: Analysis
    decode: Analysis
    kv_transfer: KvTransfer
    kv_link: KvLink
    kv_transfer_bytes: float
    kv_transfer_bytes_per_s: float

    @property
    def kv_transfer_s(self) -> float:
        """Time to send the KV cache. [s]"""
        return self.kv_transfer_bytes / self.kv_transfer_bytes_per_s

    @property
    def generation(self) -> GenerationResult:
        """The generation of one batch. TTFT includes the transfer of the KV cache."""
        ttft, request = self._sent_s(self.prefill.generation.ttft_s), self.decode.request
        latency, tokens = ttft + self.decoding_s, request.batch * (request.gen or 0)
        tpot = self.decode.generation.tpot_s
        return GenerationResult(
            ttft_s=ttft, tpot_s=tpot, latency_s=latency, tokens_per_s=tokens / latency, **self._expected(tokens)
        )

    def _sent_s(self, read_s: float) -> float:
        """Time until the KV cache of a prefill of `read_s` has arrived at the decode devices. [s]"""
        overlapped = self.kv_transfer is KvTransfer.OVERLAPPED
        return max(read_s, self.kv_transfer_s) if overlapped else read_s + self.kv_transfer_s

    def _expected(self, tokens: int) -> dict[str, float | None]:
        """Expected times of GenerationResult; the transfer of the cache takes its bound."""
        prefill, decode = self.prefill.generation, self.decode.generation
        times: dict[str, float | None] = {}
        for end in ("", "_low", "_high"):
            ttft_s, latency_s, decode_ttft_s, tpot_s = (
                getattr(side, f"expected_{measure}{end}_s")
                for side, measure in ((prefill, "ttft"), (decode, "latency"), (decode, "ttft"), (decode, "tpot"))
            )
            if ttft_s is None or latency_s is None:
                return {}
            ttft = self._sent_s(ttft_s)
            latency = ttft + latency_s - decode_ttft_s
            times |= {
                f"expected_ttft{end}_s": ttft,
                f"expected_tpot{end}_s": tpot_s,
                f"expected_latency{end}_s": latency,
            }
            if not end:
                times["expected_tokens_per_s"] = tokens / latency
        return times

    @property
    def decoding_s(self) -> float:
        """All decode steps of a batch. [s]"""
        return self.decode.generation.latency_s - self.decode.generation.ttft_s

    @property
    def decode_per_prefill(self) -> float:
        """Decode devices per prefill device at which both kinds are equally busy."""
        reading = self.prefill.generation.ttft_s * self.prefill.setting.layout.devices
        return self.decoding_s * self.decode.setting.layout.devices / reading

    @property
    def joint(self) -> Analysis:
        """One Analysis with the prefill of one side and the decode of the other; all else is of the decode devices."""
        phases = Phases(prefill=self.prefill.phases.prefill, decode=self.decode.phases.decode)
        shared_notes = set(self.prefill.notes) & set(self.decode.notes)
        side_notes = (f"{name}: {note}" for name, side in self.sides for note in side.notes if note not in shared_notes)
        notes = (*(note for note in self.decode.notes if note in shared_notes), *side_notes)
        return replace(
            self.decode,
            phases=phases,
            generation=self.generation,
            notes=notes,
            find_faster=self._find_faster,
            evaluation=None,
        )

    def _find_faster(self) -> tuple[FasterLibrary, ...]:
        return tuple(one for name, side in self.sides for one in side.faster if one.phase == name)

    @property
    def sides(self) -> tuple[tuple[str, Analysis], ...]:
        """Both analyses by the name of their phase."""
        return (("prefill", self.prefill), ("decode", self.decode))

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of both phases, as those of an Analysis."""
        return self.joint.rows()

    def to_dict(self) -> dict[str, Any]:
        """The JSON document: that of analyze() for each side, with its own phase only, and results for both."""
        joint = self.joint.to_dict()
        documents = {}
        for name, side in self.sides:
            document = side.to_dict()
            documents[name] = document | {
                "phases": {phase: result if phase == name else None for phase, result in document["phases"].items()}
            }
        return {
            "schema_version": joint["schema_version"],
            "llmviewer_version": joint["llmviewer_version"],
            **documents,
            "kv_transfer": {
                "when": self.kv_transfer,
                "link": self.kv_link,
                "bytes": self.kv_transfer_bytes,
                "bytes_per_s": self.kv_transfer_bytes_per_s,
                "time_s": self.kv_transfer_s,
            },
            "decode_per_prefill": self.decode_per_prefill,
            "generation": joint["generation"],
        }


def transfer_of(options: TransferOptions) -> tuple[KvTransfer, KvLink]:
    """Time and links of the transfer of KV caches.

    Raises InputError for another name.
    """
    transfer, link = options.get("kv_transfer"), options.get("kv_link")
    return (
        arguments.enum_member("kv_transfer", KvTransfer.AFTER if transfer is None else transfer, KvTransfer),
        arguments.enum_member("kv_link", KvLink.SCALE_OUT if link is None else link, KvLink),
    )


@document_options(DisaggregatedArguments)
def disaggregate(
    model: str | Model,
    prefill_hardware: str | Hardware,
    decode_hardware: str | Hardware,
    *,
    prefill_layout: str | Layout = ONE_DEVICE,
    decode_layout: str | Layout = ONE_DEVICE,
    **options: Unpack[DisaggregatedArguments],
) -> Disaggregated:
    """Prefill of a batch on one kind of device, decode on another.

    The options are as in analyze(). `hardware_set` changes both kinds of device, or one, as in
    "h100-sxm:memory.bandwidth=2x".

    Raises InputError if an argument is invalid or the model does not generate.
    """
    request = Request.of(**only(options, RequestOptions))
    if str(request.batch) == MAX:
        raise InputError("batch max is not supported with two kinds of device; give a number")
    arguments.check_types(model=model)
    loaded = load_model(model) if isinstance(model, str) else model
    if not loaded.generates:
        raise InputError(f"{loaded.name} does not generate: there are no decode steps to run on other devices")
    transfer, link = transfer_of(options)
    changes = arguments.with_defaults(options, DisaggregatedArguments)["hardware_set"]
    shared = only(options, DisaggregatedOptions)
    prefill_changes, decode_changes = changes_by_device((prefill_hardware, decode_hardware), changes)
    prefill_setting = Setting.of(
        loaded, prefill_hardware, layout=prefill_layout, **shared | {"hardware_set": prefill_changes}
    )
    decode_setting = Setting.of(
        loaded, decode_hardware, layout=decode_layout, **shared | {"hardware_set": decode_changes}
    )
    decode_setting = replace(decode_setting, decodes_only=True)
    prefill = analyze(prefill_setting, replace(request, gen=1, kv_len=None))
    decode = analyze(decode_setting, request)
    single_device_graph = replace(decode_setting, layout=ONE_DEVICE, offload=ON_DEVICE).graph
    return Disaggregated(
        prefill=prefill,
        decode=decode,
        kv_transfer=transfer,
        kv_link=link,
        kv_transfer_bytes=float(
            kv_cache_bytes(
                single_device_graph,
                batch=request.batch,
                prompt=request.prompt,
                images=request.images,
                context=_cached(loaded, request.prompt),
            )
        ),
        kv_transfer_bytes_per_s=transfer_bytes_per_s(prefill_setting, decode_setting, link),
    )


def _cached(model: Model, prompt: int) -> int:
    """Tokens in the KV cache after the prefill; encoder-decoder models also cache one decoder token."""
    return prompt + 1 if model.is_encoder_decoder else prompt


def transfer_bytes_per_s(prefill: Setting, decode: Setting, link: KvLink) -> float:
    """Bandwidth of the links of all devices of the slower side. [B/s]

    Raises InputError if such links do not connect both sides or their bandwidth is unknown.
    """
    sides = [(one.hardware, one.layout.devices) for one in (prefill, decode)]
    if link is KvLink.SCALE_UP and not in_one_domain(*sides):
        (prefill_hardware, prefill_devices), (decode_hardware, decode_devices) = sides
        raise InputError(
            "kv_link must be scale-out unless both sides fit in one scale-up domain; got "
            f"{prefill_devices} x {prefill_hardware.name} for prefill and "
            f"{decode_devices} x {decode_hardware.name} for decode"
        )
    return min(devices * link_bytes_per_s(hardware, link) for hardware, devices in sides)


def in_one_domain(prefill: tuple[Hardware, int], decode: tuple[Hardware, int]) -> bool:
    """Whether the devices of both sides fit in one scale-up domain."""
    (prefill_hardware, prefill_devices), (decode_hardware, decode_devices) = prefill, decode
    return (
        prefill_hardware.name == decode_hardware.name
        and prefill_devices + decode_devices <= prefill_hardware.numbers.get("scale_up.devices", inf)
    )


def link_bytes_per_s(hardware: Hardware, link: KvLink) -> float:
    """Bandwidth of the links of one device. [B/s]

    Raises InputError if it is unknown.
    """
    return hardware.fact(f"{_tier(hardware, link)}.bandwidth")


def latency_s(hardware: Hardware, link: KvLink) -> float:
    """Latency of a message; 0 if it is unknown. [s]"""
    return hardware.numbers.get(f"{_tier(hardware, link)}.latency", 0.0)


def _tier(hardware: Hardware, link: KvLink) -> str:
    if link is KvLink.SCALE_UP:
        return "scale_up"
    return "scale_out" if "scale_out.bandwidth" in hardware.numbers else "host"
