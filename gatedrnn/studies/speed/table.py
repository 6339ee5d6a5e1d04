"""Measurements as a Markdown table."""

from typing import Any


def markdown(result: dict[str, Any]) -> str:
    """One shape's table: time, speed, ratio to torch.nn.LSTM, GFLOP/s, share of the bound, peak memory if measured.

    The ratio of a row in bfloat16 is to torch.nn.LSTM in bfloat16 if that was timed (on a GPU), else to that in float32.
    """
    rows, about = result["rows"], result["about"]
    base = {
        "bf16" in row["backend"]: row["seconds"] for row in rows if row["name"] == "torch.nn.LSTM" and row["seconds"]
    }
    bounds = {
        (row["name"].split(":")[0], row["backend"]): row["seconds"]
        for row in rows
        if row["name"].endswith(": products only")
    }
    kind = "training" if result["training"] else "inference"
    details = f"{about['threads']} threads, {about['machine']} ({about['target']}), torch {about['torch']}"
    widths = " → ".join(map(str, result["sizes"]))
    size = f"{widths}, T = {result['steps']}, B = {result['batch']}"
    head = f"{result['shape']}: {size}, {kind}; {details}; median of {about['runs']}"
    lines = [head, "", "| layers | backend | ms | tokens/s | × torch.nn.LSTM | GFLOP/s | of products only | peak MB |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        if row["seconds"] is None:
            lines.append(f"| {row['name']} | {row['backend']} | out of memory | | | | | |")
            continue
        bound = bounds.get((row["name"], "bf16" if "bf16" in row["backend"] else "float32"))
        share = f"{100 * bound / row['seconds']:.0f} %" if bound else ""
        memory = f"{row['peak_bytes'] / 1e6:.0f}" if row.get("peak_bytes") else ""
        compared = base.get("bf16" in row["backend"], base.get(False))
        ratio = f"{compared / row['seconds']:.2f}" if compared else ""
        speed = f"{1e3 * row['seconds']:.2f} | {result['tokens'] / row['seconds']:,.0f} | {ratio}"
        cells = [row["name"], row["backend"], speed, f"{row['gflop'] / row['seconds']:.0f}", share, memory]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
