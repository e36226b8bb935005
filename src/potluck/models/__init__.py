"""Architectures: convert the configuration in a model file to the program that engines run.

Families (``llama``, ``mistral``, …) are small files that read their configuration; differences in
the arithmetic are data in ``ModelConfig``. Programs use canonical tensor names, to which the names
in files are mapped (``names``):

    embed.weight                              [vocab, hidden]
    layers.{i}.attn_norm.weight               [hidden]
    layers.{i}.attn.{q,k,v}.weight, .bias     [heads * head_dim, hidden], [heads * head_dim]
    layers.{i}.attn.{q_norm,k_norm}.weight    [head_dim]
    layers.{i}.attn.o.weight, .bias           [hidden, heads * head_dim], [hidden]
    layers.{i}.mlp_norm.weight                [hidden]
    layers.{i}.mlp.{gate,up}.weight, .bias    [intermediate, hidden], [intermediate]
    layers.{i}.mlp.down.weight, .bias         [hidden, intermediate], [hidden]
    layers.{i}.mlp.latent_down.weight         [latent, hidden], before narrower experts
    layers.{i}.mlp.latent_up.weight           [hidden, latent], after them
    layers.{i}.mamba.{gate,x,step}.weight     [inner, hidden], [inner + 2 groups * state, hidden],
                                              [heads, hidden]; or x, b and c of their own
    layers.{i}.mamba.kernel.weight, .bias     [channels * kernel], [channels]
    layers.{i}.mamba.{rate,step_bias,skip}.weight  [heads]
    layers.{i}.mamba.norm.weight              [inner]
    layers.{i}.mamba.out.weight, .bias        [hidden, inner], [hidden]
    norm.weight                               [hidden]
    head.weight                               [vocab, hidden]; a tied head reads embed.weight
"""

__all__ = [
    "fields",
    "layers",
    "names",
    "program",
    "registry",
    "rope",
    "shape",
    "states",
    "work",
]
