"""Adam in NumPy, with which tests compare whole updates."""

import numpy as np


class Optimizer:
    """Adam, or RAdam, of Kingma and Ba 2015 and Liu et al. 2020, after a clip by the global norm."""

    def __init__(self, parameters, *, rectified, epsilon, max_norm):
        self.first, self.second = ([np.zeros_like(x) for x in parameters] for _ in range(2))
        self.count, self.rectified, self.epsilon, self.max_norm = 0, rectified, epsilon, max_norm

    def step(self, parameters, gradient, rate):
        norm = np.sqrt(sum((g**2).sum() for g in gradient))
        scale = min(1.0, self.max_norm / norm) if norm > 0 else 1.0
        self.count += 1
        t, b1, b2 = self.count, 0.9, 0.999
        infinite = 2 / (1 - b2) - 1
        length = infinite - 2 * t * b2**t / (1 - b2**t)
        for k, g in enumerate(scale * g for g in gradient):
            self.first[k] = b1 * self.first[k] + (1 - b1) * g
            self.second[k] = b2 * self.second[k] + (1 - b2) * g**2
            mean, deviation = (
                self.first[k] / (1 - b1**t),
                np.sqrt(self.second[k] / (1 - b2**t)) + self.epsilon,
            )
            if not self.rectified:
                parameters[k] -= rate * mean / deviation
            elif length <= 5:
                parameters[k] -= rate * mean
            else:
                numerator = (length - 4) * (length - 2) * infinite
                factor = np.sqrt(numerator / ((infinite - 4) * (infinite - 2) * length))
                parameters[k] -= rate * factor * mean / deviation
