"""Cross-entropy of logits and its gradient, in place, in one visit of a row: for the loss of a language model.

Dimensions: N tokens, V vocabulary.
"""

from gatedrnn.sequence.backends.cpu.matmul.panels import share
from gatedrnn.sequence.backends.cpu.matmul.tiling import thread, threads
from gatedrnn.sequence.backends.cpu.vector.functions import exp, log
from gatedrnn.sequence.backends.cpu.vector.lanewise import largest, maximum, total
from gatedrnn.sequence.backends.cpu.vector.simd import lanes, load, splat, store


def cross_entropy(call):
    """losses[n] = −log softmax(logits + bias)[target]; then logits = weight · (softmax − one-hot), summed into a row a thread."""
    N, V, logits, bias, targets, weights = call.N, call.V, call.logits, call.bias, call.targets, call.weights
    W = lanes(logits)
    q, parts = thread(), threads()
    own = call.sums + q * V
    for n in range(share(N, q, parts), share(N, q + 1, parts)):
        z, t = logits + n * V, targets[n]
        chosen = z[t] + bias[t]
        top = splat(z, chosen)
        for j in range(0, V - W + 1, W):
            top = maximum(top, load(z + j, W) + load(bias + j, W))
        peak = largest(top)
        for j in range(V - V % W, V):
            peak = max(peak, z[j] + bias[j])
        above = splat(z, peak)
        part = splat(z, 0.0)
        for j in range(0, V - W + 1, W):
            e = exp(load(z + j, W) + load(bias + j, W) - above)
            store(z + j, e, W)
            part = part + e
        whole = total(part)
        if V % W:
            j, m = V - V % W, V % W
            store(z + j, exp(load(z + j, m) + load(bias + j, m) - above), m)
            for k in range(j, V):
                whole += z[k]
        unless_nan = whole - whole  # 0; NaN if a logit is NaN or +∞, which `log` does not pass on
        store(call.losses + n, log(splat(z, whole)) + splat(z, peak - chosen + unless_nan), 1)
        if call.differentiate:
            scale = splat(z, weights[n]) / splat(z, whole)
            for j in range(0, V, W):
                m = min(W, V - j)
                p = load(z + j, m) * scale
                store(z + j, p, m)
                store(own + j, load(own + j, m) + p, m)
            z[t] = z[t] - weights[n]
            own[t] = own[t] - weights[n]
