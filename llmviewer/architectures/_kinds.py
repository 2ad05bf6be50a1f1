"""Model types of transformers and LeRobot that are not analyzed, so that errors can refuse them by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

_KINDS: Final = {
    "an object detector": """
        conditional_detr d_fine dab-detr deformable_detr deimv2 detr grounding-dino lw_detr mm-grounding-dino
        omdet-turbo owlv2 owlvit pp_doclayout_v2 pp_doclayout_v3 pp_doclayout_v4 pp_ocrv5_mobile_det pp_ocrv5_server_det
        pp_ocrv6_medium_det pp_ocrv6_small_det pp_ocrv6_tiny_det rf_detr rt_detr rt_detr_v2 table-transformer yolos
    """,
    "a segmentation model": """
        beit clipseg data2vec-vision dpt edgetam edgetam_video eomt eomt_dinov3 groupvit mask2former maskformer
        mobilevit mobilevitv2 oneformer sam sam2 sam2_video sam3 sam3_lite_text sam3_tracker sam3_tracker_video
        sam3_video sam_hq sapiens2 seggpt segformer tipsv2_dpt upernet videomt vitmatte
    """,
    "a depth estimator": "chmv2 depth_anything depth_pro glpn prompt_depth_anything zoedepth",
    "a matcher of key points": "efficientloftr lightglue superglue superpoint vitpose",
    "an image classifier or its backbone": """
        bit convnext convnextv2 cvt deit dinat dinov2_with_registers dinov3_convnext dinov3_vit donut-swin efficientnet
        focalnet hgnet_v2 hiera ijepa levit lw_detr_vit maskformer-swin mlcd mobilenet_v1 mobilenet_v2 pixio poolformer
        pp_lcnet pp_lcnet_v3 pp_lcnet_v4 pvt pvt_v2 radio regnet resnet rf_detr_dinov2 rt_detr_resnet swiftformer swin
        swinv2 textnet timm_backbone timm_wrapper uvdoc vit_mae vit_msn vitdet vitpose_backbone
    """,
    "a model that restores or rectifies images": "swin2sr uvdoc_backbone",
    "a reader of text lines or tables in images": """
        layoutlm layoutlmv2 layoutlmv3 layoutxlm lilt bros markuplm mgp-str pp_formulanet pp_ocrv5_mobile_rec
        pp_ocrv5_server_rec pp_ocrv6_small_rec pp_ocrv6_tiny_rec slanet slanext tapas udop
    """,
    "a video encoder": "pe_video timesformer tvp videomae videoprism vivit vjepa2 xclip",
    "an encoder of images and texts that are compared": """
        aimv2 align altclip blip chinese_clip flava lxmert siglip2 tipsv2 vilt vision-text-dual-encoder
        visual_bert bridgetower
    """,
    "a forecaster of time series": """
        autoformer informer patchtsmixer patchtst time_series_transformer timesfm timesfm2_5
    """,
    "a codec of speech or sound": """
        apertus1p5_vision_tokenizer dac encodec higgs_audio_v2_tokenizer mimi neucodec univnet
        vibevoice_acoustic_tokenizer wavtokenizer xcodec xcodec2
    """,
    "a generator of speech or music": """
        bark clvp csm dia fastspeech2_conformer fastspeech2_conformer_with_hifigan gradium_phonon_tts higgs_audio_v2
        kyutai_speech_to_text moshi musicgen musicgen_melody pocket_tts pop2piano seamless_m4t seamless_m4t_v2 speecht5
        vibevoice vits
    """,
    "a speech recognizer without a language model": """
        data2vec-audio granite_speech5_ctc hubert lasr_ctc nemotron3_5_asr nemotron_asr_streaming omniasr_ctc
        parakeet_ctc parakeet_rnnt parakeet_tdt sew sew-d unispeech unispeech-sat wav2vec2 wav2vec2-bert
        wav2vec2-conformer wavlm
    """,
    "an audio encoder": "audio-spectrogram-transformer clap nemotron3_diarization pe_audio pe_audio_video",
    "a model of proteins": "esm esmc esmfold2 evolla EvollaModel",
    "a generator of images": "cosmos3_edge cosmos3_omni glm_image imagegpt",
    "a controller trained by reinforcement": "decision_transformer",
    "a pair of other models, named in its config": """
        encoder-decoder rag speech-encoder-decoder vision-encoder-decoder
    """,
    "a policy for robots of a kind that is not modelled": """
        act diffusion gr00t_n1 groot moe_openvla multi_task_dit sac tdmpc vqbet wall_x xvla
    """,
}
_LANGUAGE: Final = {  # kinds for which the nearest family is a help
    "an encoder of text that is not modelled": """
        bert-generation big_bird canine convbert deberta deberta-v2 dpr ernie flaubert fnet funnel ibert longformer luke
        megatron-bert mobilebert mra neomme nystromformer openai_privacy_filter perceiver rembert roberta-prelayernorm
        roc_bert roformer splinter squeezebert ultrabert ultravbert xlm-roberta-xl xmod yoso embedding_gemma2
    """,
    "a language model that is not modelled": """
        aria_text beam blt cpmant ctrl diffusion_gemma doge gpt_neox_japanese jev prophetnet reformer xlm xlnet
    """,
    "an encoder and decoder of text that is not modelled": """
        bigbird_pegasus fsmt led longt5 mvp pegasus_x t5gemma2 trocr
    """,
    "a vision-language model that is not modelled": """
        aria colmodernvbert colpali colqwen2 fast_vlm git granite4_vision granite_docling idefics
        modernvbert nougat perception_lm pix2struct unlimited_ocr video_llama_3
    """,
    "a speech or audio model that is not modelled": """
        audioflamingo3 canary cohere_asr fun_asr_nano glmasr moonshine moonshine_streaming
        moss_transcribe_diarize musicflamingo nemo_speechlm nemotron3_5_transcribe omniasr speech_to_text vibevoice_asr
        voxtral_realtime
    """,
}
_PARTS: Final = """
    florence_vision glm_image_vqmodel idefics2_perceiver idefics_perciever inkling_audio inkling_vision lasr_encoder
    moshi_depth parakeet_encoder pixtral t5_gemma_module vibevoice_diffusion
"""
_ENDINGS: Final = """
    vision visual audio text encoder decoder model qformer adapter assistant vqgan tokenizer talker dit token2wav
    bigvgan head projector hifigan codebook transformer patcher timestamp
"""
_GIVE_WHOLE_MODEL: Final = "give the config of the whole model"
_TRACE: Final = "give package.module:callable to trace its module"


class UnsupportedKind(NamedTuple):
    """Kind of a model, such as "an object detector", and the advice what to do instead; "" if other hints help."""

    what: str
    instead: str = ""


def kind_of(model_type: str, model_types: Iterable[str]) -> UnsupportedKind | None:
    """The kind of a model_type that is not analyzed, or a part of one; None if it is not known.

    `known` are the model types that are analyzed.
    """
    for table, instead in ((_KINDS, _TRACE), (_LANGUAGE, "")):
        for kind, listed in table.items():
            if model_type in listed.split():
                return UnsupportedKind(kind, instead)
    if whole_model := _whole_model_type(model_type, model_types):
        return UnsupportedKind(f"a part of {whole_model}", _GIVE_WHOLE_MODEL)
    every = (name for table in (_KINDS, _LANGUAGE) for listed in table.values() for name in listed.split())
    if owner := _whole_model_type(model_type, every):
        whole_kind = kind_of(owner, ())
        return UnsupportedKind(f"a part of {owner}, {whole_kind.what}" if whole_kind else f"a part of {owner}", _TRACE)
    return UnsupportedKind("a part of a larger model", _GIVE_WHOLE_MODEL) if model_type in _PARTS.split() else None


def _whole_model_type(model_type: str, types: Iterable[str]) -> str:
    """The longest of `types` that `model_type` names a part of; empty if none."""
    written = model_type.replace("-", "_")
    if not any(word in _ENDINGS.split() for word in written.split("_")[1:]):
        return ""
    owners = [name for name in types if written.startswith(f"{name.replace('-', '_').replace('.', '_')}_")]
    return max(owners, key=len, default="")
