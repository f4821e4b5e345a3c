"""Small models of the transformers library, with a batch and a tensor-parallel plan for each."""

from dataclasses import dataclass
from functools import partial

import torch
import transformers as tf
from torch.distributed.tensor import Replicate, Shard

VOCABULARY, BATCH, LENGTH = 64, 8, 10
COLUMNS, ROWS = [Replicate(), Shard(0)], [Replicate(), Shard(1)]  # of a Linear's weight


@dataclass(frozen=True)
class Case:
    """make: the model. batch: keyword arguments of forward, with labels. plan: of a 2-D mesh."""

    make: object
    batch: object
    plan: dict
    generates: bool = True


def tokens(seed, length=LENGTH, batch=BATCH):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def causal_batch():
    ids = tokens(1)
    return {"input_ids": ids, "labels": ids.clone()}


def masked_batch():
    ids = tokens(1)
    labels = ids.clone()
    labels[:, ::2] = -100
    mask = torch.ones_like(ids)
    mask[::3, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def translation_batch():
    return {"input_ids": tokens(1), "labels": tokens(2, 7)}


def image_batch():
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(BATCH, 3, 16, 16, generator=generator)
    return {"pixel_values": images, "labels": torch.arange(BATCH) % 5}


def build(kind, config_kind, **sizes):
    torch.manual_seed(0)
    return kind(config_kind(**sizes))


# Larger than the default: with small weights every token is answered with itself.
_EMBEDDED = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_LLAMA = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.2,
    **_EMBEDDED,
}
_BERT = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.2,
}
_ATTENTION = {
    "*.q_proj.weight": COLUMNS, "*.k_proj.weight": COLUMNS, "*.v_proj.weight": COLUMNS,
    "*.o_proj.weight": ROWS,
}

CASES = {
    "gpt2": Case(
        partial(build, tf.GPT2LMHeadModel, tf.GPT2Config, n_embd=32, n_layer=2, n_head=4,
                n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                initializer_range=0.2, **_EMBEDDED),
        causal_batch,
        # GPT-2's Conv1D holds its weight the other way round.
        {"*.c_attn.weight": ROWS, "*.c_attn.bias": COLUMNS, "*.c_fc.weight": ROWS,
         "*.c_fc.bias": COLUMNS, "*.c_proj.weight": COLUMNS,
         "*.wte.weight": COLUMNS, "lm_head.weight": COLUMNS},
    ),
    "llama": Case(
        partial(build, tf.LlamaForCausalLM, tf.LlamaConfig, **_LLAMA),
        causal_batch,
        {**_ATTENTION, "*.gate_proj.weight": COLUMNS, "*.up_proj.weight": COLUMNS,
         "*.down_proj.weight": ROWS, "*.embed_tokens.weight": COLUMNS, "lm_head.weight": COLUMNS},
    ),
    "bert": Case(
        partial(build, tf.BertForMaskedLM, tf.BertConfig, vocab_size=VOCABULARY,
                max_position_embeddings=32, **_BERT),
        masked_batch,
        {"*.query.*": COLUMNS, "*.key.*": COLUMNS, "*.value.*": COLUMNS,
         "*.attention.output.dense.weight": ROWS, "*.intermediate.dense.*": COLUMNS,
         "*.layer.?.output.dense.weight": ROWS, "*.word_embeddings.weight": COLUMNS,
         "*.decoder.weight": COLUMNS},
        generates=False,
    ),
    "t5": Case(
        partial(build, tf.T5ForConditionalGeneration, tf.T5Config, vocab_size=VOCABULARY,
                d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.0,
                decoder_start_token_id=0),
        translation_batch,
        {"*.q.weight": COLUMNS, "*.k.weight": COLUMNS, "*.v.weight": COLUMNS, "*.o.weight": ROWS,
         "*.wi.weight": COLUMNS, "*.wo.weight": ROWS, "shared.weight": COLUMNS,
         "*.embed_tokens.weight": COLUMNS, "lm_head.weight": COLUMNS},
    ),
    "mixtral": Case(
        partial(build, tf.MixtralForCausalLM, tf.MixtralConfig, num_local_experts=4,
                num_experts_per_tok=2, output_router_logits=True, **_LLAMA),
        causal_batch,
        # By expert.
        {**_ATTENTION, "*.experts.gate_up_proj": COLUMNS, "*.experts.down_proj": COLUMNS,
         "*.embed_tokens.weight": COLUMNS, "lm_head.weight": COLUMNS},
    ),
    "vit": Case(
        partial(build, tf.ViTForImageClassification, tf.ViTConfig, image_size=16, patch_size=4,
                num_labels=5, **_BERT),
        image_batch,
        {"*.q_proj.*": COLUMNS, "*.k_proj.*": COLUMNS, "*.v_proj.*": COLUMNS,
         "*.o_proj.weight": ROWS, "*.fc1.*": COLUMNS, "*.fc2.weight": ROWS},
        generates=False,
    ),
}
