"""Networks: torsos, heads and actor-critics as small NNX modules that are plain pytrees.

Arguments of several of them: `sizes` are the widths of activated layers, perhaps none, and `out_features` that of a
plain layer after them, None for none; `activation` is a name in `activations.ACTIVATIONS`, `initialiser` one in
`initialisers.INITIALISERS`; `layer_norm` normalises before each activation; `scale` (`hidden_scale`) multiplies the
initial weights of activated layers, `out_scale` those of the plain one, and biases begin at zero; `key` is a JAX key.
"""
