"""One file a cell: the pointwise part of a step for one row of the batch, forward and backward; no product, no loop over time.

Every function of a kind has the same arguments, so that one loop over time runs them all:

forward(g, h_prev, c_prev, c, h, extra, scratch, H, K, C, hard)
    g: the row's pre-activations, replaced by gate values (σ, tanh, softmax); h, c: written.
backward(g, h_prev, c_prev, c, grad_h, grad_g, dh, dc, dg, extra, d_extra, scratch, H, K, C, hard)
    grad_h, grad_g: what comes from outside, for h and for the gate values; dh, dc: from the next step, replaced by what goes to
    the step before (without the product's part); dg: gradients of the pre-activations, written.

H units; K split points; C units a chunk; `hard`: bit k set where gate k of the Spec is straight-through: binary forward, the
soft gate saved and differentiated. Numba compiles these functions for every `Ptr`.
"""
