"""Networks: torsos, heads and actor-critics as small NNX modules that are plain pytrees."""
