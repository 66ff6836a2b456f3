# SPDX-License-Identifier: Apache-2.0
"""Classes of transformers by configuration, small: the family `transformers` of bench/zoo.py."""
import torch
from torch import nn

from zoo_models import Entry

WORDS, TEXT, IMAGE = 100, (16,), (3, 32, 32)
SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
EAGER = dict(attn_implementation="eager")


class Logits(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x).logits


class Head(nn.Module):
    """A linear layer on the mean of what a bare encoder gives, or on what `of` takes from it."""

    def __init__(self, net, width, of=lambda out: out.last_hidden_state.mean(1), call=lambda net, x: net(x)):
        super().__init__()
        self.net, self.fc, self.fn = net, nn.Linear(width, 4), [of, call]

    def forward(self, x):
        return self.fc(self.fn[0](self.fn[1](self.net, x)))




def entries():
    try:
        import transformers as t
    except ImportError:
        return {}
    decoder = dict(SMALL, vocab_size=WORDS, max_position_embeddings=32, num_key_value_heads=2, use_cache=False, **EAGER)
    narrow = dict(decoder, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=16)
    bert = dict(SMALL, vocab_size=WORDS, max_position_embeddings=32, num_labels=4, **EAGER)
    found = {}

    def text(name, kind, config, **options):
        if hasattr(t, kind) and hasattr(t, config):
            found[name] = Entry(lambda: Logits(getattr(t, kind)(getattr(t, config)(**options))), TEXT, options["vocab_size"])

    def image(name, kind, config, shape=IMAGE, logits=None, **options):
        if hasattr(t, kind) and hasattr(t, config):
            found[name] = Entry(lambda: Logits(getattr(t, kind)(getattr(t, config)(num_labels=4, **options))), shape, logits=logits)

    def head(name, kind, config, shape, width, tokens=0, of=lambda out: out.last_hidden_state.mean(1), call=lambda net, x: net(x), **options):
        if hasattr(t, kind) and hasattr(t, config):
            found[name] = Entry(lambda: Head(getattr(t, kind)(getattr(t, config)(**options)), width, of, call), shape, tokens)

    # Encoders of text
    text("bert-classification", "BertForSequenceClassification", "BertConfig", **bert)
    text("distilbert-classification", "DistilBertForSequenceClassification", "DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=64,
         vocab_size=WORDS, max_position_embeddings=32, num_labels=4, **EAGER)
    text("roberta-classification", "RobertaForSequenceClassification", "RobertaConfig", **bert)
    text("albert-classification", "AlbertForSequenceClassification", "AlbertConfig", **dict(bert, embedding_size=16))
    text("bert-masked-words", "BertForMaskedLM", "BertConfig", **bert)
    text("roberta-masked-words", "RobertaForMaskedLM", "RobertaConfig", **bert)
    text("bert-token-classification", "BertForTokenClassification", "BertConfig", **bert)
    text("electra-classification", "ElectraForSequenceClassification", "ElectraConfig", **dict(bert, embedding_size=16))
    text("mobilebert-classification", "MobileBertForSequenceClassification", "MobileBertConfig", **dict(bert, embedding_size=16,
         intra_bottleneck_size=16, num_feedforward_networks=2))
    text("deberta-v2-classification", "DebertaV2ForSequenceClassification", "DebertaV2Config", **dict(bert, relative_attention=True, position_buckets=8,
         pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm", share_att_key=True, position_biased_input=False, max_relative_positions=-1))
    text("deberta-classification", "DebertaForSequenceClassification", "DebertaConfig", **dict(bert, relative_attention=True,
         pos_att_type=["p2c", "c2p"], position_biased_input=False, max_relative_positions=-1))
    text("xlnet-classification", "XLNetForSequenceClassification", "XLNetConfig", vocab_size=WORDS, d_model=32, n_layer=2, n_head=4, d_inner=64,
         num_labels=4)
    text("xlm-roberta-classification", "XLMRobertaForSequenceClassification", "XLMRobertaConfig", **bert)
    text("camembert-classification", "CamembertForSequenceClassification", "CamembertConfig", **bert)
    text("mpnet-classification", "MPNetForSequenceClassification", "MPNetConfig", **bert)
    text("squeezebert-classification", "SqueezeBertForSequenceClassification", "SqueezeBertConfig", **dict(bert, embedding_size=32, q_groups=2, k_groups=2,
         v_groups=2, post_attention_groups=1, intermediate_groups=2, output_groups=2))
    text("convbert-classification", "ConvBertForSequenceClassification", "ConvBertConfig", **dict(bert, embedding_size=32, head_ratio=2, conv_kernel_size=5))
    text("roformer-classification", "RoFormerForSequenceClassification", "RoFormerConfig", **dict(bert, embedding_size=32))
    text("fnet-classification", "FNetForSequenceClassification", "FNetConfig", **dict(bert))
    text("funnel-classification", "FunnelForSequenceClassification", "FunnelConfig", vocab_size=WORDS, d_model=32, n_head=4, d_head=8, d_inner=64, block_sizes=[1, 1],
         num_decoder_layers=1, num_labels=4)
    text("modernbert-classification", "ModernBertForSequenceClassification", "ModernBertConfig", **dict(bert, pad_token_id=0, global_attn_every_n_layers=2, local_attention=8))
    head("t5-encoder", "T5EncoderModel", "T5Config", TEXT, 32, WORDS, vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    head("gated-t5-encoder", "T5EncoderModel", "T5Config", TEXT, 32, WORDS, vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
         feed_forward_proj="gated-gelu")

    # Encoder and decoder
    found["t5"] = Entry(lambda: Head(t.T5Model(t.T5Config(vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, use_cache=False)), 32,
                                     call=lambda net, x: net(input_ids=x, decoder_input_ids=x)), TEXT, WORDS)
    seq = dict(vocab_size=WORDS, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
               decoder_ffn_dim=64, max_position_embeddings=32, use_cache=False, **EAGER)
    head("bart", "BartModel", "BartConfig", TEXT, 32, WORDS, call=lambda net, x: net(input_ids=x, decoder_input_ids=x), **seq)
    head("pegasus", "PegasusModel", "PegasusConfig", TEXT, 32, WORDS, call=lambda net, x: net(input_ids=x, decoder_input_ids=x), **seq)
    head("marian", "MarianModel", "MarianConfig", TEXT, 32, WORDS, call=lambda net, x: net(input_ids=x, decoder_input_ids=x),
         **dict(seq, pad_token_id=0, decoder_start_token_id=0))

    # Decoders
    text("gpt2", "GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, vocab_size=WORDS, n_positions=32, use_cache=False, **EAGER)
    text("gpt2-classification", "GPT2ForSequenceClassification", "GPT2Config", n_embd=32, n_layer=2, n_head=4, vocab_size=WORDS, n_positions=32, use_cache=False,
         num_labels=4, pad_token_id=0, **EAGER)
    text("llama", "LlamaForCausalLM", "LlamaConfig", **decoder)
    text("smollm", "LlamaForCausalLM", "LlamaConfig", **dict(decoder, tie_word_embeddings=True))
    text("llama-classification", "LlamaForSequenceClassification", "LlamaConfig", **dict(decoder, num_labels=4, pad_token_id=0))
    text("mistral", "MistralForCausalLM", "MistralConfig", **dict(decoder, sliding_window=None))
    text("mistral-window", "MistralForCausalLM", "MistralConfig", **dict(decoder, sliding_window=4))
    text("qwen2", "Qwen2ForCausalLM", "Qwen2Config", **decoder)
    text("qwen3", "Qwen3ForCausalLM", "Qwen3Config", **dict(decoder, head_dim=8))
    text("smollm3", "SmolLM3ForCausalLM", "SmolLM3Config", **dict(decoder, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    text("opt", "OPTForCausalLM", "OPTConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, vocab_size=WORDS,
         max_position_embeddings=32, word_embed_proj_dim=32, use_cache=False, **EAGER)
    text("gpt-neo", "GPTNeoForCausalLM", "GPTNeoConfig", hidden_size=32, num_layers=2, num_heads=4, intermediate_size=64, vocab_size=WORDS,
         max_position_embeddings=32, attention_types=[[["global", "local"], 1]], window_size=4, use_cache=False, **EAGER)
    text("pythia", "GPTNeoXForCausalLM", "GPTNeoXConfig", **dict(SMALL, vocab_size=WORDS, max_position_embeddings=32, use_cache=False, rotary_pct=0.5, **EAGER))
    text("gpt-neox-serial", "GPTNeoXForCausalLM", "GPTNeoXConfig", **dict(SMALL, vocab_size=WORDS, max_position_embeddings=32, use_cache=False,
         use_parallel_residual=False, **EAGER))
    text("gptj", "GPTJForCausalLM", "GPTJConfig", n_embd=32, n_layer=2, n_head=4, rotary_dim=4, vocab_size=WORDS, n_positions=32, use_cache=False, **EAGER)
    text("codegen", "CodeGenForCausalLM", "CodeGenConfig", n_embd=32, n_layer=2, n_head=4, rotary_dim=4, vocab_size=WORDS, n_positions=32, use_cache=False, **EAGER)
    text("phi", "PhiForCausalLM", "PhiConfig", **dict(decoder, partial_rotary_factor=0.5, num_key_value_heads=4))
    text("phi3", "Phi3ForCausalLM", "Phi3Config", **dict(decoder, pad_token_id=0))
    text("gemma", "GemmaForCausalLM", "GemmaConfig", **dict(decoder, head_dim=8))
    text("gemma2", "Gemma2ForCausalLM", "Gemma2Config", **dict(decoder, head_dim=8, sliding_window=8, query_pre_attn_scalar=8))
    text("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", **dict(decoder, head_dim=8, sliding_window=8, query_pre_attn_scalar=8))
    text("falcon", "FalconForCausalLM", "FalconConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=WORDS, use_cache=False, **EAGER)
    text("falcon-alibi", "FalconForCausalLM", "FalconConfig", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=WORDS, use_cache=False, alibi=True,
         new_decoder_architecture=False, **EAGER)
    text("bloom", "BloomForCausalLM", "BloomConfig", hidden_size=32, n_layer=2, n_head=4, vocab_size=WORDS, use_cache=False, **EAGER)
    text("mpt", "MptForCausalLM", "MptConfig", d_model=32, n_layers=2, n_heads=4, expansion_ratio=2, max_seq_len=32, vocab_size=WORDS, use_cache=False, **EAGER)
    text("stablelm", "StableLmForCausalLM", "StableLmConfig", **dict(decoder, num_key_value_heads=4))
    text("cohere", "CohereForCausalLM", "CohereConfig", **dict(decoder, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    text("olmo2", "Olmo2ForCausalLM", "Olmo2Config", **dict(decoder, pad_token_id=0))
    text("granite", "GraniteForCausalLM", "GraniteConfig", **decoder)
    text("starcoder2", "Starcoder2ForCausalLM", "Starcoder2Config", **dict(decoder, sliding_window=None))
    text("xglm", "XGLMForCausalLM", "XGLMConfig", d_model=32, num_layers=2, attention_heads=4, ffn_dim=64, vocab_size=WORDS, max_position_embeddings=32, use_cache=False, **EAGER)
    text("mixtral", "MixtralForCausalLM", "MixtralConfig", **dict(decoder, sliding_window=None, num_local_experts=4, num_experts_per_tok=2, experts_implementation="batched_mm"))
    text("mamba", "MambaForCausalLM", "MambaConfig", hidden_size=32, num_hidden_layers=2, state_size=4, vocab_size=WORDS, use_cache=False)
    text("rwkv", "RwkvForCausalLM", "RwkvConfig", hidden_size=32, num_hidden_layers=2, attention_hidden_size=32, vocab_size=WORDS, context_length=32, use_cache=False)
    # Narrow ones with the vocabularies of Llama 3 and Qwen2.
    text("llama3-vocabulary", "LlamaForCausalLM", "LlamaConfig", **dict(narrow, vocab_size=128256, rope_theta=500000.0))
    text("qwen2-vocabulary", "Qwen2ForCausalLM", "Qwen2Config", **dict(narrow, vocab_size=151936, tie_word_embeddings=True))

    # Images
    vision = dict(SMALL, image_size=32, patch_size=8, **EAGER)
    image("vit", "ViTForImageClassification", "ViTConfig", **vision)
    image("deit", "DeiTForImageClassification", "DeiTConfig", **vision)
    image("deit-distilled", "DeiTForImageClassificationWithTeacher", "DeiTConfig", **vision)
    image("beit", "BeitForImageClassification", "BeitConfig", **dict(vision, use_relative_position_bias=True, use_shared_relative_position_bias=False))
    image("data2vec-vision", "Data2VecVisionForImageClassification", "Data2VecVisionConfig", **dict(vision, use_relative_position_bias=True))
    image("dinov2", "Dinov2ForImageClassification", "Dinov2Config", **dict({k: v for k, v in vision.items() if k != "intermediate_size"}, mlp_ratio=2))
    image("dinov2-registers", "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig",
          **dict({k: v for k, v in vision.items() if k != "intermediate_size"}, mlp_ratio=2))
    image("swin", "SwinForImageClassification", "SwinConfig", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, **EAGER)
    image("swinv2", "Swinv2ForImageClassification", "Swinv2Config", image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, **EAGER)
    image("convnext", "ConvNextForImageClassification", "ConvNextConfig", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1])
    image("convnextv2", "ConvNextV2ForImageClassification", "ConvNextV2Config", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1])
    image("resnet", "ResNetForImageClassification", "ResNetConfig", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    image("regnet", "RegNetForImageClassification", "RegNetConfig", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4)
    image("mobilenet-v2", "MobileNetV2ForImageClassification", "MobileNetV2Config", image_size=32, depth_multiplier=0.25, depth_divisible_by=4)
    image("efficientnet", "EfficientNetForImageClassification", "EfficientNetConfig", image_size=32, width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320, depth_divisor=4,
          in_channels=[32, 16, 24], out_channels=[16, 24, 40], kernel_sizes=[3, 3, 5], strides=[1, 2, 2], num_block_repeats=[1, 2, 2], expand_ratios=[1, 6, 6])
    image("mobilevit", "MobileViTForImageClassification", "MobileViTConfig", (3, 64, 64), image_size=64, hidden_sizes=[16, 24, 32], neck_hidden_sizes=[4, 8, 8, 8, 16, 16, 32],
          num_attention_heads=2)
    image("mobilevit-v2", "MobileViTV2ForImageClassification", "MobileViTV2Config", (3, 64, 64), image_size=64, base_attn_unit_dims=[16, 24, 32],
          width_multiplier=0.25, n_attn_blocks=[1, 1, 1])
    image("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", logits=lambda out: out.flatten(2).transpose(1, 2), depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32],
          num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16)
    image("segformer-classification", "SegformerForImageClassification", "SegformerConfig", depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 2, 4])
    image("pvt", "PvtForImageClassification", "PvtConfig", image_size=32, depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 2, 4])
    image("cvt", "CvtForImageClassification", "CvtConfig", embed_dim=[8, 16, 32], num_heads=[1, 2, 4], depth=[1, 2, 3])
    image("levit", "LevitForImageClassification", "LevitConfig", (3, 64, 64), image_size=64, hidden_sizes=[16, 24, 32], num_attention_heads=[2, 2, 2], depths=[1, 1, 1],
          key_dim=[8, 8, 8])
    image("poolformer", "PoolFormerForImageClassification", "PoolFormerConfig", depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32])
    image("focalnet", "FocalNetForImageClassification", "FocalNetConfig", image_size=32, embed_dim=8, depths=[1, 1], hidden_sizes=[8, 16], focal_levels=[2, 2], focal_windows=[3, 3])
    image("bit", "BitForImageClassification", "BitConfig", embedding_size=8, hidden_sizes=[32, 64], depths=[1, 1], num_groups=4)
    clip = dict(SMALL, projection_dim=16, **EAGER)
    pooled = lambda out: out.pooler_output
    head("clip-vision", "CLIPVisionModel", "CLIPVisionConfig", IMAGE, 32, of=pooled, image_size=32, patch_size=8, **clip)
    head("clip-text", "CLIPTextModel", "CLIPTextConfig", TEXT, 32, WORDS, vocab_size=WORDS, max_position_embeddings=32, eos_token_id=99, **clip)
    head("clip-text-pooled", "CLIPTextModel", "CLIPTextConfig", TEXT, 32, WORDS, of=pooled, vocab_size=WORDS, max_position_embeddings=32, eos_token_id=2, **clip)
    head("siglip-vision", "SiglipVisionModel", "SiglipVisionConfig", IMAGE, 32, of=pooled, image_size=32, patch_size=8, **SMALL, **EAGER)
    head("siglip-text", "SiglipTextModel", "SiglipTextConfig", TEXT, 32, WORDS, of=pooled, vocab_size=WORDS, max_position_embeddings=32, projection_size=32, **SMALL, **EAGER)

    # Sound
    wave = dict(SMALL, conv_dim=[8, 8, 8], conv_kernel=[10, 3, 3], conv_stride=[5, 2, 2], num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, num_feat_extract_layers=3,
                mask_time_prob=0.0, apply_spec_augment=False, classifier_proj_size=16, num_labels=4, layerdrop=0.0, vocab_size=12, **EAGER)
    image("wav2vec2-classification", "Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", (400,), **{k: v for k, v in wave.items() if k != "num_labels"})
    image("wav2vec2-ctc", "Wav2Vec2ForCTC", "Wav2Vec2Config", (400,), **{k: v for k, v in wave.items() if k != "num_labels"})
    image("hubert-classification", "HubertForSequenceClassification", "HubertConfig", (400,), **{k: v for k, v in wave.items() if k != "num_labels"})
    image("wavlm-classification", "WavLMForSequenceClassification", "WavLMConfig", (400,), **{k: v for k, v in wave.items() if k != "num_labels"})
    image("ast", "ASTForAudioClassification", "ASTConfig", (40, 32), max_length=40, num_mel_bins=32, patch_size=16, time_stride=10, frequency_stride=10, **SMALL, **EAGER)
    head("whisper-encoder", "WhisperModel", "WhisperConfig", (20, 48), 32, d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64, num_mel_bins=20,
         max_source_positions=24, **EAGER)
    if hasattr(t, "WhisperModel"):
        from transformers.models.whisper.modeling_whisper import WhisperEncoder
        found["whisper-encoder"] = Entry(lambda: Head(WhisperEncoder(t.WhisperConfig(d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=64,
                                         num_mel_bins=20, max_source_positions=24, **EAGER)), 32), (20, 48))

    # Time series
    if hasattr(t, "PatchTSTForClassification"):
        patch = dict(num_input_channels=3, context_length=16, patch_length=4, patch_stride=4, d_model=16, num_attention_heads=2, num_hidden_layers=2, ffn_dim=32,
                     use_cls_token=False, num_targets=4, **EAGER)

        class Patches(nn.Module):
            def __init__(self, net, output):
                super().__init__()
                self.net, self.output = net, output

            def forward(self, x):
                out = getattr(self.net(past_values=x), self.output)
                return out if out.dim() == 2 else out.transpose(1, 2)
        found["patchtst-classification"] = Entry(lambda: Patches(t.PatchTSTForClassification(t.PatchTSTConfig(**patch)), "prediction_logits"), (16, 3))
        found["patchtst-forecast"] = Entry(lambda: Patches(t.PatchTSTForPrediction(t.PatchTSTConfig(**dict(patch, prediction_length=4, loss="mse"))), "prediction_outputs"), (16, 3))
        found["patchtsmixer-forecast"] = Entry(lambda: Patches(t.PatchTSMixerForPrediction(t.PatchTSMixerConfig(
            context_length=16, patch_length=4, patch_stride=4, num_input_channels=3, prediction_length=4, d_model=8, num_layers=2, loss="mse")), "prediction_outputs"), (16, 3))

        class Forecast(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = t.TimeSeriesTransformerModel(t.TimeSeriesTransformerConfig(
                    prediction_length=4, context_length=8, lags_sequence=[1, 2], num_time_features=1, encoder_layers=1, decoder_layers=1, d_model=16,
                    encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, use_cache=False, scaling="mean", **EAGER))
                self.fc = nn.Linear(16, 4)

            def forward(self, x):
                past, times, future = x[:, :10], x[:, 10:20, None], x[:, 20:, None]
                out = self.net(past_values=past, past_time_features=times, past_observed_mask=torch.ones_like(past), future_values=x[:, :4], future_time_features=future)
                return self.fc(out.last_hidden_state.mean(1))
        found["time-series-transformer"] = Entry(Forecast, (24,))
    return found
