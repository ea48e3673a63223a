#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Solves the progressive scalar code of ReadKV and prints kvist/kernels/tree_code_tables.cc.

    tools/make_tree_tables.py > kvist/kernels/tree_code_tables.cc

One binary tree over N(0,1), root split at 0. A cell [a,b) splits where the local Lloyd condition m = (c(a,m) + c(m,b)) / 2
holds, c the mean of the normal inside the cell, and ancestors never move. The positive half is solved and mirrored, so every
table is exactly antisymmetric. Cells narrower than 2 are integrated by 20-point Gauss-Legendre, so that narrow cells far out
keep their digits; the others by erfc. Against a 50-digit solve the centroids differ by less than 2e-14.
"""
import math
import struct

DEPTH = 8
INF = math.inf


def legendre(n):
    """Nodes and weights of Gauss-Legendre on [-1,1], by Newton on the recurrence."""
    rule = []
    for i in range(n):
        x = math.cos(math.pi * (i + 0.75) / (n + 0.5))
        for _ in range(100):
            p, before = x, 1.0
            for k in range(2, n + 1):
                p, before = ((2 * k - 1) * x * p - (k - 1) * before) / k, p
            slope = n * (x * p - before) / (x * x - 1)
            x, step = x - p / slope, p / slope
            if abs(step) < 1e-16:
                break
        rule.append((x, 2 / ((1 - x * x) * slope * slope)))
    return rule


RULE = legendre(20)


def phi(x):
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def tail(x):
    return math.erfc(x / math.sqrt(2)) / 2


def integrate(a, b, f):
    middle, half = (a + b) / 2, (b - a) / 2
    return math.fsum(w * half * phi(middle + half * x) * f(middle + half * x) for x, w in RULE)


def mass(a, b):
    return integrate(a, b, lambda x: 1.0) if b - a < 2 else tail(a) - tail(b)


def mean(a, b):
    if b - a < 2:
        middle = (a + b) / 2
        return middle + integrate(a, b, lambda x: x - middle) / mass(a, b)
    return (phi(a) - phi(b)) / mass(a, b)


def spread(a, b):
    """The cell's part of the distortion: the integral of (x - c)^2 phi(x)."""
    c = mean(a, b)
    if b - a < 2:
        return integrate(a, b, lambda x: (x - c) ** 2)
    upper = 0.0 if b == INF else b * phi(b)
    return mass(a, b) * (1 - c * c) + a * phi(a) - upper


def split(a, b):
    low, high = a, b if b < INF else a + 8
    while True:
        m = (low + high) / 2
        if m in (low, high):
            return m
        if (mean(a, m) + mean(m, b)) / 2 > m:
            low = m
        else:
            high = m


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def text(x):
    """The shortest decimal that reads back as the float32 nearest to x."""
    for digits in range(1, 10):
        out = f"{f32(x):.{digits}g}"
        if f32(float(out)) == f32(x):
            return out + ("f" if "." in out or "e" in out else ".0f")
    raise ValueError(x)


def mirrored(half):
    return [-x for x in reversed(half)] + half


def solve():
    """Edges per level, centroids per depth, distortion per depth."""
    cells, inner, centroids, distortion = [(0.0, INF)], [], [], [1.0]
    for depth in range(1, DEPTH + 1):
        centroids.append(mirrored([mean(a, b) for a, b in cells]))
        distortion.append(2 * math.fsum(spread(a, b) for a, b in cells))
        if depth < DEPTH:
            cuts = [split(a, b) for a, b in cells]
            inner += cuts
            cells = [part for (a, b), m in zip(cells, cuts) for part in ((a, m), (m, b))]
    positive = sorted(inner)
    return [-x for x in reversed(positive)] + [0.0] + positive, centroids, distortion


def rows(values, of):
    return "\n".join("    " + " ".join(of(x) + "," for x in values[i:i + 8]) for i in range(0, len(values), 8))


def main():
    edges, centroids, distortion = solve()
    gains = [before - after for before, after in zip(distortion, distortion[1:])]
    print("// SPDX-License-Identifier: MIT")
    print("// Numbers of the progressive scalar code, written by tools/make_tree_tables.py.")
    print('#include "kvist/kernels/tree_code.h"\n\nnamespace kvist::kernels {\n')
    print("// clang-format off\n")
    print(f"const float kTreeThresholds[{len(edges)}] = {{\n{rows(edges, text)}\n}};\n")
    print(f"const float kTreeCentroids[{sum(map(len, centroids))}] = {{")
    for depth, level in enumerate(centroids, 1):
        print(f"    // depth {depth}\n{rows(level, text)}")
    print("};\n")
    print(f"const float kTreeGains[{DEPTH}] = {{\n{rows(gains, text)}\n}};\n")
    print(f"const double kTreeDistortion[{DEPTH + 1}] = {{\n{rows(distortion, repr)}\n}};\n")
    print("// clang-format on\n\n}  // namespace kvist::kernels")


if __name__ == "__main__":
    main()
