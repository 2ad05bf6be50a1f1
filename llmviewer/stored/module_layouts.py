"""Names of the modules of each architecture in its checkpoints, as transformers 5.24 saves them.

A row names model types and, for each operator, the module that holds its weights. A name that begins with a dot is
within a layer; alternatives are separated by "|": names of parts of a weight, and names in other versions of a model.
Rows hold only the operators whose names differ from `DEFAULT_NAMES`. A key such as "probe.weight" or "A_log" stands for
one weight, and its value for a whole tensor name. Three keys are no operators:

layers   prefix of a layer, with its number as {}; {place} is its place among those with weights of their own, if others
         share them, and {even} and {odd} are the numbers of two modules per layer
stacks   names of equal stacks that share the layers, for {stack} in `layers`
wrapper  a leading name that only this architecture has

"@" is "encoder" or "decoder", by the block of the operator. "*" is any number, such as that of an expert. {-1} is the
number of the previous layer, {last} that of the last part of a T5 layer, {nth} the place of a layer in its block if
that is not the first one. Leading names of wrappers, such as "model." and "language_model.", are left out.

`tests/oracle/make_modules.py` compares the names with those of the classes in transformers. Of types that are not
there, they are those of the published checkpoints; of st_moe, which has none in this form, those of its
predecessor, switch_transformers.
"""

from __future__ import annotations

from typing import Final

DEFAULT_NAMES: Final = """
    A_log=.linear_attn.A_log a_proj=.linear_attn.in_proj_a attn_norm=.input_layernorm
    attn_post_norm=.post_attention_layernorm b_proj=.linear_attn.in_proj_b conv=.linear_attn.conv1d
    cross_k_proj=.encoder_attn.k_proj cross_norm=.encoder_attn_layer_norm cross_o_proj=.encoder_attn.out_proj
    cross_q_proj=.encoder_attn.q_proj cross_v_proj=.encoder_attn.v_proj down_proj=.mlp.down_proj
    dt_bias=.linear_attn.dt_bias eh_proj=.eh_proj embed_norm=embeddings.LayerNorm
    embed_positions=embeddings.position_embeddings embed_tokens=embed_tokens
    embed_types=embeddings.token_type_embeddings enorm=.enorm expert_down_proj=.mlp.experts.*.down_proj
    expert_down_proj.weight=.mlp.experts.down_proj expert_gate_proj=.mlp.experts.*.gate_proj
    expert_gate_proj.weight=.mlp.experts.gate_up_proj expert_up_proj=.mlp.experts.*.up_proj
    expert_up_proj.weight=.mlp.experts.gate_up_proj final_norm=norm g_proj=.self_attn.g_proj
    gate_proj=.mlp.gate_proj gate_up_proj=.mlp.gate_up_proj gated_norm=.linear_attn.norm hnorm=.hnorm
    index_k_norm=.self_attn.indexer.k_norm index_k_proj=.self_attn.indexer.wk index_q_proj=.self_attn.indexer.wq_b
    index_weights=.self_attn.indexer.weights_proj k_norm=.self_attn.k_norm k_proj=.self_attn.k_proj
    kv_a_norm=.self_attn.kv_a_layernorm kv_a_proj=.self_attn.kv_a_proj_with_mqa kv_b_proj=.self_attn.kv_b_proj
    lm_head=lm_head mlp_norm=.post_attention_layernorm mlp_post_norm=.post_feedforward_layernorm
    o_proj=.self_attn.o_proj out_proj=.linear_attn.out_proj q_a_norm=.self_attn.q_a_layernorm
    q_a_proj=.self_attn.q_a_proj q_b_proj=.self_attn.q_b_proj q_norm=.self_attn.q_norm q_proj=.self_attn.q_proj
    qkv_proj=.linear_attn.in_proj_qkv router=.mlp.gate shared_down_proj=.mlp.shared_experts.down_proj
    shared_gate=.mlp.shared_expert_gate shared_gate_proj=.mlp.shared_experts.gate_proj
    shared_head_norm=.shared_head.norm shared_up_proj=.mlp.shared_experts.up_proj up_proj=.mlp.up_proj
    v_proj=.self_attn.v_proj z_proj=.linear_attn.in_proj_z
"""

LAYOUTS: Final = """
DiTTransformer2DModel PixArtTransformer2DModel:
    layers=transformer_blocks.{} aspect_ratio_linear_1=adaln_single.emb.aspect_ratio_embedder.linear_1
    aspect_ratio_linear_2=adaln_single.emb.aspect_ratio_embedder.linear_2
    caption_linear_1=caption_projection.linear_1 caption_linear_2=caption_projection.linear_2
    cross_k_proj=.attn2.to_k cross_o_proj=.attn2.to_out.0 cross_q_proj=.attn2.to_q cross_v_proj=.attn2.to_v
    down_proj=.ff.net.2 final_linear=proj_out_2 k_proj=.attn1.to_k
    modulation=.norm1.linear|adaln_single.linear|proj_out_1 o_proj=.attn1.to_out.0 patch_embed=pos_embed.proj
    q_proj=.attn1.to_q resolution_linear_1=adaln_single.emb.resolution_embedder.linear_1
    resolution_linear_2=adaln_single.emb.resolution_embedder.linear_2
    scale_shift_table=.scale_shift_table|scale_shift_table time_linear_1=adaln_single.emb.timestep_embedder.linear_1
    time_linear_2=adaln_single.emb.timestep_embedder.linear_2 up_proj=.ff.net.0.proj v_proj=.attn1.to_v
Dream Emu3 arcee aya_vision blip-2 chameleon cohere cohere2 cohere2_moe cohere2_vision cohere_compass
cohere_compass_text cwm deci deepseek_ocr2 deepseek_ocr2_text deepseek_v2 deepseek_v3 deepseek_v32 deepseek_vl
deepseek_vl_hybrid described dots1 eagle emu3 emu3_text_model ernie4_5 eurobert exaone_moe gemma glm glm4_moe
glm4_moe_lite glm4v_moe glm4v_moe_text got_ocr2 granite granite_speech granite_speech_plus helium idefics2 idefics3
instructblip instructblipvideo internlm internlm3 internvl internvl_chat iquestcoder jais2 janus kimi_k2 lighton_ocr
llama llava llava_next llava_next_video llava_onevision mellum mimo mobilellm minicpm minicpm3 minicpm_ocr minicpmo
minicpmv minicpmv4_6 minicpmv4_7 ministral ministral3 mistral mistral3 mistral4 nemotron nemotron-nas olmo olmoe openvla
ovis2 paddleocr_vl paligemma pp_chart2table prismatic qwen2 qwen2_5_omni qwen2_5_omni_thinker qwen2_5_vl qwen2_5_vl_text
qwen2_audio qwen2_vl qwen2_vl_text qwen3 qwen3_5 qwen3_5_text qwen3_asr qwen3_moe qwen3_omni_moe qwen3_omni_moe_thinker
qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text sarvam_mla seed_oss smollm3 smolvlm solar_open video_llava
vipllava vlm voxtral youtu:
FluxTransformer2DModel:
    layers=transformer_blocks.{} context_down_proj=.ff_context.net.2 context_k_norm=.attn.norm_added_k
    context_k_proj=.attn.add_k_proj context_modulation=.norm1_context.linear context_o_proj=.attn.to_add_out
    context_q_norm=.attn.norm_added_q context_q_proj=.attn.add_q_proj context_up_proj=.ff_context.net.0.proj
    context_v_proj=.attn.add_v_proj down_proj=.ff.net.2|single_transformer_blocks.{nth}.proj_out
    guidance_linear_1=time_text_embed.guidance_embedder.linear_1
    guidance_linear_2=time_text_embed.guidance_embedder.linear_2
    k_norm=.attn.norm_k|single_transformer_blocks.{nth}.attn.norm_k
    k_proj=.attn.to_k|single_transformer_blocks.{nth}.attn.to_k
    modulation=.norm1.linear|single_transformer_blocks.{nth}.norm.linear|norm_out.linear o_proj=.attn.to_out.0
    q_norm=.attn.norm_q|single_transformer_blocks.{nth}.attn.norm_q
    q_proj=.attn.to_q|single_transformer_blocks.{nth}.attn.to_q text_linear_1=time_text_embed.text_embedder.linear_1
    text_linear_2=time_text_embed.text_embedder.linear_2 time_linear_1=time_text_embed.timestep_embedder.linear_1
    time_linear_2=time_text_embed.timestep_embedder.linear_2
    up_proj=.ff.net.0.proj|single_transformer_blocks.{nth}.proj_mlp
    v_proj=.attn.to_v|single_transformer_blocks.{nth}.attn.to_v
RefinedWeb RefinedWebModel falcon:
    layers=h.{} attn_norm=.ln_attn|.input_layernorm down_proj=.mlp.dense_4h_to_h embed_tokens=word_embeddings
    final_norm=ln_f mlp_norm=.ln_mlp|.post_attention_layernorm o_proj=.self_attention.dense
    qkv_proj=.self_attention.query_key_value up_proj=.mlp.dense_h_to_4h
SD3Transformer2DModel:
    layers=transformer_blocks.{} context_down_proj=.ff_context.net.2 context_k_norm=.attn.norm_added_k
    context_k_proj=.attn.add_k_proj context_modulation=.norm1_context.linear context_o_proj=.attn.to_add_out
    context_q_norm=.attn.norm_added_q context_q_proj=.attn.add_q_proj context_up_proj=.ff_context.net.0.proj
    context_v_proj=.attn.add_v_proj down_proj=.ff.net.2 guidance_linear_1=time_text_embed.guidance_embedder.linear_1
    guidance_linear_2=time_text_embed.guidance_embedder.linear_2 k_norm=.attn.norm_k k_proj=.attn.to_k
    modulation=.norm1.linear|norm_out.linear o_proj=.attn.to_out.0 patch_embed=pos_embed.proj q_norm=.attn.norm_q
    q_proj=.attn.to_q self_k_norm=.attn2.norm_k self_k_proj=.attn2.to_k self_o_proj=.attn2.to_out.0
    self_q_norm=.attn2.norm_q self_q_proj=.attn2.to_q self_v_proj=.attn2.to_v
    text_linear_1=time_text_embed.text_embedder.linear_1 text_linear_2=time_text_embed.text_embedder.linear_2
    time_linear_1=time_text_embed.timestep_embedder.linear_1
    time_linear_2=time_text_embed.timestep_embedder.linear_2 up_proj=.ff.net.0.proj v_proj=.attn.to_v
UNet2DConditionModel:
    added_linear_1=add_embedding.linear_1 added_linear_2=add_embedding.linear_2 conv_in=conv_in conv_out=conv_out
    norm_out=conv_norm_out time_linear_1=time_embedding.linear_1 time_linear_2=time_embedding.linear_2
afmoe:
    mlp_norm=.pre_mlp_layernorm mlp_post_norm=.post_mlp_layernorm q_proj=.self_attn.gate_proj|.self_attn.q_proj
    router=.mlp.router.gate router.bias=.mlp.expert_bias
albert:
    layers=encoder.albert_layer_groups.* attn_norm=.albert_layers.*.attention.LayerNorm
    down_proj=.albert_layers.*.ffn_output embed_project=encoder.embedding_hidden_mapping_in
    embed_tokens=embeddings.word_embeddings head_dense=predictions.dense head_norm=predictions.LayerNorm
    k_proj=.albert_layers.*.attention.key lm_head=predictions mlp_norm=.albert_layers.*.full_layer_layer_norm
    o_proj=.albert_layers.*.attention.dense pooler_dense=pooler q_proj=.albert_layers.*.attention.query
    up_proj=.albert_layers.*.ffn v_proj=.albert_layers.*.attention.value
apertus apertus1p5 apertus1p5_text:
    attn_norm=.attention_layernorm mlp_act.alpha_n=.mlp.act_fn.alpha_n mlp_act.alpha_p=.mlp.act_fn.alpha_p
    mlp_norm=.feedforward_layernorm
arctic:
    expert_down_proj=.block_sparse_moe.experts.*.w2 expert_gate_proj=.block_sparse_moe.experts.*.w1
    expert_up_proj=.block_sparse_moe.experts.*.w3 residual_down_proj=.residual_mlp.w2
    residual_gate_proj=.residual_mlp.w1 residual_norm=.residual_layernorm residual_up_proj=.residual_mlp.w3
    router=.block_sparse_moe.gate
axk1:
    experts_norm=.post_mlp_layernorm
axk2:
    attn_gate_down=.input_layernorm.W_down attn_gate_up=.input_layernorm.W_up attn_norm=.input_layernorm.norm
    mlp_gate_down=.post_attention_layernorm.W_down mlp_gate_up=.post_attention_layernorm.W_up
    mlp_norm=.post_attention_layernorm|.post_attention_layernorm.norm
    q_gate_proj=.self_attn.q_b_proj|.self_attn.q_gate_proj
baichuan:
    qkv_proj=.self_attn.W_pack
bailing_hybrid:
    A_log=.attention.A_log b_proj=.attention.b_proj|.self_attn.b_proj
    conv=.attention.q_conv1d|.attention.k_conv1d|.attention.v_conv1d dt_bias=.attention.dt_bias
    embed_tokens=word_embeddings|embed_tokens f_proj=.attention.f_proj|.self_attn.forget_gate.f_proj
    g_proj=.attention.g_proj|.self_attn.g_proj k_proj=.attention.k_proj|.self_attn.k_proj
    kv_a_norm=.attention.kv_a_layernorm kv_a_proj=.attention.kv_a_proj_with_mqa|.self_attn.kv_a_proj_with_mqa
    kv_b_proj=.attention.kv_b_proj|.self_attn.kv_b_proj o_norm=.attention.o_norm
    o_proj=.attention.dense|.self_attn.o_proj q_a_norm=.attention.q_a_layernorm|.self_attn.q_a_layernorm
    q_a_proj=.attention.q_a_proj|.self_attn.q_a_proj q_b_proj=.attention.q_b_proj|.self_attn.q_b_proj
    q_proj=.attention.q_proj|.self_attn.q_proj v_proj=.attention.v_proj|.self_attn.v_proj
bailing_moe bailing_moe_linear bailing_moe_linear_v2 bailing_moe_v2:
    embed_tokens=word_embeddings g_proj=.attention.g_proj k_norm=.attention.key_layernorm o_proj=.attention.dense
    out_proj=.attention.dense q_norm=.attention.query_layernorm qkv_proj=.attention.query_key_value
    scan_norm=.attention.g_norm
bamba falcon_h1:
    A_log=.mamba.A_log D=.mamba.D conv=.mamba.conv1d down_proj=.feed_forward.down_proj dt_bias=.mamba.dt_bias
    final_norm=final_layernorm gate_proj=.feed_forward.gate_proj gated_norm=.mamba.norm in_proj=.mamba.in_proj
    mlp_norm=.pre_ff_layernorm out_proj=.mamba.out_proj up_proj=.feed_forward.up_proj
bart blenderbot blenderbot-small florence2 m2m_100 marian mbart pegasus plbart:
    layers=@.layers.{} attn_norm=.self_attn_layer_norm down_proj=.fc2 embed_norm=@.layernorm_embedding
    embed_positions=@.embed_positions embed_tokens=shared final_norm=@.layer_norm mlp_norm=.final_layer_norm
    o_proj=.self_attn.out_proj up_proj=.fc1
bert:
    layers=encoder.layer.{} attn_norm=.attention.output.LayerNorm down_proj=.output.dense
    embed_tokens=embeddings.word_embeddings head_dense=cls.predictions.transform.dense
    head_norm=cls.predictions.transform.LayerNorm k_proj=.attention.self.key
    lm_head=cls.predictions|cls.predictions.decoder mlp_norm=.output.LayerNorm o_proj=.attention.output.dense
    pooler_dense=pooler.dense q_proj=.attention.self.query up_proj=.intermediate.dense v_proj=.attention.self.value
biogpt xglm:
    attn_norm=.self_attn_layer_norm down_proj=.fc2 embed_positions=embed_positions final_norm=layer_norm
    mlp_norm=.final_layer_norm o_proj=.self_attn.out_proj up_proj=.fc1
bitnet:
    attn_sub_norm=.self_attn.attn_sub_norm mlp_sub_norm=.mlp.ffn_sub_norm
bloom:
    layers=h.{} down_proj=.mlp.dense_4h_to_h embed_norm=word_embeddings_layernorm embed_tokens=word_embeddings
    final_norm=ln_f o_proj=.self_attention.dense qkv_proj=.self_attention.query_key_value up_proj=.mlp.dense_h_to_4h
camembert data2vec-text roberta xlm-roberta:
    layers=encoder.layer.{} attn_norm=.attention.output.LayerNorm down_proj=.output.dense
    embed_tokens=embeddings.word_embeddings head_dense=lm_head.dense head_norm=lm_head.layer_norm
    k_proj=.attention.self.key lm_head=lm_head|lm_head.decoder mlp_norm=.output.LayerNorm
    o_proj=.attention.output.dense pooler_dense=pooler.dense q_proj=.attention.self.query
    up_proj=.intermediate.dense v_proj=.attention.self.value
chatglm:
    layers=encoder.layers.{} down_proj=.mlp.dense_4h_to_h embed_tokens=embedding.word_embeddings|embed_tokens
    final_norm=encoder.final_layernorm gate_up_proj=.mlp.dense_h_to_4h lm_head=output_layer
    o_proj=.self_attention.dense qkv_proj=.self_attention.query_key_value
clip clip_text_model metaclip_2 metaclip_2_text_model:
    layers=encoder.layers.{} attn_norm=.layer_norm1 down_proj=.mlp.fc2 embed_positions=embeddings.position_embedding
    embed_tokens=embeddings.token_embedding final_norm=final_layer_norm logit_scale=logit_scale
    mlp_norm=.layer_norm2 o_proj=.self_attn.out_proj projection=text_projection up_proj=.mlp.fc1
clip_vision_model metaclip_2_vision_model:
    layers=encoder.layers.{} wrapper=vision_model attn_norm=.layer_norm1 down_proj=.mlp.fc2
    learned_tokens.weight=embeddings.class_embedding mlp_norm=.layer_norm2 o_proj=.self_attn.out_proj
    patch_embed=embeddings.patch_embedding positions=embeddings.position_embedding post_norm=post_layernorm
    pre_norm=pre_layrnorm up_proj=.mlp.fc1
codegen:
    layers=h.{} attn_norm=.ln_1 down_proj=.mlp.fc_out embed_tokens=wte final_norm=ln_f o_proj=.attn.out_proj
    qkv_proj=.attn.qkv_proj up_proj=.mlp.fc_in
dbrx:
    layers=blocks.{} attn_norm=.norm_attn_norm.norm_1 embed_tokens=wte expert_down_proj=.ffn.experts.mlp.w2
    expert_down_proj.weight=.ffn.experts.mlp.w2 expert_gate_proj=.ffn.experts.mlp.w1
    expert_gate_proj.weight=.ffn.experts.mlp.w1 expert_up_proj=.ffn.experts.mlp.v1
    expert_up_proj.weight=.ffn.experts.mlp.v1 final_norm=norm_f mlp_norm=.norm_attn_norm.norm_2
    o_proj=.norm_attn_norm.attn.out_proj qkv_proj=.norm_attn_norm.attn.Wqkv router=.ffn.router.layer
deepseek_ref deepseek_v4:
    attn_hc.base=.hc_attn_base attn_hc.fn=.hc_attn_fn attn_hc.scale=.hc_attn_scale attn_norm=.attn_norm
    compressed.norm=.attn.compressor.norm compressed.position_bias=.attn.compressor.ape
    compressed_gate_proj=.attn.compressor.wgate|.self_attn.compressor.gate_proj
    compressed_kv_proj=.attn.compressor.wkv|.self_attn.compressor.kv_proj expert_down_proj=.ffn.experts.*.w2
    expert_gate_proj=.ffn.experts.*.w1 expert_up_proj=.ffn.experts.*.w3 hc_head.base=hc_head.hc_base
    hc_head.fn=hc_head.hc_fn hc_head.scale=hc_head.hc_scale index.norm=.attn.indexer.compressor.norm
    index.position_bias=.attn.indexer.compressor.ape
    index_gate_proj=.attn.indexer.compressor.wgate|.self_attn.compressor.indexer.gate_proj
    index_kv_proj=.attn.indexer.compressor.wkv|.self_attn.compressor.indexer.kv_proj
    index_q_proj=.attn.indexer.wq_b|.self_attn.compressor.indexer.q_b_proj
    index_weights=.attn.indexer.weights_proj|.self_attn.compressor.indexer.scorer.weights_proj kv_norm=.attn.norm
    kv_proj=.attn.wkv|.self_attn.kv_proj lm_head=head|lm_head mlp_hc.base=.hc_ffn_base mlp_hc.fn=.hc_ffn_fn
    mlp_hc.scale=.hc_ffn_scale mlp_norm=.ffn_norm o_a_proj=.attn.wo_a|.self_attn.o_a_proj
    o_b_proj=.attn.wo_b|.self_attn.o_b_proj q_a_norm=.attn.q_norm q_a_proj=.attn.wq_a|.self_attn.q_a_proj
    q_b_proj=.attn.wq_b|.self_attn.q_b_proj router=.ffn.gate|.mlp.gate
    shared_down_proj=.ffn.shared_experts.w2|.mlp.shared_experts.down_proj
    shared_gate_proj=.ffn.shared_experts.w1|.mlp.shared_experts.gate_proj
    shared_up_proj=.ffn.shared_experts.w3|.mlp.shared_experts.up_proj sinks=.attn.attn_sink
deepseek_vl_v2:
    wrapper=language
diffllama:
    lambda_k1=.self_attn.lambda_k1 lambda_k2=.self_attn.lambda_k2 lambda_q1=.self_attn.lambda_q1
    lambda_q2=.self_attn.lambda_q2
dinov2:
    layers=encoder.layer.{} wrapper=dinov2 attn_norm=.norm1 down_proj=.mlp.fc2
    down_proj_scale.weight=.layer_scale2.lambda1 k_proj=.attention.attention.key|.attention.k_proj
    learned_tokens.weight=embeddings.cls_token mask_token.weight=embeddings.mask_token mlp_norm=.norm2
    o_proj=.attention.output.dense|.attention.o_proj o_proj_scale.weight=.layer_scale1.lambda1
    patch_embed=embeddings.patch_embeddings.projection positions.weight=embeddings.position_embeddings
    post_norm=layernorm q_proj=.attention.attention.query|.attention.q_proj up_proj=.mlp.fc1
    v_proj=.attention.attention.value|.attention.v_proj
distilbert:
    layers=layer.{} attn_norm=.sa_layer_norm down_proj=.ffn.lin2 embed_tokens=embeddings.word_embeddings
    head_dense=vocab_transform head_norm=vocab_layer_norm k_proj=.attention.k_lin lm_head=vocab_projector
    mlp_norm=.output_layer_norm o_proj=.attention.out_lin q_proj=.attention.q_lin up_proj=.ffn.lin1
    v_proj=.attention.v_lin
dit:
    layers=blocks.{} down_proj=.mlp.fc2 embed_class=y_embedder.embedding_table final_linear=final_layer.linear
    modulation=.adaLN_modulation.1|final_layer.adaLN_modulation.1 o_proj=.attn.proj patch_embed=x_embedder.proj
    qkv_proj=.attn.qkv time_linear_1=t_embedder.mlp.0 time_linear_2=t_embedder.mlp.2 up_proj=.mlp.fc1
dory:
    layers=layers.{place} attn_add.rate=.lambda_1|layers.{even}.attn_alpha
    down_proj=.mlp.down_proj|layers.{odd}.mixer.down_proj embed_tokens=embeddings|embed_tokens
    g_proj=.self_attn.g_proj|layers.{even}.mixer.g_proj gate_proj=.mlp.gate_proj|layers.{odd}.mixer.gate_proj
    gate_scale=.self_attn.s_gate|layers.{even}.mixer.s_gate k_proj=.self_attn.k_proj|layers.{even}.mixer.k_proj
    logit_scale=lm_head.logit_scale mlp_act.gate_scale=.mlp.suv_gate|layers.{odd}.mixer.suv_gate
    mlp_act.up_scale=.mlp.suv_up|layers.{odd}.mixer.suv_up mlp_add.rate=.lambda_2|layers.{odd}.mlp_alpha
    o_proj=.self_attn.o_proj|layers.{even}.mixer.o_proj q_proj=.self_attn.q_proj|layers.{even}.mixer.q_proj
    q_scale=.self_attn.sqk|layers.{even}.mixer.sqk up_proj=.mlp.up_proj|layers.{odd}.mixer.up_proj
    v_proj=.self_attn.v_proj|layers.{even}.mixer.v_proj
dots3_note dots3_note_text:
    k_rope_norm=.self_attn.k_rope_only_layernorm
eagle3:
    layers=midlayer embed_norm=.input_layernorm fc=fc hidden_norm=.hidden_norm
electra:
    layers=encoder.layer.{} attn_norm=.attention.output.LayerNorm down_proj=.output.dense
    embed_project=embeddings_project embed_tokens=embeddings.word_embeddings head_dense=generator_predictions.dense
    head_norm=generator_predictions.LayerNorm k_proj=.attention.self.key lm_head=generator_lm_head
    mlp_norm=.output.LayerNorm o_proj=.attention.output.dense q_proj=.attention.self.query
    up_proj=.intermediate.dense v_proj=.attention.self.value
ernie4_5_moe:
    router.bias=.mlp.moe_statics.e_score_correction_bias|.mlp.gate.moe_statics.e_score_correction_bias
ernie4_5_vl_moe:
    expert_down_proj=.mlp.experts.*.down_proj expert_gate_proj=.mlp.experts.*.gate_proj
    expert_up_proj=.mlp.experts.*.up_proj router.bias=.mlp.moe_statics.e_score_correction_bias
    router.weight=.mlp.gate.weight vision_expert_down_proj=.mlp.experts.*.down_proj
    vision_expert_gate_proj=.mlp.experts.*.gate_proj vision_expert_up_proj=.mlp.experts.*.up_proj
    vision_router.bias=.mlp.moe_statics.e_score_correction_bias vision_router.weight=.mlp.gate.weight_1
exaone:
    layers=h.{}|layers.{} attn_norm=.ln_1|.input_layernorm down_proj=.mlp.c_proj|.mlp.down_proj
    embed_tokens=wte|embed_tokens final_norm=ln_f|norm gate_proj=.mlp.c_fc_0|.mlp.gate_proj
    k_proj=.attn.attention.k_proj|.self_attn.k_proj mlp_norm=.ln_2|.post_attention_layernorm
    o_proj=.attn.attention.out_proj|.self_attn.o_proj q_proj=.attn.attention.q_proj|.self_attn.q_proj
    up_proj=.mlp.c_fc_1|.mlp.up_proj v_proj=.attn.attention.v_proj|.self_attn.v_proj
exaone4 exaone4_5 flex_olmo olmo2 olmo3:
    attn_norm=.post_attention_layernorm mlp_norm=.post_feedforward_layernorm
falcon_mamba mamba:
    A_log=.mixer.A_log D=.mixer.D attn_norm=.norm conv=.mixer.conv1d dt_proj=.mixer.dt_proj embed_tokens=embeddings
    final_norm=norm_f in_proj=.mixer.in_proj out_proj=.mixer.out_proj x_proj=.mixer.x_proj
flint qwen2_moe:
    shared_down_proj=.mlp.shared_expert.down_proj shared_gate_proj=.mlp.shared_expert.gate_proj
    shared_up_proj=.mlp.shared_expert.up_proj sinks=.self_attn.softmax_offset
fuyu persimmon:
    down_proj=.mlp.dense_4h_to_h final_norm=final_layernorm k_norm=.self_attn.k_layernorm o_proj=.self_attn.dense
    q_norm=.self_attn.q_layernorm qkv_proj=.self_attn.query_key_value up_proj=.mlp.dense_h_to_4h
gemma2 gemma3 gemma3_text gemma4_unified gemma4_unified_text shieldgemma2 vaultgemma:
    mlp_norm=.pre_feedforward_layernorm
gemma3n gemma3n_text:
    altup_projections=altup_projections.* altup_unembed_projections=altup_unembed_projections.*
    correct_output_scale=.altup.correct_output_scale correction_coefs=.altup.correction_coefs
    embed_tokens_per_layer=embed_tokens_per_layer laurel_norm=.laurel.post_laurel_norm
    linear_left=.laurel.linear_left linear_right=.laurel.linear_right mlp_norm=.pre_feedforward_layernorm
    modality_router=.altup.modality_router per_layer_input_gate=.per_layer_input_gate
    per_layer_model_projection=per_layer_model_projection per_layer_norm=.post_per_layer_input_norm
    per_layer_projection=.per_layer_projection per_layer_projection_norm=per_layer_projection_norm
    prediction_coefs=.altup.prediction_coefs router_norm=.altup.router_norm
gemma4 gemma4_text:
    embed_tokens_per_layer=embed_tokens_per_layer expert_down_proj=.experts.*.down_proj
    expert_down_proj.weight=.experts.down_proj expert_gate_proj=.experts.*.gate_proj
    expert_gate_proj.weight=.experts.gate_up_proj expert_up_proj=.experts.*.up_proj
    expert_up_proj.weight=.experts.gate_up_proj experts_norm=.pre_feedforward_layernorm_2
    experts_post_norm=.post_feedforward_layernorm_2 mlp_norm=.pre_feedforward_layernorm
    mlp_post_norm_1=.post_feedforward_layernorm_1 per_expert_scale=.router.per_expert_scale
    per_layer_input_gate=.per_layer_input_gate per_layer_model_projection=per_layer_model_projection
    per_layer_norm=.post_per_layer_input_norm per_layer_projection=.per_layer_projection
    per_layer_projection_norm=per_layer_projection_norm router=.router.proj router_norm.weight=.router.scale
glm4 glm46v glm4v glm4v_text glm_ocr glmga:
    attn_post_norm=.post_self_attn_layernorm mlp_post_norm=.post_mlp_layernorm
glm5_next glm5_next_text:
    A_log=.self_attn.A_log attn_hc.base=.hc_attn_base attn_hc.fn=.hc_attn_fn attn_hc.scale=.hc_attn_scale
    b_proj=.self_attn.b_proj conv=.self_attn.q_conv1d|.self_attn.k_conv1d|.self_attn.v_conv1d
    dt_bias=.self_attn.dt_bias f_a_proj=.self_attn.f_a_proj|.self_attn.forget_gate.f_a_proj
    f_b_proj=.self_attn.f_b_proj|.self_attn.forget_gate.f_b_proj g_a_proj=.self_attn.g_a_proj
    g_b_proj=.self_attn.g_b_proj index_entries.position_bias=.self_attn.indexer.index_kpool_compress_ape
    index_gate_proj.weight=.self_attn.indexer.index_kpool_compress_gate mlp_hc.base=.hc_ffn_base
    mlp_hc.fn=.hc_ffn_fn mlp_hc.scale=.hc_ffn_scale o_norm=.self_attn.o_norm
glm_moe_dsa:
    index_weights=.self_attn.indexer.weights_proj|.self_attn.indexers_proj
gpt-sw3 gpt2 gpt_bigcode:
    layers=h.{} attn_norm=.ln_1 down_proj=.mlp.c_proj embed_positions=wpe embed_tokens=wte final_norm=ln_f
    mlp_norm=.ln_2 o_proj=.attn.c_proj qkv_proj=.attn.c_attn up_proj=.mlp.c_fc
gpt_neo:
    layers=h.{} attn_norm=.ln_1 down_proj=.mlp.c_proj embed_positions=wpe embed_tokens=wte final_norm=ln_f
    k_proj=.attn.attention.k_proj mlp_norm=.ln_2 o_proj=.attn.attention.out_proj q_proj=.attn.attention.q_proj
    up_proj=.mlp.c_fc v_proj=.attn.attention.v_proj
gpt_neox:
    down_proj=.mlp.dense_4h_to_h embed_tokens=embed_in final_norm=final_layer_norm lm_head=embed_out|lm_head
    o_proj=.attention.dense qkv_proj=.attention.query_key_value up_proj=.mlp.dense_h_to_4h
gpt_oss granite_swa:
    expert_down_proj.bias=.mlp.experts.down_proj_bias expert_gate_proj.bias=.mlp.experts.gate_up_proj_bias
    expert_up_proj.bias=.mlp.experts.gate_up_proj_bias router=.mlp.router sinks=.self_attn.sinks
gptj:
    layers=h.{} attn_norm=.ln_1 down_proj=.mlp.fc_out embed_tokens=wte final_norm=ln_f k_proj=.attn.k_proj
    o_proj=.attn.out_proj q_proj=.attn.q_proj up_proj=.mlp.fc_in v_proj=.attn.v_proj
gr00t_n1_5:
    wrapper=backbone.eagle_model expert_attn_modulation=action_head.model.transformer_blocks.{}.norm1.linear
    expert_cross_k_proj=action_head.model.transformer_blocks.{}.attn1.to_k
    expert_cross_o_proj=action_head.model.transformer_blocks.{}.attn1.to_out.0
    expert_cross_q_proj=action_head.model.transformer_blocks.{}.attn1.to_q
    expert_cross_v_proj=action_head.model.transformer_blocks.{}.attn1.to_v
    expert_down_proj=action_head.model.transformer_blocks.{}.ff.net.2
    expert_k_proj=action_head.model.transformer_blocks.{}.attn1.to_k
    expert_o_proj=action_head.model.transformer_blocks.{}.attn1.to_out.0
    expert_q_proj=action_head.model.transformer_blocks.{}.attn1.to_q
    expert_up_proj=action_head.model.transformer_blocks.{}.ff.net.0.proj
    expert_v_proj=action_head.model.transformer_blocks.{}.attn1.to_v
granitemoe granitemoehybrid granitemoeshared:
    A_log=.mamba.A_log D=.mamba.D conv=.mamba.conv1d down_proj=.shared_mlp.output_linear dt_bias=.mamba.dt_bias
    expert_down_proj=.block_sparse_moe.output_linear expert_down_proj.weight=.block_sparse_moe.experts.down_proj
    expert_gate_proj=.block_sparse_moe.input_linear expert_gate_proj.weight=.block_sparse_moe.experts.gate_up_proj
    expert_up_proj=.block_sparse_moe.input_linear expert_up_proj.weight=.block_sparse_moe.experts.gate_up_proj
    gate_up_proj=.shared_mlp.input_linear gated_norm=.mamba.norm in_proj=.mamba.in_proj out_proj=.mamba.out_proj
    router=.block_sparse_moe.router.layer|.block_sparse_moe.router shared_down_proj=.shared_mlp.output_linear
    shared_gate_up_proj=.shared_mlp.input_linear
granitemoe_swa:
    expert_down_proj=.block_sparse_moe.experts.*.down_proj
    expert_down_proj.weight=.block_sparse_moe.experts.down_proj
    expert_gate_proj=.block_sparse_moe.experts.*.gate_proj
    expert_gate_proj.weight=.block_sparse_moe.experts.gate_up_proj
    expert_up_proj=.block_sparse_moe.experts.*.up_proj expert_up_proj.weight=.block_sparse_moe.experts.gate_up_proj
    router=.block_sparse_moe.router shared_down_proj=.shared_mlp.output_linear
    shared_gate_proj=.shared_mlp.input_linear shared_up_proj=.shared_mlp.input_linear sinks=.self_attn.sinks
grok-1:
    attn_norm=.pre_attn_norm attn_post_norm=.post_attn_norm expert_down_proj=.moe_block.experts.*.linear_1
    expert_gate_proj=.moe_block.experts.*.linear expert_up_proj=.moe_block.experts.*.linear_v k_proj=.attn.k_proj
    mlp_norm=.pre_moe_norm mlp_post_norm=.post_moe_norm o_proj=.attn.o_proj q_proj=.attn.q_proj
    router=.moe_block.gate v_proj=.attn.v_proj
gte new:
    layers=encoder.layer.{}|layers.{} attn_norm=.attn_ln embed_tokens=embeddings.word_embeddings
    gate_proj=.mlp.up_gate_proj|.mlp.gate_proj head_dense=lm_head.dense head_norm=lm_head.layer_norm
    k_proj=.attention.qkv_proj|.self_attn.k_proj lm_head=lm_head|lm_head.decoder mlp_norm=.mlp_ln
    o_proj=.attention.o_proj|.self_attn.o_proj q_proj=.attention.qkv_proj|.self_attn.q_proj
    up_proj=.mlp.up_gate_proj|.mlp.up_proj v_proj=.attention.qkv_proj|.self_attn.v_proj
hrm_text:
    layers={stack}.layers.{} stacks=L_module|H_module first_state=z_L_init g_proj=.attn.gqkv_proj
    gate_proj=.mlp.gate_up_proj k_proj=.attn.gqkv_proj o_proj=.attn.o_proj q_proj=.attn.gqkv_proj
    up_proj=.mlp.gate_up_proj v_proj=.attn.gqkv_proj
hunyuan hunyuan_v1_moe:
    k_norm=.self_attn.key_layernorm q_norm=.self_attn.query_layernorm router=.mlp.gate.wg
    shared_down_proj=.mlp.shared_mlp.down_proj shared_gate_proj=.mlp.shared_mlp.gate_proj
    shared_up_proj=.mlp.shared_mlp.up_proj
hunyuan_v1_dense hunyuan_vl hunyuan_vl_text:
    k_norm=.self_attn.key_layernorm q_norm=.self_attn.query_layernorm
hy_v3:
    router=.mlp.router.gate|.mlp.gate shared_down_proj=.mlp.shared_mlp.down_proj|.mlp.shared_experts.down_proj
    shared_gate_proj=.mlp.shared_mlp.gate_proj|.mlp.shared_experts.gate_proj
    shared_up_proj=.mlp.shared_mlp.up_proj|.mlp.shared_experts.up_proj
hy_v4 hy_v4_vl hy_v4_vl_text:
    attn_hc.base=.hc_pre.hc_attn_layer.hc_base attn_hc.fn=.hc_pre.hc_attn_layer.hc_fn
    attn_hc.scale=.hc_pre.hc_attn_layer.hc_scale g_proj=.self_attn.linear_gate|.self_attn.gate_proj
    gate_proj=.mlp.linear_gate|.mlp.gate_proj hc_head.base=hc_pre.hc_head.hc_head_base|hc_head.hc_pre.hc_head_base
    hc_head.fn=hc_pre.hc_head.hc_head_fn|hc_head.hc_pre.hc_head_fn
    hc_head.scale=hc_pre.hc_head.hc_head_scale|hc_head.hc_pre.hc_head_scale
    mlp_hc.base=.hc_pre.hc_mlp_layer.hc_base mlp_hc.fn=.hc_pre.hc_mlp_layer.hc_fn
    mlp_hc.scale=.hc_pre.hc_mlp_layer.hc_scale
    shared_gate_proj=.mlp.shared_experts.linear_gate|.mlp.shared_experts.gate_proj
    sinks=.self_attn.learnable_sink_param
hyperclovax hyperclovax_vision_v2:
    attn_post_norm=.post_norm1 mlp_post_norm=.post_norm2
inkling2 inkling2_loop inkling2_loop_text inkling2_text:
    layers=layers.{place} attn_conv=.attn_sconv attn_norm_in=.attn_norm
    attn_sources.query=attn_res.attn_queries.{-1} embed_norm=embed_norm embed_tokens=embed|embed_tokens
    expert_down_proj=.mlp.experts.w2_weight expert_down_proj.weight=.mlp.experts.w2_weight|.mlp.experts.down_proj
    expert_gate_proj=.mlp.experts.w13_weight
    expert_gate_proj.weight=.mlp.experts.w13_weight|.mlp.experts.gate_up_proj expert_up_proj=.mlp.experts.w13_weight
    expert_up_proj.weight=.mlp.experts.w13_weight|.mlp.experts.gate_up_proj
    g_proj=.attn.gate_attn|.self_attn.o_proj.gate_proj head_sources.query=attn_res.output_query k_conv=.attn.k_sconv
    k_conv.weight=.attn.k_sconv.static_w k_norm_in=.k_input_norm k_proj=.attn.wk_dv|.self_attn.k_proj.linear
    k_taps_proj=.self_attn.k_proj.sconv.weight_proj k_taps_proj.weight=.attn.k_sconv.weight_proj
    k_told_down.weight=.controllers.k.down_weight k_told_forget.weight=.controllers.k.forget_weight
    k_told_gate.weight=.controllers.k.gain_weight lm_head=unembed|lm_head
    messages.query=middle_cycle_cross_pass_queries|middle_cycle_cross_pass_kv_queries mlp_conv=.mlp_sconv
    mlp_norm=.mlp_norm mlp_sources.query=attn_res.mlp_queries.{} mlp_told_down.weight=.controllers.mlp.down_weight
    mlp_told_forget.weight=.controllers.mlp.forget_weight mlp_told_gate.weight=.controllers.mlp.gain_weight
    o_proj=.attn.wo_ud|.self_attn.o_proj.linear positions.weight=.attn.rel_logits_proj.proj
    q_norm.scale=.attn.q_l2_clip.scale q_norm_in=.q_input_norm q_proj=.attn.wq_du|.self_attn.q_proj.linear
    q_told_down.weight=.controllers.attn.down_weight q_told_forget.weight=.controllers.attn.forget_weight
    q_told_gate.weight=.controllers.attn.gain_weight r_norm.scale=.attn.rel_l2_clip.scale
    r_proj=.attn.wr_du|.self_attn.relative_position_bias.linear sink_proj=.attn.attn_sink_proj|.self_attn.sink_proj
    v_conv=.attn.v_sconv v_conv.weight=.attn.v_sconv.static_w v_norm_in=.v_input_norm
    v_proj=.attn.wv_dv|.self_attn.v_proj.linear v_taps_proj=.self_attn.v_proj.sconv.weight_proj
    v_taps_proj.weight=.attn.v_sconv.weight_proj v_told_down.weight=.controllers.v.down_weight
    v_told_forget.weight=.controllers.v.forget_weight v_told_gate.weight=.controllers.v.gain_weight
inkling_mm_model:
    attn_conv=.attn_sconv attn_norm=.attn_norm down_proj_scale.weight=.mlp.global_scale embed_norm=embed_norm
    embed_tokens=embed|embed_tokens expert_down_proj=.mlp.experts.w2_weight
    expert_down_proj.weight=.mlp.experts.w2_weight|.mlp.experts.down_proj expert_gate_proj=.mlp.experts.w13_weight
    expert_gate_proj.weight=.mlp.experts.w13_weight|.mlp.experts.gate_up_proj expert_up_proj=.mlp.experts.w13_weight
    expert_up_proj.weight=.mlp.experts.w13_weight|.mlp.experts.gate_up_proj k_conv=.attn.k_sconv k_norm=.attn.k_norm
    k_proj=.attn.wk_dv|.self_attn.k_proj lm_head=unembed|lm_head mlp_conv=.mlp_sconv mlp_norm=.mlp_norm
    o_proj=.attn.wo_ud|.self_attn.o_proj positions.weight=.attn.rel_logits_proj.proj q_norm=.attn.q_norm
    q_proj=.attn.wq_du|.self_attn.q_proj r_proj=.attn.wr_du|.self_attn.r_proj route.scale=.mlp.gate.global_scale
    shared_down_proj.weight=.mlp.shared_experts.shared_w2_weight|.mlp.shared_experts.down_proj
    shared_gate_proj.weight=.mlp.shared_experts.shared_w13_weight|.mlp.shared_experts.gate_proj
    shared_up_proj.weight=.mlp.shared_experts.shared_w13_weight|.mlp.shared_experts.up_proj v_conv=.attn.v_sconv
    v_proj=.attn.wv_dv|.self_attn.v_proj
inkling_text:
    attn_conv=.attn_sconv.conv1d down_proj_scale.weight=.mlp.global_scale embed_norm=embed_tokens.embed_norm
    k_conv=.self_attn.k_sconv.conv1d mlp_conv=.mlp_sconv.conv1d positions.weight=.self_attn.rel_logits_proj.proj
    r_proj=.self_attn.r_proj route.scale=.mlp.gate.global_scale
    shared_down_proj.weight=.mlp.shared_experts.down_proj shared_gate_proj.weight=.mlp.shared_experts.gate_proj
    shared_up_proj.weight=.mlp.shared_experts.up_proj v_conv=.self_attn.v_sconv.conv1d
internlm2:
    attn_norm=.attention_norm down_proj=.feed_forward.w2 embed_tokens=tok_embeddings gate_proj=.feed_forward.w1
    lm_head=output mlp_norm=.ffn_norm o_proj=.attention.wo qkv_proj=.attention.wqkv up_proj=.feed_forward.w3
jamba:
    A_log=.mamba.A_log D=.mamba.D bc_norm=.mamba.b_layernorm|.mamba.c_layernorm conv=.mamba.conv1d
    down_proj=.feed_forward.down_proj dt_proj=.mamba.dt_proj expert_down_proj=.feed_forward.experts.*.down_proj
    expert_down_proj.weight=.feed_forward.experts.down_proj expert_gate_proj=.feed_forward.experts.*.gate_proj
    expert_gate_proj.weight=.feed_forward.experts.gate_up_proj expert_up_proj=.feed_forward.experts.*.up_proj
    expert_up_proj.weight=.feed_forward.experts.gate_up_proj final_norm=final_layernorm
    gate_proj=.feed_forward.gate_proj in_proj=.mamba.in_proj mlp_norm=.pre_ff_layernorm out_proj=.mamba.out_proj
    router=.feed_forward.router step_in_norm=.mamba.dt_layernorm up_proj=.feed_forward.up_proj x_proj=.mamba.x_proj
jetmoe:
    attn_combine=.self_attention.experts attn_router=.self_attention.experts.router.layer combine=.mlp
    expert_down_proj=.mlp.output_linear expert_gate_proj=.mlp.input_linear
    expert_o_proj=.self_attention.experts.output_linear expert_q_proj=.self_attention.experts.input_linear
    expert_up_proj=.mlp.input_linear kv_proj=.self_attention.kv_proj router=.mlp.router.layer
jina_embeddings_v3:
    layers=encoder.layers.{}|layers.{} attn_norm=.norm1 down_proj=.mlp.fc2 embed_norm=emb_ln
    embed_tokens=embeddings.word_embeddings k_proj=.mixer.Wqkv|.self_attn.k_proj mlp_norm=.norm2
    o_proj=.mixer.out_proj|.self_attn.o_proj pooler_dense=pooler.dense q_proj=.mixer.Wqkv|.self_attn.q_proj
    up_proj=.mlp.fc1 v_proj=.mixer.Wqkv|.self_attn.v_proj
kimi_k25:
    layers=layers.{}|blocks.{}
kimi_k3 kimi_linear minimax_m2 mixtral:
    A_log=.self_attn.A_log b_proj=.self_attn.b_proj conv=.self_attn.q_conv1d|.self_attn.k_conv1d|.self_attn.v_conv1d
    down_proj=.block_sparse_moe.down_proj|.mlp.down_proj dt_bias=.self_attn.dt_bias
    expert_down_proj=.block_sparse_moe.experts.*.w2 expert_gate_proj=.block_sparse_moe.experts.*.w1
    expert_up_proj=.block_sparse_moe.experts.*.w3 f_a_proj=.self_attn.f_a_proj|.self_attn.forget_gate.f_a_proj
    f_b_proj=.self_attn.f_b_proj|.self_attn.forget_gate.f_b_proj g_a_proj=.self_attn.g_a_proj
    g_b_proj=.self_attn.g_b_proj gate_proj=.block_sparse_moe.gate_proj|.mlp.gate_proj o_norm=.self_attn.o_norm
    router=.block_sparse_moe.gate|.mlp.gate
    shared_down_proj=.block_sparse_moe.shared_experts.down_proj|.mlp.shared_experts.down_proj
    shared_gate_proj=.block_sparse_moe.shared_experts.gate_proj|.mlp.shared_experts.gate_proj
    shared_up_proj=.block_sparse_moe.shared_experts.up_proj|.mlp.shared_experts.up_proj
    up_proj=.block_sparse_moe.up_proj|.mlp.up_proj
kolibri1:
    attn_post_norm=.post_attn_norm mlp_post_norm=.post_ffn_norm
kosmos-2 kosmos-2.5:
    attn_inner_norm=.self_attn.inner_attn_ln attn_norm=.self_attn_layer_norm down_proj=.ffn.fc2
    final_norm=layer_norm mlp_inner_norm=.ffn.ffn_layernorm mlp_norm=.final_layer_norm o_proj=.self_attn.out_proj
    segments=segment_emb up_proj=.ffn.fc1
laguna:
    router.bias=.mlp.experts.e_score_correction_bias|.mlp.gate.e_score_correction_bias
    shared_down_proj=.mlp.shared_expert.down_proj|.mlp.shared_experts.down_proj
    shared_gate_proj=.mlp.shared_expert.gate_proj|.mlp.shared_experts.gate_proj
    shared_up_proj=.mlp.shared_expert.up_proj|.mlp.shared_experts.up_proj
lara_mini:
    a_proj=.linear_attn.in_proj|.linear_attn.in_proj_a b_proj=.linear_attn.in_proj|.linear_attn.in_proj_b
    gated_norm=.linear_attn.out_norm qkv_proj=.linear_attn.in_proj|.linear_attn.in_proj_qkv
    shared_down_proj=.mlp.shared_expert.down_proj shared_gate_proj=.mlp.shared_expert.gate_proj
    shared_up_proj=.mlp.shared_expert.up_proj z_proj=.linear_attn.in_proj|.linear_attn.in_proj_z
lfm2 lfm2_vl:
    attn_norm=.operator_norm conv=.conv.conv down_proj=.feed_forward.w2 final_norm=embedding_norm
    gate_proj=.feed_forward.w1 in_proj=.conv.in_proj k_norm=.self_attn.k_layernorm mlp_norm=.ffn_norm
    o_proj=.self_attn.out_proj out_proj=.conv.out_proj q_norm=.self_attn.q_layernorm up_proj=.feed_forward.w3
lfm2_moe:
    attn_norm=.operator_norm conv=.conv.conv down_proj=.feed_forward.w2 expert_down_proj=.feed_forward.experts.*.w2
    expert_down_proj.weight=.feed_forward.experts.down_proj expert_gate_proj=.feed_forward.experts.*.w1
    expert_gate_proj.weight=.feed_forward.experts.gate_up_proj expert_up_proj=.feed_forward.experts.*.w3
    expert_up_proj.weight=.feed_forward.experts.gate_up_proj final_norm=embedding_norm gate_proj=.feed_forward.w1
    in_proj=.conv.in_proj k_norm=.self_attn.k_layernorm mlp_norm=.ffn_norm o_proj=.self_attn.out_proj
    out_proj=.conv.out_proj q_norm=.self_attn.q_layernorm router=.feed_forward.gate up_proj=.feed_forward.w3
lfm3 lfm3_vl:
    attn_norm=.operator_norm attn_post_norm=.post_operator_norm conv=.conv.conv down_proj=.feed_forward.w2
    final_norm=embedding_norm g_proj=.self_attn.gate_proj|.self_attn.g_proj gate_proj=.feed_forward.w1
    in_proj=.conv.in_proj mlp_norm=.ffn_norm mlp_post_norm=.post_ffn_norm out_proj=.conv.out_proj
    up_proj=.feed_forward.w3
llada llada_moe lladamoe:
    layers=blocks.{}|layers.{} attn_norm=.attn_norm|.input_layernorm down_proj=.ff_out|.mlp.down_proj
    embed_tokens=wte|embed_tokens final_norm=ln_f|norm gate_proj=.ff_proj|.mlp.gate_proj
    k_proj=.k_proj|.self_attn.k_proj lm_head=ff_out|lm_head mlp_norm=.ff_norm|.post_attention_layernorm
    o_proj=.attn_out|.self_attn.o_proj q_proj=.q_proj|.self_attn.q_proj up_proj=.up_proj|.mlp.up_proj
    v_proj=.v_proj|.self_attn.v_proj
llama4 llama4_text:
    down_proj=.feed_forward.down_proj expert_down_proj=.feed_forward.experts.*.down_proj
    expert_down_proj.weight=.feed_forward.experts.down_proj expert_gate_proj=.feed_forward.experts.*.gate_proj
    expert_gate_proj.weight=.feed_forward.experts.gate_up_proj expert_up_proj=.feed_forward.experts.*.up_proj
    expert_up_proj.weight=.feed_forward.experts.gate_up_proj gate_proj=.feed_forward.gate_proj
    router=.feed_forward.router shared_down_proj=.feed_forward.shared_expert.down_proj
    shared_gate_proj=.feed_forward.shared_expert.gate_proj shared_up_proj=.feed_forward.shared_expert.up_proj
    up_proj=.feed_forward.up_proj
longcat_flash:
    attn_norm=.input_layernorm.0 down_proj=.mlps.0.down_proj gate_proj=.mlps.0.gate_proj
    kv_a_norm=.self_attn.0.kv_a_layernorm kv_a_proj=.self_attn.0.kv_a_proj_with_mqa kv_b_proj=.self_attn.0.kv_b_proj
    mlp_norm=.post_attention_layernorm.0 o_proj=.self_attn.0.o_proj q_a_norm=.self_attn.0.q_a_layernorm
    q_a_proj=.self_attn.0.q_a_proj q_b_proj=.self_attn.0.q_b_proj router=.mlp.router.classifier
    second_attn_norm=.input_layernorm.1 second_down_proj=.mlps.1.down_proj second_gate_proj=.mlps.1.gate_proj
    second_kv_a_norm=.self_attn.1.kv_a_layernorm second_kv_a_proj=.self_attn.1.kv_a_proj_with_mqa
    second_kv_b_proj=.self_attn.1.kv_b_proj second_mlp_norm=.post_attention_layernorm.1
    second_o_proj=.self_attn.1.o_proj second_q_a_norm=.self_attn.1.q_a_layernorm
    second_q_a_proj=.self_attn.1.q_a_proj second_q_b_proj=.self_attn.1.q_b_proj second_up_proj=.mlps.1.up_proj
    up_proj=.mlps.0.up_proj
mamba2 nemotron_h nemotron_h_omni:
    A_log=.mixer.A_log D=.mixer.D attn_norm=.norm conv=.mixer.conv1d down_proj=.mixer.down_proj
    dt_bias=.mixer.dt_bias embed_tokens=embeddings expert_down_proj=.mixer.experts.*.down_proj
    expert_down_proj.weight=.mixer.experts.down_proj expert_up_proj=.mixer.experts.*.up_proj
    expert_up_proj.weight=.mixer.experts.up_proj fc1_latent_proj=.mixer.fc1_latent_proj
    fc2_latent_proj=.mixer.fc2_latent_proj final_norm=norm_f gated_norm=.mixer.norm in_proj=.mixer.in_proj
    k_proj=.mixer.k_proj mlp_norm=.norm o_proj=.mixer.o_proj out_proj=.mixer.out_proj q_proj=.mixer.q_proj
    router=.mixer.gate shared_down_proj=.mixer.shared_experts.down_proj shared_up_proj=.mixer.shared_experts.up_proj
    up_proj=.mixer.up_proj v_proj=.mixer.v_proj
mimo_v2_flash:
    sinks=.self_attn.attention_sink_bias
minimax minimax_m1 minimax_text_01 phi3 phi4_multimodal:
    embed_norm=norm expert_down_proj=.block_sparse_moe.experts.*.w2 expert_gate_proj=.block_sparse_moe.experts.*.w1
    expert_up_proj=.block_sparse_moe.experts.*.w3 out_proj=.self_attn.out_proj output_gate=.self_attn.output_gate
    qkv_proj=.self_attn.qkv_proj router=.block_sparse_moe.gate|.mlp.gate scan_norm=.self_attn.norm
minimax_m3 minimax_m3_vl minimax_m3_vl_text:
    expert_down_proj=.block_sparse_moe.experts.*.w2|.mlp.experts.*.down_proj
    expert_gate_proj=.block_sparse_moe.experts.*.w1|.mlp.experts.*.gate_proj
    expert_up_proj=.block_sparse_moe.experts.*.w3|.mlp.experts.*.up_proj gate_proj=.mlp.gate_proj|.mlp.gate_up_proj
    index_k_norm=.self_attn.index_k_norm|.self_attn.indexer.k_norm
    index_k_proj=.self_attn.index_k_proj|.self_attn.indexer.k_proj
    index_q_norm=.self_attn.index_q_norm|.self_attn.indexer.q_norm
    index_q_proj=.self_attn.index_q_proj|.self_attn.indexer.q_proj router=.block_sparse_moe.gate|.mlp.gate
    shared_down_proj=.block_sparse_moe.shared_experts.down_proj|.mlp.shared_experts.down_proj
    shared_gate_proj=.block_sparse_moe.shared_experts.gate_proj|.mlp.shared_experts.gate_up_proj
    shared_up_proj=.block_sparse_moe.shared_experts.up_proj|.mlp.shared_experts.gate_up_proj
    up_proj=.mlp.up_proj|.mlp.gate_up_proj
mistral_large4 mistral_large4_text:
    attn_norm=.attention_norm down_proj=.feed_forward.w2|.feed_forward.down_proj|.mlp.down_proj
    embed_tokens=tok_embeddings|embed_tokens expert_down_proj=.experts.*.w2 expert_gate_proj=.experts.*.w1
    expert_up_proj=.experts.*.w3 gate_proj=.feed_forward.w1|.feed_forward.gate_proj|.mlp.gate_proj
    index_k_norm=.attention.indexer.k_norm index_k_proj=.attention.indexer.wk|.self_attn.indexer.wk
    index_q_norm=.attention.indexer.q_input_norm index_q_proj=.attention.indexer.wq_b|.self_attn.indexer.wq_b
    index_q_scale.bias=.attention.indexer.ssmax_scaling.b index_q_scale.scale=.attention.indexer.ssmax_scaling.s
    index_weights=.attention.indexer.weights_proj|.self_attn.indexer.weights_proj kv_a_norm=.attention.kv_a_norm
    kv_a_proj=.attention.wkv_a_with_mqa|.self_attn.kv_a_proj_with_mqa
    kv_b_proj=.attention.wkv_b|.self_attn.kv_b_proj lm_head=output|lm_head mlp_norm=.ffn_norm
    o_proj=.attention.wo|.attention.o_proj|.self_attn.o_proj q_proj=.attention.wq|.self_attn.q_proj
    q_scale.bias=.attention.ssmax_scaling.b q_scale.scale=.attention.ssmax_scaling.s
    rotary.alpha=lerope.alpha|rotary_emb.alpha router=.gate|.mlp.gate
    shared_down_proj=.shared_experts.w2|.shared_experts.down_proj|.mlp.shared_experts.down_proj
    shared_gate_proj=.shared_experts.w1|.shared_experts.gate_proj|.mlp.shared_experts.gate_proj
    shared_up_proj=.shared_experts.w3|.shared_experts.up_proj|.mlp.shared_experts.up_proj
    up_proj=.feed_forward.w3|.feed_forward.up_proj|.mlp.up_proj
mllama:
    cross_k_norm=.cross_attn.k_norm cross_k_proj=.cross_attn.k_proj cross_o_proj=.cross_attn.o_proj
    cross_o_proj_scale.weight=.cross_attn_attn_gate cross_q_norm=.cross_attn.q_norm cross_q_proj=.cross_attn.q_proj
    cross_v_proj=.cross_attn.v_proj down_proj_scale.weight=.cross_attn_mlp_gate
modernbert:
    attn_norm=.attn_norm down_proj=.mlp.Wo embed_norm=embeddings.norm embed_tokens=embeddings.tok_embeddings
    final_norm=final_norm gate_up_proj=.mlp.Wi head_dense=head.dense head_norm=head.norm lm_head=decoder
    mlp_norm=.mlp_norm o_proj=.attn.Wo qkv_proj=.attn.Wqkv
modernbert-decoder:
    attn_norm=.attn_norm down_proj=.mlp.Wo embed_norm=embeddings.norm embed_tokens=embeddings.tok_embeddings
    final_norm=final_norm gate_up_proj=.mlp.Wi head_dense=lm_head.dense head_norm=lm_head.norm k_proj=.attn.k_proj
    lm_head=decoder mlp_norm=.mlp_norm o_proj=.attn.Wo q_proj=.attn.q_proj v_proj=.attn.v_proj
molmo:
    layers=blocks.{} additional_tokens.weight=wte.new_embedding attn_norm=.attn_norm down_proj=.ff_out
    embed_tokens.weight=wte.embedding final_norm=ln_f gate_up_proj=.ff_proj lm_head=ff_out mlp_norm=.ff_norm
    o_proj=.attn_out qkv_proj=.att_proj
molmo2:
    layers=blocks.{}|layers.{} additional_tokens.weight=wte.new_embedding attn_norm=.attn_norm down_proj=.mlp.ff_out
    embed_tokens.weight=wte.embedding final_norm=ln_f gate_proj=.mlp.ff_proj k_proj=.self_attn.att_proj
    mlp_norm=.ff_norm o_proj=.self_attn.attn_out q_proj=.self_attn.att_proj up_proj=.mlp.ff_proj
    v_proj=.self_attn.att_proj
molmo2_text:
    additional_tokens.weight=wte.new_embedding attn_norm=.attn_norm down_proj=.mlp.ff_out
    embed_tokens.weight=wte.embedding gate_proj=.mlp.ff_proj k_proj=.self_attn.att_proj mlp_norm=.ff_norm
    o_proj=.self_attn.attn_out q_proj=.self_attn.att_proj up_proj=.mlp.ff_proj v_proj=.self_attn.att_proj
mpnet:
    layers=encoder.layer.{} attn_norm=.attention.LayerNorm down_proj=.output.dense
    embed_tokens=embeddings.word_embeddings k_proj=.attention.attn.k mlp_norm=.output.LayerNorm
    o_proj=.attention.attn.o pooler_dense=pooler.dense q_proj=.attention.attn.q
    relative_attention_bias=encoder.relative_attention_bias up_proj=.intermediate.dense v_proj=.attention.attn.v
mpt:
    layers=blocks.{} attn_norm=.norm_1 down_proj=.ffn.down_proj embed_tokens=wte final_norm=norm_f mlp_norm=.norm_2
    o_proj=.attn.out_proj qkv_proj=.attn.Wqkv up_proj=.ffn.up_proj
mt5 t5 umt5:
    layers=@.block.{} attn_norm=.layer.0.layer_norm cross_k_proj=.layer.1.EncDecAttention.k
    cross_norm=.layer.1.layer_norm cross_o_proj=.layer.1.EncDecAttention.o cross_q_proj=.layer.1.EncDecAttention.q
    cross_v_proj=.layer.1.EncDecAttention.v down_proj=.layer.{last}.DenseReluDense.wo embed_tokens=shared
    final_norm=@.final_layer_norm gate_proj=.layer.{last}.DenseReluDense.wi_0 k_proj=.layer.0.SelfAttention.k
    mlp_norm=.layer.{last}.layer_norm o_proj=.layer.0.SelfAttention.o q_proj=.layer.0.SelfAttention.q
    relative_attention_bias=.layer.0.SelfAttention.relative_attention_bias
    relative_attention_bias.weight=@.block.0.layer.0.SelfAttention.relative_attention_bias.weight
    up_proj=.layer.{last}.DenseReluDense.wi_1|.layer.{last}.DenseReluDense.wi v_proj=.layer.0.SelfAttention.v
muse_glimmer muse_glimmer_text muse_spark muse_spark_text:
    attn_add.gate=.post_attention_residual_gate.gate expert_norm=.mlp.experts.post_expert_norm
    fc1_latent_proj=.mlp.pre_expert_proj fc2_latent_proj=.mlp.post_expert_proj g_proj=.self_attn.gate_proj
    latent_norm=.mlp.pre_expert_norm mlp_add.gate=.post_feedforward_residual_gate.gate
    mlp_norm=.pre_feedforward_layernorm
nanochat:
    down_proj=.mlp.fc2 up_proj=.mlp.fc1
nllb-moe:
    layers=@.layers.{} attn_norm=.self_attn_layer_norm cross_k_proj=.cross_attention.k_proj
    cross_norm=.cross_attention_layer_norm cross_o_proj=.cross_attention.out_proj
    cross_q_proj=.cross_attention.q_proj cross_v_proj=.cross_attention.v_proj down_proj=.ffn.fc2 embed_tokens=shared
    expert_down_proj=.ffn.experts.*.fc2 expert_up_proj=.ffn.experts.*.fc1 final_norm=@.layer_norm
    mlp_norm=.ff_layer_norm o_proj=.self_attn.out_proj router=.ffn.router.classifier up_proj=.ffn.fc1
nomic_bert:
    layers=encoder.layers.{}|layers.{} attn_norm=.norm1 down_proj=.mlp.fc2|.mlp.down_proj embed_norm=emb_ln
    embed_tokens=embeddings.word_embeddings gate_proj=.mlp.fc12|.mlp.gate_proj k_proj=.attn.Wqkv|.self_attn.k_proj
    mlp_norm=.norm2 o_proj=.attn.out_proj|.self_attn.o_proj q_proj=.attn.Wqkv|.self_attn.q_proj
    up_proj=.mlp.fc11|.mlp.up_proj v_proj=.attn.Wqkv|.self_attn.v_proj
olmo_hybrid:
    a_proj=.linear_attn.a_proj attn_norm=.attention_layer_norm|.post_attention_layernorm b_proj=.linear_attn.b_proj
    conv=.linear_attn.q_conv1d|.linear_attn.k_conv1d|.linear_attn.v_conv1d gated_norm=.linear_attn.o_norm
    mlp_norm=.feedforward_layer_norm|.post_feedforward_layernorm out_proj=.linear_attn.o_proj
    qkv_proj=.linear_attn.k_proj|.linear_attn.q_proj|.linear_attn.v_proj z_proj=.linear_attn.g_proj
openai-gpt:
    layers=h.{} attn_norm=.ln_1 down_proj=.mlp.c_proj embed_positions=positions_embed embed_tokens=tokens_embed
    mlp_norm=.ln_2 o_proj=.attn.c_proj qkv_proj=.attn.c_attn up_proj=.mlp.c_fc
openelm:
    attn_norm=.attn_norm down_proj=.ffn.proj_2 embed_tokens=token_embeddings gate_up_proj=.ffn.proj_1
    k_norm=.attn.k_norm mlp_norm=.ffn_norm o_proj=.attn.out_proj q_norm=.attn.q_norm qkv_proj=.attn.qkv_proj
opt:
    layers=decoder.layers.{} attn_norm=.self_attn_layer_norm down_proj=.fc2 embed_positions=decoder.embed_positions
    embed_tokens=decoder.embed_tokens final_norm=decoder.final_layer_norm mlp_norm=.final_layer_norm
    o_proj=.self_attn.out_proj project_in=decoder.project_in project_out=decoder.project_out up_proj=.fc1
phi:
    down_proj=.mlp.fc2 final_norm=final_layernorm o_proj=.self_attn.dense up_proj=.mlp.fc1
phi3small:
    final_norm=final_layernorm gate_up_proj=.mlp.up_proj o_proj=.self_attn.dense qkv_proj=.self_attn.query_key_value
phi4flash:
    A_log=.attn.A_log D=.attn.D conv=.attn.conv1d down_proj=.mlp.fc2 dt_proj=.attn.dt_proj
    final_norm=final_layernorm gate_up_proj=.mlp.fc1 in_proj=.attn.in_proj
    lambda_k1=.attn.inner_cross_attn.lambda_k1 lambda_k2=.attn.inner_cross_attn.lambda_k2
    lambda_q1=.attn.inner_cross_attn.lambda_q1 lambda_q2=.attn.inner_cross_attn.lambda_q2 o_proj=.attn.out_proj
    out_proj=.attn.out_proj q_proj=.attn.Wqkv qkv_proj=.attn.Wqkv subln=.attn.inner_cross_attn.subln
    x_proj=.attn.x_proj
phi4mm:
    down_proj=.mlp.down_proj.base_layer|.mlp.down_proj gate_up_proj=.mlp.gate_up_proj.base_layer|.mlp.gate_up_proj
    o_proj=.self_attn.o_proj.base_layer|.self_attn.o_proj
    qkv_proj=.self_attn.qkv_proj.base_layer|.self_attn.qkv_proj
phimoe:
    expert_down_proj=.block_sparse_moe.experts.*.w2 expert_gate_proj=.block_sparse_moe.experts.*.w1
    expert_up_proj=.block_sparse_moe.experts.*.w3 router=.block_sparse_moe.gate|.mlp.router
pi0 pi05 pi0_fast:
    wrapper=paligemma_with_expert.paligemma expert_action_in_proj=action_in_proj
    expert_action_out_proj=action_out_proj expert_action_time_mlp_in=action_time_mlp_in
    expert_action_time_mlp_out=action_time_mlp_out
    expert_attn_norm=paligemma_with_expert.gemma_expert.model.layers.{}.input_layernorm
    expert_down_proj=paligemma_with_expert.gemma_expert.model.layers.{}.mlp.down_proj
    expert_final_norm=paligemma_with_expert.gemma_expert.model.norm
    expert_gate_proj=paligemma_with_expert.gemma_expert.model.layers.{}.mlp.gate_proj
    expert_k_proj=paligemma_with_expert.gemma_expert.model.layers.{}.self_attn.k_proj
    expert_mlp_norm=paligemma_with_expert.gemma_expert.model.layers.{}.post_attention_layernorm
    expert_o_proj=paligemma_with_expert.gemma_expert.model.layers.{}.self_attn.o_proj
    expert_q_proj=paligemma_with_expert.gemma_expert.model.layers.{}.self_attn.q_proj expert_state_proj=state_proj
    expert_up_proj=paligemma_with_expert.gemma_expert.model.layers.{}.mlp.up_proj
    expert_v_proj=paligemma_with_expert.gemma_expert.model.layers.{}.self_attn.v_proj
qianfan_ocr:
    layers=encoder.layers.{}|layers.{}
qwen:
    layers=h.{} attn_norm=.ln_1 down_proj=.mlp.c_proj embed_tokens=wte final_norm=ln_f gate_proj=.mlp.w2
    mlp_norm=.ln_2 o_proj=.attn.c_proj qkv_proj=.attn.c_attn up_proj=.mlp.w1
qwen3_5_moe qwen3_5_moe_text:
    a_proj=.linear_attn.in_proj_a b_proj=.linear_attn.in_proj_b shared_down_proj=.mlp.shared_expert.down_proj
    shared_gate_proj=.mlp.shared_expert.gate_proj shared_up_proj=.mlp.shared_expert.up_proj
qwen3_next:
    ba_proj=.linear_attn.in_proj_ba qkvz_proj=.linear_attn.in_proj_qkvz
    shared_down_proj=.mlp.shared_expert.down_proj shared_gate_proj=.mlp.shared_expert.gate_proj
    shared_up_proj=.mlp.shared_expert.up_proj
qwen4_exp qwen4_exp_text:
    attn_hc_back=.attn_hyper_connection.block_inject_weight
    attn_hc_down=.attn_hyper_connection.input_mix_weight_down attn_hc_up=.attn_hyper_connection.input_mix_weight_up
    attn_norm=.attn_hyper_connection.hc_norm final_norm=hyper_connection_mixer.hc_norm
    hc_head_down=hyper_connection_mixer.input_mix_weight_down hc_head_up=hyper_connection_mixer.input_mix_weight_up
    index_k_norm=.self_attn.indexer.k_layernorm index_q_norm=.self_attn.indexer.q_layernorm
    index_qk_proj=.self_attn.indexer.index_qk_proj mlp_hc_back=.mlp_hyper_connection.block_inject_weight
    mlp_hc_down=.mlp_hyper_connection.input_mix_weight_down mlp_hc_up=.mlp_hyper_connection.input_mix_weight_up
    mlp_norm=.mlp_hyper_connection.hc_norm
    ngrams=.ple.ple_embedding.ngram_embedding|.ple.ple_embedding.ngram_embedding.shard_* ngrams_conv=.ple.conv1d
    ngrams_k_norm=.ple.norm_key ngrams_k_proj=.ple.key_proj ngrams_norm=.ple.norm_conv ngrams_q_norm=.ple.norm_query
    ngrams_v_proj=.ple.value_proj shared_down_proj=.mlp.shared_expert.down_proj
    shared_gate_proj=.mlp.shared_expert.gate_proj shared_up_proj=.mlp.shared_expert.up_proj
recurrent_gemma:
    attn_norm=.temporal_pre_norm conv=.temporal_block.conv_1d down_proj=.mlp_block.down_proj final_norm=final_norm
    gate_proj=.mlp_block.gate_proj input_gate.bias=.temporal_block.rg_lru.input_gate_bias
    input_gate.weight=.temporal_block.rg_lru.input_gate_weight k_proj=.temporal_block.k_proj
    linear_out=.temporal_block.linear_out linear_x=.temporal_block.linear_x linear_y=.temporal_block.linear_y
    mlp_norm=.channel_pre_norm o_proj=.temporal_block.o_proj q_proj=.temporal_block.q_proj
    recurrent_gate.bias=.temporal_block.rg_lru.recurrent_gate_bias
    recurrent_gate.weight=.temporal_block.rg_lru.recurrent_gate_weight
    recurrent_param=.temporal_block.rg_lru.recurrent_param up_proj=.mlp_block.up_proj v_proj=.temporal_block.v_proj
retnet:
    attn_norm=.attn_norm embed_tokens=embeddings g_proj=.attn.g_proj group_norm=.attn.g_norm k_proj=.attn.k_proj
    mlp_norm=.mlp_norm out_proj=.attn.o_proj q_proj=.attn.q_proj v_proj=.attn.v_proj
rwkv:
    layers=blocks.{} attn_norm=.ln1 down_proj=.feed_forward.value embed_norm=blocks.0.pre_ln embed_tokens=embeddings
    final_norm=ln_out k_proj=.attention.key lm_head=head mix_k=.attention.time_mix_key
    mix_r=.attention.time_mix_receptance mix_v=.attention.time_mix_value mlp_mix_k=.feed_forward.time_mix_key
    mlp_mix_r=.feed_forward.time_mix_receptance mlp_norm=.ln2 mlp_r_proj=.feed_forward.receptance
    o_proj=.attention.output r_proj=.attention.receptance time_decay=.attention.time_decay
    time_first=.attention.time_first up_proj=.feed_forward.key v_proj=.attention.value
rwkv5 rwkv6:
    layers=blocks.{} attn_norm=.ln1 decay_w1.weight=.attention.time_decay_w1
    decay_w2.weight=.attention.time_decay_w2 down_proj=.feed_forward.value embed_norm=blocks.0.pre_ln
    embed_tokens=embeddings|emb final_norm=ln_out g_proj=.attention.gate k_proj=.attention.key lm_head=head
    ln_x=.attention.ln_x mix_g=.attention.time_mix_gate mix_k=.attention.time_mix_key
    mix_r=.attention.time_mix_receptance mix_v=.attention.time_mix_value mix_w=.attention.time_maa_w
    mix_w1.weight=.attention.time_maa_w1 mix_w2.weight=.attention.time_maa_w2 mix_x=.attention.time_maa_x
    mlp_mix_k=.feed_forward.time_mix_key mlp_mix_r=.feed_forward.time_mix_receptance mlp_norm=.ln2
    mlp_r_proj=.feed_forward.receptance o_proj=.attention.output r_proj=.attention.receptance
    time_decay=.attention.time_decay time_faaaa=.attention.time_faaaa up_proj=.feed_forward.key
    v_proj=.attention.value
rwkv7:
    a_lora_a=.attn.a_lora.lora.0 a_lora_b=.attn.a_lora.lora.2 attn_norm=.attn_norm down_proj=.ffn.value
    embed_norm=layers.0.pre_norm embed_tokens=embeddings g_lora_a=.attn.g_lora.lora.0 g_lora_b=.attn.g_lora.lora.2
    g_norm=.attn.g_norm k_a=.attn.k_a k_k=.attn.k_k k_proj=.attn.k_proj mix_a=.attn.x_a mix_g=.attn.x_g
    mix_k=.attn.x_k mix_r=.attn.x_r mix_v=.attn.x_v mix_w=.attn.x_w mlp_mix_k=.ffn.x_k mlp_norm=.ffn_norm
    o_proj=.attn.o_proj r_k=.attn.r_k r_proj=.attn.r_proj up_proj=.ffn.key v_lora_a=.attn.v_lora.lora.0
    v_lora_b=.attn.v_lora.lora.2 v_proj=.attn.v_proj w_lora_a=.attn.w_lora.lora.0 w_lora_b=.attn.w_lora.lora.2
sarvam_moe:
    embed_tokens=word_embeddings|embed_tokens k_norm=.attention.key_layernorm
    k_proj=.attention.query_key_value|.self_attn.k_proj o_proj=.attention.dense|.self_attn.o_proj
    q_norm=.attention.query_layernorm q_proj=.attention.query_key_value|.self_attn.q_proj
    v_proj=.attention.query_key_value|.self_attn.v_proj
siglip siglip_text_model:
    layers=encoder.layers.{} attn_norm=.layer_norm1 down_proj=.mlp.fc2 embed_positions=embeddings.position_embedding
    embed_tokens=embeddings.token_embedding final_norm=final_layer_norm logit_bias=logit_bias
    logit_scale=logit_scale mlp_norm=.layer_norm2 o_proj=.self_attn.out_proj projection=head up_proj=.mlp.fc1
siglip_vision_model:
    layers=encoder.layers.{} wrapper=vision_model attn_norm=.layer_norm1 down_proj=.mlp.fc2|head.mlp.fc2
    kv_proj.bias=head.attention.in_proj_bias kv_proj.weight=head.attention.in_proj_weight
    mlp_norm=.layer_norm2|head.layernorm o_proj=.self_attn.out_proj|head.attention.out_proj
    patch_embed=embeddings.patch_embedding positions=embeddings.position_embedding post_norm=post_layernorm
    probe.weight=head.probe q_proj.bias=.self_attn.q_proj.bias|head.attention.in_proj_bias
    q_proj.weight=.self_attn.q_proj.weight|head.attention.in_proj_weight up_proj=.mlp.fc1|head.mlp.fc1
smolvla:
    wrapper=vlm_with_expert.vlm expert_action_in_proj=action_in_proj expert_action_out_proj=action_out_proj
    expert_action_time_mlp_in=action_time_mlp_in expert_action_time_mlp_out=action_time_mlp_out
    expert_attn_norm=vlm_with_expert.lm_expert.layers.{}.input_layernorm
    expert_cross_k_proj=vlm_with_expert.lm_expert.layers.{}.self_attn.k_proj
    expert_cross_v_proj=vlm_with_expert.lm_expert.layers.{}.self_attn.v_proj
    expert_down_proj=vlm_with_expert.lm_expert.layers.{}.mlp.down_proj
    expert_final_norm=vlm_with_expert.lm_expert.norm
    expert_gate_proj=vlm_with_expert.lm_expert.layers.{}.mlp.gate_proj
    expert_k_proj=vlm_with_expert.lm_expert.layers.{}.self_attn.k_proj
    expert_mlp_norm=vlm_with_expert.lm_expert.layers.{}.post_attention_layernorm
    expert_o_proj=vlm_with_expert.lm_expert.layers.{}.self_attn.o_proj
    expert_q_proj=vlm_with_expert.lm_expert.layers.{}.self_attn.q_proj
    expert_up_proj=vlm_with_expert.lm_expert.layers.{}.mlp.up_proj
    expert_v_proj=vlm_with_expert.lm_expert.layers.{}.self_attn.v_proj
stablelm stablelm_epoch:
    k_norm=.self_attn.k_layernorm.norms.* q_norm=.self_attn.q_layernorm.norms.*
starcoder2:
    down_proj=.mlp.c_proj up_proj=.mlp.c_fc
step3p5 step3p7:
    expert_down_proj=.moe.down_proj|.mlp.experts.*.down_proj
    expert_gate_proj=.moe.gate_proj|.mlp.experts.*.gate_proj expert_up_proj=.moe.up_proj|.mlp.experts.*.up_proj
    router=.moe.gate|.mlp.gate shared_down_proj=.share_expert.down_proj|.mlp.shared_experts.down_proj
    shared_gate_proj=.share_expert.gate_proj|.mlp.shared_experts.gate_proj
    shared_up_proj=.share_expert.up_proj|.mlp.shared_experts.up_proj
st_moe:
    layers=@.block.{} attn_norm=.layer.0.layer_norm cross_k_proj=.layer.1.EncDecAttention.k
    cross_norm=.layer.1.layer_norm cross_o_proj=.layer.1.EncDecAttention.o cross_q_proj=.layer.1.EncDecAttention.q
    cross_v_proj=.layer.1.EncDecAttention.v down_proj=.layer.{last}.mlp.wo embed_tokens=shared
    expert_down_proj=.layer.{last}.mlp.experts.*.wo expert_gate_proj=.layer.{last}.mlp.experts.*.wi_0
    expert_up_proj=.layer.{last}.mlp.experts.*.wi_1 final_norm=@.final_layer_norm gate_proj=.layer.{last}.mlp.wi_0
    k_proj=.layer.0.SelfAttention.k mlp_norm=.layer.{last}.layer_norm o_proj=.layer.0.SelfAttention.o
    q_proj=.layer.0.SelfAttention.q router=.layer.{last}.mlp.router.classifier
    shared_down_proj=.layer.{last}.extra_mlp.wo shared_gate_proj=.layer.{last}.extra_mlp.wi_0
    shared_up_proj=.layer.{last}.extra_mlp.wi_1 up_proj=.layer.{last}.mlp.wi_1 v_proj=.layer.0.SelfAttention.v
stripedhyena:
    layers=blocks.{} D=.filter.D attn_norm=.pre_norm down_proj=.mlp.l3 embed_tokens=embedding_layer
    gate_proj=.mlp.l1 lm_head=unembed mlp_norm=.post_norm o_proj=.inner_mha_cls.out_proj
    out_filter_dense=.out_filter_dense poles=.filter.poles projections=.projections qkv_proj=.inner_mha_cls.Wqkv
    residues=.filter.residues short_filter.bias=.filter.short_filter_bias
    short_filter.weight=.filter.short_filter_weight up_proj=.mlp.l2
switch_transformers:
    layers=@.block.{} attn_norm=.layer.0.layer_norm cross_k_proj=.layer.1.EncDecAttention.k
    cross_norm=.layer.1.layer_norm cross_o_proj=.layer.1.EncDecAttention.o cross_q_proj=.layer.1.EncDecAttention.q
    cross_v_proj=.layer.1.EncDecAttention.v down_proj=.layer.{last}.mlp.wo embed_tokens=shared
    expert_down_proj=.layer.{last}.mlp.experts.*.wo expert_up_proj=.layer.{last}.mlp.experts.*.wi
    final_norm=@.final_layer_norm k_proj=.layer.0.SelfAttention.k mlp_norm=.layer.{last}.layer_norm
    o_proj=.layer.0.SelfAttention.o q_proj=.layer.0.SelfAttention.q
    relative_attention_bias=@.block.0.layer.0.SelfAttention.relative_attention_bias
    router=.layer.{last}.mlp.router.classifier up_proj=.layer.{last}.mlp.wi v_proj=.layer.0.SelfAttention.v
t5gemma:
    layers=@.layers.{} attn_norm=.pre_self_attn_layernorm attn_post_norm=.post_self_attn_layernorm
    cross_k_proj=.cross_attn.k_proj cross_norm=.pre_cross_attn_layernorm cross_o_proj=.cross_attn.o_proj
    cross_post_norm=.post_cross_attn_layernorm cross_q_proj=.cross_attn.q_proj cross_v_proj=.cross_attn.v_proj
    embed_tokens=@.embed_tokens final_norm=@.norm lm_head=lm_head.out_proj|lm_head
    mlp_norm=.pre_feedforward_layernorm
vit:
    layers=encoder.layer.{}|layers.{} wrapper=vit attn_norm=.layernorm_before classifier=classifier
    down_proj=.output.dense|.mlp.fc2 k_proj=.attention.attention.key|.attention.k_proj
    learned_tokens.weight=embeddings.cls_token mlp_norm=.layernorm_after
    o_proj=.attention.output.dense|.attention.o_proj patch_embed=embeddings.patch_embeddings.projection
    pooler_dense=pooler.dense positions.weight=embeddings.position_embeddings post_norm=layernorm
    q_proj=.attention.attention.query|.attention.q_proj up_proj=.intermediate.dense|.mlp.fc1
    v_proj=.attention.attention.value|.attention.v_proj
whisper:
    layers=@.layers.{} attn_norm=.self_attn_layer_norm conv1=@.conv1 conv2=@.conv2 down_proj=.fc2
    embed_positions=@.embed_positions embed_tokens=@.embed_tokens final_norm=@.layer_norm mlp_norm=.final_layer_norm
    o_proj=.self_attn.out_proj up_proj=.fc1
xlstm:
    layers=blocks.{} attn_norm=.norm_mlstm down_proj=.ffn.proj_down embed_tokens=embeddings final_norm=out_norm
    forget_gate=.mlstm_layer.fgate_preact g_proj=.mlstm_layer.ogate_preact gate_proj=.ffn.proj_up_gate
    input_gate=.mlstm_layer.igate_preact k_proj=.mlstm_layer.k mlp_norm=.norm_ffn out_proj=.mlstm_layer.out_proj
    q_proj=.mlstm_layer.q scan_norm=.mlstm_layer.multihead_norm up_proj=.ffn.proj_up v_proj=.mlstm_layer.v
zamba:
    A_log=.mamba_decoder.mamba.A_log|.mamba.A_log D=.mamba_decoder.mamba.D|.mamba.D
    attn_norm=.shared_transf.input_layernorm|.input_layernorm conv=.mamba_decoder.mamba.conv1d|.mamba.conv1d
    down_proj=.shared_transf.feed_forward.down_proj
    dt_proj.bias=.mamba_decoder.mamba.dt_proj_bias|.mamba.dt_proj_bias
    dt_proj.weight=.mamba_decoder.mamba.dt_proj_weight|.mamba.dt_proj_weight final_norm=final_layernorm
    gate_proj=.shared_transf.feed_forward.gate_proj in_proj=.mamba_decoder.mamba.in_proj|.mamba.in_proj
    k_proj=.shared_transf.self_attn.k_proj linear=.linear mamba_norm=.mamba_decoder.input_layernorm
    mlp_norm=.shared_transf.pre_ff_layernorm o_proj=.shared_transf.self_attn.o_proj
    out_proj=.mamba_decoder.mamba.out_proj|.mamba.out_proj q_proj=.shared_transf.self_attn.q_proj
    up_proj=.shared_transf.feed_forward.up_proj v_proj=.shared_transf.self_attn.v_proj
    x_proj.weight=.mamba_decoder.mamba.x_proj_weight|.mamba.x_proj_weight
zamba2:
    A_log=.mamba_decoder.mamba.A_log|.mamba.A_log D=.mamba_decoder.mamba.D|.mamba.D
    attn_norm=.shared_transformer.input_layernorm|.input_layernorm conv=.mamba_decoder.mamba.conv1d|.mamba.conv1d
    down_proj=.shared_transformer.feed_forward.down_proj dt_bias=.mamba_decoder.mamba.dt_bias|.mamba.dt_bias
    final_norm=final_layernorm gate_up_proj=.shared_transformer.feed_forward.gate_up_proj
    gated_norm=.mamba_decoder.mamba.norm|.mamba.norm in_proj=.mamba_decoder.mamba.in_proj|.mamba.in_proj
    k_proj=.shared_transformer.self_attn.k_proj linear=.linear mamba_norm=.mamba_decoder.input_layernorm
    mlp_norm=.shared_transformer.pre_ff_layernorm o_proj=.shared_transformer.self_attn.o_proj
    out_proj=.mamba_decoder.mamba.out_proj|.mamba.out_proj q_proj=.shared_transformer.self_attn.q_proj
    v_proj=.shared_transformer.self_attn.v_proj
zaya:
    attn_add.bias_0=.post_attention_residual_scale.residual_bias
    attn_add.bias_1=.post_attention_residual_scale.hidden_states_bias
    attn_add.scale_0=.post_attention_residual_scale.residual_scale
    attn_add.scale_1=.post_attention_residual_scale.hidden_states_scale embed_scale.bias_0=input_hidden_states_bias
    embed_scale.scale_0=input_hidden_states_scale k_norm.scale=.self_attn.qk_norm.temp
    k_proj=.self_attn.qkv_proj.k_proj mlp_add.bias_0=.post_mlp_residual_scale.residual_bias
    mlp_add.bias_1=.post_mlp_residual_scale.hidden_states_bias
    mlp_add.scale_0=.post_mlp_residual_scale.residual_scale
    mlp_add.scale_1=.post_mlp_residual_scale.hidden_states_scale q_proj=.self_attn.qkv_proj.q_proj
    qk_conv=.self_attn.qkv_proj.conv_qk_depthwise qk_mix=.self_attn.qkv_proj.conv_qk_grouped
    router=.mlp.gate.router_mlp.out_proj router_down=.mlp.gate.down_proj router_fc1=.mlp.gate.router_mlp.fc1
    router_fc2=.mlp.gate.router_mlp.fc2 router_norm=.mlp.gate.router_mlp.norm
    router_states.scale=.mlp.gate.router_states_scale v_proj_current=.self_attn.qkv_proj.v_proj_current
    v_proj_delayed=.self_attn.qkv_proj.v_proj_delayed
"""
