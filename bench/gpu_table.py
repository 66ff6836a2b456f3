# SPDX-License-Identifier: Apache-2.0
"""The tables of `./dev gpu`, from the lines of gpu.jsonl."""


def row(*cells):
    print("| " + " | ".join(str(c) for c in cells) + " |")


def best_torch(results, model, batch, precision):
    times = [(r["us"], r["way"]) for r in results
             if "torch" in r and "us" in r and (r["model"], r["batch"], r["precision"]) == (model, batch, precision)]
    return min(times) if times else None


def table_speed(results):
    steps = [r for r in results if r.get("bench") == "step"]
    if not steps:
        return
    peak = {r["precision"]: r["tflops"] for r in results if r.get("ceiling") == "product"}
    print()
    row("model", "batch", "precision", "mfl us/step", "best PyTorch us", "(which)", "times faster", "TFLOP/s",
        "of a large product", "host share")
    row(*["---"] * 10)
    for r in steps:
        torch = best_torch(results, r["model"], r["batch"], r["precision"])
        share = f"{r['tflops'] / peak[r['precision']]:.1%}" if peak.get(r["precision"]) else "-"
        row(r["model"], r["batch"], r["precision"] + (" fast" if r["fast"] else ""), f"{r['us']:.1f}",
            f"{torch[0]:.1f}" if torch else "-", torch[1] if torch else "-",
            f"{torch[0] / r['us']:.2f}" if torch else "-", f"{r['tflops']:.2f}", share,
            f"{r['host_share']:.1%}" if r["host_share"] >= 0 else "-")


def table_five(results):
    rows = [r for r in results if r.get("bench") == "five"]
    if rows:
        print()
        row("5 lenet5 clients of 10 steps", "ms", "of one after another")
        row(*["---"] * 3)
        for r in rows:
            row(r["way"], f"{r['ms']:.3f}", f"{r['ms'] / rows[0]['ms']:.2f}")


def table_fusion(results):
    rows = [r for r in results if r.get("bench") == "fusion"]
    for key in dict.fromkeys((r["model"], r["batch"], r["precision"]) for r in rows):
        mine = [r for r in rows if (r["model"], r["batch"], r["precision"]) == key]
        print()
        row(f"{key[0]} batch {key[1]} {key[2]}: clients at once", *[r["groups"] for r in mine])
        row(*["---"] * (len(mine) + 1))
        row("client steps a second", *[f"{r['client_steps_per_s']:.0f}" for r in mine])
        row("against one client alone", *[f"{r['gain']:.1f}" for r in mine])


def table_sums(results):
    rows = [r for r in results if r.get("bench") == "sum"]
    if rows:
        print()
        row("exact sums on the device", "clients", "params", "us", "GB/s", "of filling")
        row(*["---"] * 6)
        for r in rows:
            fill = next(f["gb_per_s"] for f in rows if f["way"] == "fill" and f["groups"] == r["groups"])
            row(r["way"], r["groups"], r["params"], f"{r['us']:.1f}", f"{r['gb_per_s']:.1f}", f"{r['gb_per_s'] / fill:.0%}")
    rows = [r for r in results if r.get("bench") == "reduce" and r["rank"] == 0 and "ms" in r]
    if rows:
        print()
        row("NCCL, sums to the host of rank 0", "params", "opening ms", "first ms", "ms", "GB/s", "to the host alone ms")
        row(*["---"] * 7)
        for r in rows:
            row(r["way"], r["params"], f"{r['open_ms']:.0f}", f"{r['first_ms']:.1f}", f"{r['ms']:.2f}", f"{r['gb_per_s']:.2f}",
                f"{r['read_ms']:.2f}")


def table_rest(results):
    for r in results:
        if r.get("bench") == "pfl-cifar":
            print(f"\npfl-cifar, {r['rounds']} rounds, {r['precision']}, data {r['data']}: {r['seconds']} s, "
                  f"{r['round_ms']} ms a round, accuracy {r['accuracy']}")
    print()
    for r in results:
        if "check" in r:
            print(f"{'pass' if r['ok'] else 'FAIL'}  {r['check']}: {r['text']}")
    for r in results:
        if "note" in r:
            print(f"note  {r['note']}")


def print_tables(results):
    for table in (table_speed, table_five, table_fusion, table_sums, table_rest):
        table(results)
